"""Perplexity and token accuracy, over real tokens only."""

import keras
from keras import ops

from keras_transformer.masks import padding_mask
from training.loss import token_crossentropy


class _TokenMean(keras.metrics.Metric):
    """Base: the mean of a value over all real tokens seen since the last reset."""

    def __init__(self, name, **kwargs):
        super().__init__(name=name, **kwargs)
        self.total = self.add_variable((), initializer="zeros", name="total")
        self.num_tokens = self.add_variable((), initializer="zeros", name="num_tokens")

    def add(self, values, is_real):
        """Count `values` (batch, target) where `is_real` (same shape, float) is 1."""
        self.total.assign_add(ops.cast(ops.sum(values * is_real), self.dtype))
        self.num_tokens.assign_add(ops.cast(ops.sum(is_real), self.dtype))

    def mean(self):
        """Return the mean so far, 0 without any token."""
        return self.total / ops.maximum(self.num_tokens, 1.0)


@keras.saving.register_keras_serializable("keras_transformer")
class TokenAccuracy(_TokenMean):
    """Share of the real tokens whose label no other token's logit exceeds."""

    def __init__(self, name="accuracy", **kwargs):
        super().__init__(name=name, **kwargs)

    def update_state(self, y_true, y_pred, sample_weight=None):
        """Count a batch: labels int (batch, target), logits (batch, target, vocabulary)."""
        labels = ops.cast(y_true, "int32")
        label_logits = ops.take_along_axis(y_pred, ops.expand_dims(labels, -1), axis=-1)
        # A comparison with the maximum: argmax is several times slower on a CPU.
        hits = ops.equal(ops.squeeze(label_logits, -1), ops.max(y_pred, axis=-1))
        self.add(ops.cast(hits, "float32"), ops.cast(padding_mask(labels), "float32"))

    def result(self):
        """Return the accuracy so far, a scalar in [0, 1]."""
        return self.mean()


@keras.saving.register_keras_serializable("keras_transformer")
class Perplexity(_TokenMean):
    """exp of the mean negative log-likelihood of the real tokens, without label smoothing."""

    def __init__(self, name="perplexity", **kwargs):
        super().__init__(name=name, **kwargs)

    def update_state(self, y_true, y_pred, sample_weight=None):
        """Count a batch: labels int (batch, target), logits (batch, target, vocabulary)."""
        losses, is_real = token_crossentropy(y_true, y_pred)
        self.add(losses, is_real)

    def result(self):
        """Return the perplexity so far, a scalar of at least 1."""
        return ops.exp(self.mean())

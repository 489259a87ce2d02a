"""Cross-entropy over real tokens only, with label smoothing (paper 5.4)."""

import keras
from keras import ops

from keras_transformer.masks import padding_mask


@keras.saving.register_keras_serializable("keras_transformer")
class MaskedCrossentropy(keras.losses.Loss):
    """Mean smoothed cross-entropy of the tokens that are not padding.

    The target distribution is 1 - label_smoothing on the label plus label_smoothing spread evenly
    over the whole vocabulary, as in `keras.losses.CategoricalCrossentropy(label_smoothing=...)`,
    but no one-hot tensor is built: with smoothing e the loss of a token is
    log(sum(exp(logits))) - (1 - e) * (logit of the label) - e * (mean logit).

    Args:
        label_smoothing: Share of the probability that is spread, 0.1 in the paper.
        name: Name of the loss.
        **kwargs: Arguments of `keras.losses.Loss`.

    Raises:
        ValueError: `label_smoothing` is not in [0, 1).
    """

    def __init__(self, label_smoothing=0.1, name="masked_crossentropy", **kwargs):
        if not 0 <= label_smoothing < 1:
            raise ValueError(f"label_smoothing must be in [0, 1), received {label_smoothing!r}")
        super().__init__(name=name, **kwargs)
        self.label_smoothing = label_smoothing

    def call(self, y_true, y_pred):
        """Compute the loss.

        Args:
            y_true: Labels int (batch, target); padding (id 0) does not count.
            y_pred: Logits (batch, target, vocabulary).

        Returns:
            float32 scalar: the mean over the real tokens, 0 if there is none.
        """
        losses, is_real = token_crossentropy(y_true, y_pred, self.label_smoothing)
        return ops.sum(losses) / ops.maximum(ops.sum(is_real), 1.0)

    def get_config(self):
        """Return the constructor arguments."""
        return {**super().get_config(), "label_smoothing": self.label_smoothing}


def token_crossentropy(labels, logits, label_smoothing=0.0):
    """Return the cross-entropy of each token, 0 at padding; and 1.0 where a token is real.

    The gradient, softmax - target distribution, is written out: the framework's own
    cross-entropy plus a gather of the label's logit takes four times as long on a CPU
    (benchmarks/RESULTS.md).

    Args:
        labels: int (batch, target).
        logits: (batch, target, vocabulary).
        label_smoothing: Share of the probability spread over the vocabulary.

    Returns:
        Two float32 tensors (batch, target): the losses in nats, and the weights.
    """
    labels = ops.cast(labels, "int32")
    shape, vocab_size = ops.shape(labels), logits.shape[-1]
    flat_labels = ops.reshape(labels, (-1,))
    at_label = ops.stack([ops.arange(ops.size(flat_labels)), flat_labels], axis=-1)

    @ops.custom_gradient
    def crossentropy(logits):  # (tokens, vocabulary)
        probabilities = ops.softmax(logits)
        # The largest probability is at least 1 / vocabulary, so its logarithm is safe.
        log_partition = ops.max(logits, axis=-1) - ops.log(ops.max(probabilities, axis=-1))
        expected_logit = (1.0 - label_smoothing) * _take(logits, flat_labels)
        if label_smoothing:
            expected_logit = expected_logit + label_smoothing * ops.mean(logits, axis=-1)

        def gradient(upstream):
            upstream = ops.expand_dims(upstream, 1)
            whole = (probabilities - label_smoothing / vocab_size) * upstream
            label_part = _take(whole, flat_labels) - (1.0 - label_smoothing) * upstream[:, 0]
            return ops.scatter_update(whole, at_label, label_part)

        return log_partition - expected_logit, gradient

    flat_logits = ops.reshape(ops.cast(logits, "float32"), (-1, vocab_size))
    is_real = ops.cast(padding_mask(labels), "float32")
    return ops.reshape(crossentropy(flat_logits), shape) * is_real, is_real


def _take(rows, columns):
    """Return rows[i, columns[i]] for each i."""
    return ops.squeeze(ops.take_along_axis(rows, ops.expand_dims(columns, 1), axis=1), 1)

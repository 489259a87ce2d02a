"""Greedy search in tensors of fixed shape, for a backend that compiles each shape anew (JAX).

A step runs the decoder over the whole buffer: on such backends, a cache that grows by a position a
step, as `decoding.py` has it, would be compiled a hundred times for one sentence.
"""

import keras
import numpy as np
from keras import ops

from keras_transformer.config import END_ID, PAD_ID, START_ID
from keras_transformer.decoding import Hypotheses, length_penalty
from keras_transformer.masks import source_attention_mask
from keras_transformer.model import Parts

WIDTH_MULTIPLE = 16


class CompiledGreedySearch:
    """Finds the same sequences as `decoding.greedy_search`.

    Args:
        model: From `build_transformer`; its layers are used, not copied.
        max_source_length: Longest source that the model takes.
        max_target_length: Longest translation; no limit is above it.
        alpha: Length penalty of the scores.
    """

    def __init__(
        self, model: keras.Model, max_source_length: int, max_target_length: int, alpha: float
    ):
        self.max_source_length = max_source_length
        self.max_target_length = max_target_length
        self.alpha = alpha
        self._filled = _Filled(model)
        self._filled.make_predict_function()

    def __call__(self, source_ids: np.ndarray, limits: np.ndarray) -> Hypotheses:
        """Search.

        Args:
            source_ids: int32 (batch, source).
            limits: int32 (batch,): the longest translation of each sentence in tokens with the end
                token.

        Returns:
            One hypothesis for each sentence, as NumPy arrays.
        """
        source_ids = pad_width(source_ids, self.max_source_length)
        ids = np.zeros((len(source_ids), 0), np.int32)
        log_probs = np.zeros(len(source_ids), np.float32)
        while not np.all(np.any(ids == END_ID, axis=1)):
            more = min(max(ids.shape[1], WIDTH_MULTIPLE), self.max_target_length - ids.shape[1])
            found = self._filled.predict_on_batch(
                {
                    "source_ids": source_ids,
                    "limits": limits,
                    "ids": np.pad(ids, [(0, 0), (0, more)], constant_values=PAD_ID),
                    "log_probs": log_probs,
                }
            )
            ids, log_probs = found["ids"], found["log_probs"]
        lengths = np.count_nonzero(ids, axis=1).astype(np.int32)
        scores = log_probs / ops.convert_to_numpy(length_penalty(lengths, self.alpha))
        ids = ids[:, : np.max(lengths)]
        return Hypotheses(ids[:, np.newaxis], scores[:, np.newaxis], lengths[:, np.newaxis])


def pad_width(ids: np.ndarray, max_length: int) -> np.ndarray:
    """Return `ids` (batch, length), padded to one of few lengths up to `max_length`."""
    more = min(-ids.shape[1] % WIDTH_MULTIPLE, max_length - ids.shape[1])
    return np.pad(ids, [(0, 0), (0, more)], constant_values=PAD_ID)


class _Filled(keras.Model):
    """Fills the buffer "ids" with the most probable tokens until it is full or all have ended."""

    def __init__(self, model):
        super().__init__(name="greedy_search")
        self.transformer = model  # so that its weights are this model's
        self.parts = Parts(model)

    def call(self, inputs):
        parts, ids, limits = self.parts, inputs["ids"], inputs["limits"]
        batch_size, size = ops.shape(ids)
        source_mask = source_attention_mask(inputs["source_ids"])
        encoder_output = parts.encoder(
            parts.source_embedding(inputs["source_ids"]), attention_mask=source_mask, training=False
        )
        starts = ops.full((batch_size, 1), START_ID, "int32")

        def has_ended(ids):
            return ops.any(ops.equal(ids, END_ID), axis=1)

        def goes_on(position, ids, log_probs):
            return ops.logical_and(position < size, ops.logical_not(ops.all(has_ended(ids))))

        def step(position, ids, log_probs):
            target_ids = ops.concatenate([starts, ids[:, :-1]], axis=1)
            vectors = parts.decoder(
                parts.target_embedding(target_ids),
                encoder_output,
                self_attention_mask=parts.target_mask(target_ids),
                cross_attention_mask=source_mask,
                training=False,
            )
            vectors = ops.take(vectors, position, axis=1)  # (batch, d_model)
            logits = parts.target_embedding(vectors, reverse=True)
            best = ops.argmax(logits[:, PAD_ID + 1 :], axis=-1) + PAD_ID + 1
            newest = ops.where(position + 1 >= limits, END_ID, ops.cast(best, "int32"))
            gained = ops.take_along_axis(ops.log_softmax(logits), newest[:, None], axis=1)[:, 0]
            done = has_ended(ids)
            newest = ops.where(done, PAD_ID, newest)
            ids = ops.where(ops.arange(size) == position, newest[:, None], ids)
            return position + 1, ids, log_probs + ops.where(done, 0.0, gained)

        filled = ops.max(ops.count_nonzero(ids, axis=1))
        _, ids, log_probs = ops.while_loop(
            goes_on, step, (ops.cast(filled, "int32"), ids, inputs["log_probs"])
        )
        return {"ids": ids, "log_probs": log_probs}

"""Where attention may look: the only place where masks are built or combined.

Masks are boolean, True = attend. No row of an attention mask is ever empty: a query that may see
nothing (a source of only padding) attends to the first position, so that every path of the softmax
gives the same finite result.
"""

import keras
from keras import ops

from keras_transformer.config import PAD_ID


def padding_mask(ids):
    """Return True where `ids` (batch, length) are real tokens; bool (batch, length)."""
    return ops.not_equal(ids, PAD_ID)


def causal_mask(length):
    """Return the mask of paper 3.2.3: position i sees positions 0..i; bool (1, query, key)."""
    positions = ops.arange(length)
    return ops.expand_dims(ops.expand_dims(positions, 1) >= ops.expand_dims(positions, 0), 0)


def source_attention_mask(source_ids):
    """Return what any query may see of the source; bool (batch, 1, source)."""
    return _without_empty_rows(ops.expand_dims(padding_mask(source_ids), 1))


def target_attention_mask(target_ids):
    """Return what each target position may see of the target; bool (batch, target, target)."""
    real = ops.expand_dims(padding_mask(target_ids), 1)  # (batch, 1, target)
    return _without_empty_rows(ops.logical_and(real, causal_mask(ops.shape(target_ids)[1])))


def attention_bias(mask):
    """Return what to add to attention logits: 0 where `mask` is True, else -inf; float32."""
    return ops.where(mask, 0.0, -float("inf"))


def beam_mask(earlier, parents):
    """Return what the newest position of each beam may see, of all positions of its sentence.

    Args:
        earlier: What this gave at the step before, bool (batch, beams, keys); no keys at first.
        parents: int32 (batch, beams): which beam of the step before each beam continues.

    Returns:
        bool (batch, beams, keys + beams): what the parent saw, and the beam's own newest position.
    """
    num_beams = parents.shape[1]
    is_parent = ops.one_hot(parents, num_beams, dtype="float32")  # (batch, beams, beams)
    inherited = ops.matmul(is_parent, ops.cast(earlier, "float32")) > 0
    own = ops.logical_or(ops.zeros_like(is_parent, "bool"), ops.eye(num_beams, dtype="bool"))
    return ops.concatenate([inherited, own], axis=2)


def _without_empty_rows(mask):
    """Let the rows of `mask` (batch, query, key) that allow no key see the first one."""
    is_first = ops.expand_dims(ops.arange(ops.shape(mask)[-1]) == 0, (0, 1))
    is_empty = ops.logical_not(ops.any(mask, axis=-1, keepdims=True))
    return ops.logical_or(mask, ops.logical_and(is_empty, is_first))


@keras.saving.register_keras_serializable("keras_transformer")
class SourceMask(keras.layers.Layer):
    """`source_attention_mask` as a layer, for functional models."""

    def call(self, source_ids):
        """Map ids int32 (batch, source) to a mask bool (batch, 1, source)."""
        return source_attention_mask(source_ids)


@keras.saving.register_keras_serializable("keras_transformer")
class TargetMask(keras.layers.Layer):
    """`target_attention_mask` as a layer, for functional models."""

    def call(self, target_ids):
        """Map ids int32 (batch, target) to a mask bool (batch, target, target)."""
        return target_attention_mask(target_ids)

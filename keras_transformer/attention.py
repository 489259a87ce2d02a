"""Multi-head attention (paper 3.2): Keras's layer for whole sequences, plus a cached step."""

import keras
from keras import ops


@keras.saving.register_keras_serializable("keras_transformer")
class MultiHeadAttention(keras.layers.MultiHeadAttention):
    """`keras.layers.MultiHeadAttention` that can also decode one position at a time.

    `call` is inherited: the whole sequence, for training. `project`, `extend` and `attend` compute
    the same function for one new position with the keys and values of earlier ones at hand. They
    lay keys and values out as (batch, ..., heads, length, key_dim), so that no step transposes
    them.

    Args:
        num_heads: Heads h.
        key_dim: Width of one head, d_k = d_v.
        dropout: Rate on the attention weights.
        **kwargs: Arguments of the Keras layer.
    """

    def __init__(self, num_heads, key_dim, dropout=0.0, **kwargs):
        # The Glorot limit of the (d_model, d_model) matrices of the paper. Keras's own default
        # counts the three axes (d_model, heads, key_dim) as a convolution's and starts about six
        # times too small, which leaves attention uniform for long.
        limit = (3.0 / (num_heads * key_dim)) ** 0.5
        kwargs.setdefault("kernel_initializer", keras.initializers.RandomUniform(-limit, limit))
        super().__init__(num_heads, key_dim, dropout=dropout, **kwargs)

    def project(self, sequence):
        """Return the keys and values of `sequence`, to attend to many times.

        Args:
            sequence: (batch, length, d_model).

        Returns:
            {"key", "value"}, each (batch, heads, length, key_dim).
        """
        return {
            "key": ops.transpose(self.key_dense(sequence), (0, 2, 1, 3)),
            "value": ops.transpose(self.value_dense(sequence), (0, 2, 1, 3)),
        }

    def empty_cache(self, batch_size, num_beams):
        """Return the cache before the first step: no position.

        Returns:
            {"key", "value"}, each (batch, beams, heads, 0, key_dim).
        """
        shape = (batch_size, num_beams, self.num_heads, 0, self.key_dim)
        return {name: ops.zeros(shape, self.compute_dtype) for name in ("key", "value")}

    def extend(self, cache, x):
        """Return `cache` with the key and value of one more position.

        Args:
            cache: {"key", "value"}, each (batch, beams, heads, length, key_dim).
            x: The new position, (batch, beams, d_model).

        Returns:
            The same structure with length + 1.
        """
        new = {"key": self.key_dense(x), "value": self.value_dense(x)}  # (batch, beams, heads, d)
        return {
            name: ops.concatenate([cache[name], ops.expand_dims(new[name], 3)], axis=3)
            for name in cache
        }

    def attend_to_target(self, x, cache):
        """Attend from one position of each beam to that beam's own cached positions.

        Args:
            x: (batch, beams, d_model).
            cache: {"key", "value"}, each (batch, beams, heads, length, key_dim).

        Returns:
            (batch, beams, d_model).
        """
        query = ops.expand_dims(self.query_dense(x), 3)  # (batch, beams, heads, 1, key_dim)
        heads = _attention(query, cache, mask=None)
        return self.output_dense(ops.squeeze(heads, 3))

    def attend_to_source(self, x, source, attention_mask):
        """Attend from one position of each beam to the source, which all beams share.

        The beams stand as queries of one sentence, so its keys and values are kept once.

        Args:
            x: (batch, beams, d_model).
            source: What `project` gave, each (batch, heads, source, key_dim).
            attention_mask: bool (batch, 1, source), True = attend.

        Returns:
            (batch, beams, d_model).
        """
        query = ops.transpose(self.query_dense(x), (0, 2, 1, 3))  # (batch, heads, beams, key_dim)
        heads = _attention(query, source, mask=ops.expand_dims(attention_mask, 1))
        return self.output_dense(ops.transpose(heads, (0, 2, 1, 3)))


def _attention(query, keys_and_values, mask):
    """Compute softmax(QK^T / sqrt(d_k)) V (paper, equation 1) over the last two axes."""
    key, value = keys_and_values["key"], keys_and_values["value"]
    scaled = query * (query.shape[-1] ** -0.5)
    scores = ops.cast(ops.matmul(scaled, ops.swapaxes(key, -1, -2)), "float32")
    if mask is not None:
        scores = ops.where(mask, scores, -1e9)
    # Not ops.softmax: it warns where there is one key, as at every first step.
    weights = ops.exp(scores - ops.max(scores, axis=-1, keepdims=True))
    weights = weights / ops.sum(weights, axis=-1, keepdims=True)
    return ops.matmul(ops.cast(weights, value.dtype), value)

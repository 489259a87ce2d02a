"""Multi-head attention (paper 3.2): Keras's layer, called on whole sequences or step by step."""

import keras
from keras import ops


@keras.saving.register_keras_serializable("keras_transformer")
class MultiHeadAttention(keras.layers.MultiHeadAttention):
    """`keras.layers.MultiHeadAttention` that can also decode one position at a time.

    Weights, options and serialisation are Keras's. The calls are written out here, over its public
    projections, for two reasons. Keras multiplies a (batch, length, d_model) input by a projection
    as `batch` small products, whose weight gradient is a (batch, d_model, d_model) tensor to be
    summed: more than half of a training step on a CPU. And decoding needs the projections of the
    new position alone, with the keys and values of earlier ones at hand.

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

    def build(self, query_shape, value_shape, *mask_shapes, **named_mask_shapes):
        """Make the projections for vectors (batch, length, d_model)."""
        super().build(query_shape, value_shape)
        self.weight_dropout = keras.layers.Dropout(self.dropout, dtype=self.dtype_policy)

    def call(self, query, value, attention_mask, training=None):
        """Attend from each position of one sequence to those of another.

        Args:
            query: (batch, query, d_model).
            value: Keys and values, (batch, key, d_model).
            attention_mask: bool, broadcastable to (batch, query, key), True = attend.
            training: Whether dropout is active.

        Returns:
            (batch, query, d_model).
        """
        if self.dropout or self.compute_dtype == "float16":  # whose products Keras lets overflow
            return self.call_with_scores(query, value, attention_mask, training)[0]
        heads = ops.dot_product_attention(
            _flat(self.query_dense, query),
            _flat(self.key_dense, value),
            _flat(self.value_dense, value),
            mask=ops.expand_dims(attention_mask, 1),
        )  # (batch, query, heads, key_dim)
        return _flat(self.output_dense, heads)

    def call_with_scores(self, query, value, attention_mask, training=None):
        """Return what `call` does, and the attention weights (batch, heads, query, key)."""
        query = ops.transpose(_flat(self.query_dense, query), (0, 2, 1, 3))
        source = self.project(value)
        scores = _attention_weights(query, source["key"], ops.expand_dims(attention_mask, 1))
        heads = ops.matmul(self.weight_dropout(scores, training=training), source["value"])
        return _flat(self.output_dense, ops.transpose(heads, (0, 2, 1, 3))), scores

    def project(self, sequence):
        """Return the keys and values of `sequence`, to attend to many times.

        Args:
            sequence: (batch, length, d_model).

        Returns:
            {"key", "value"}, each (batch, heads, length, key_dim).
        """
        return {
            "key": ops.transpose(_flat(self.key_dense, sequence), (0, 2, 1, 3)),
            "value": ops.transpose(_flat(self.value_dense, sequence), (0, 2, 1, 3)),
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
        new = {"key": _flat(self.key_dense, x), "value": _flat(self.value_dense, x)}
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
        query = ops.expand_dims(_flat(self.query_dense, x), 3)  # (batch, beams, heads, 1, key_dim)
        weights = _attention_weights(query, cache["key"], mask=None)
        heads = ops.matmul(weights, cache["value"])
        return _flat(self.output_dense, ops.squeeze(heads, 3))

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
        query = _flat(self.query_dense, x)  # (batch, beams, heads, key_dim)
        query = ops.transpose(query, (0, 2, 1, 3))
        weights = _attention_weights(query, source["key"], ops.expand_dims(attention_mask, 1))
        heads = ops.matmul(weights, source["value"])
        return _flat(self.output_dense, ops.transpose(heads, (0, 2, 1, 3)))


def _attention_weights(query, key, mask):
    """Compute softmax(QK^T / sqrt(d_k)), the weights of equation 1, over the last two axes.

    In float32 whatever the policy, as extreme products overflow in float16.
    """
    scaled = ops.cast(query, "float32") * (query.shape[-1] ** -0.5)
    logits = ops.matmul(scaled, ops.swapaxes(ops.cast(key, "float32"), -1, -2))
    if mask is not None:
        logits = ops.where(mask, logits, -1e9)
    # Not ops.softmax: it warns where there is one key, as at every first step.
    weights = ops.exp(logits - ops.max(logits, axis=-1, keepdims=True))
    weights = weights / ops.sum(weights, axis=-1, keepdims=True)
    return ops.cast(weights, query.dtype)


def _flat(projection, x):
    """Apply `projection` to `x` (batch, length, ...) as one product over all positions."""
    batch, length = ops.shape(x)[:2]
    y = projection(ops.reshape(x, (1, -1, *x.shape[2:])))  # (1, batch * length, ...)
    return ops.reshape(y, (batch, length, *y.shape[2:]))

"""Multi-head attention (paper 3.2): Keras's layer, called on whole sequences or step by step."""

import keras
from keras import ops

from keras_transformer.masks import attention_bias


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
        query = query * self.key_dim**-0.5
        source = self.project(value)
        scores = _attention_weights(query, source["key"], attention_bias(attention_mask))
        heads = _multiply(self.weight_dropout(scores, training=training), source["value"])
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

    def query_projection(self):
        """Return the query projection of a step: kernel (d_model, heads * key_dim), and bias.

        Both are divided by sqrt(d_k) already.
        """
        kernel, bias = _matrix(self.query_dense)
        return kernel * self.key_dim**-0.5, bias * self.key_dim**-0.5

    def self_projection(self):
        """Return query, key and value projection side by side, for one product instead of three.

        Returns:
            Kernel (d_model, 3 * heads * key_dim), and bias.
        """
        kernels, biases = zip(
            self.query_projection(),
            _matrix(self.key_dense),
            _matrix(self.value_dense),
            strict=True,
        )
        return ops.concatenate(kernels, axis=-1), ops.concatenate(biases, axis=-1)

    def empty_cache(self, batch_size):
        """Return the cache before the first step: {"key", "value"}, (batch, heads, 0, key_dim)."""
        shape = (batch_size, self.num_heads, 0, self.key_dim)
        return {name: ops.zeros(shape, self.compute_dtype) for name in ("key", "value")}

    def step_self(self, x, num_beams, projection, cache, bias=None):
        """Attend from the newest position of each beam to the positions of that beam.

        The cache holds the positions of all beams of a sentence, in the order of their making. It
        is not re-ordered when a search drops one beam and continues another twice: the mask tells
        whose the positions are.

        Args:
            x: The newest positions, (batch * beams, d_model).
            num_beams: Beams of a sentence.
            projection: From `self_projection`.
            cache: {"key", "value"}, each (batch, heads, keys, key_dim).
            bias: float32 (batch, beams, keys + beams): `masks.attention_bias` of
                `masks.beam_mask`; or None for one beam, which attends to all.

        Returns:
            Same shape as `x`; and the cache with one key and value more for each beam.
        """
        shape = (-1, num_beams, 3, self.num_heads, self.key_dim)
        projected = _move_axis(ops.reshape(_project(x, projection), shape), 1, 3)
        query, key, value = ops.unstack(projected, axis=1)  # (batch, heads, beams, key_dim)
        cache = {
            "key": ops.concatenate([cache["key"], key], axis=2),
            "value": ops.concatenate([cache["value"], value], axis=2),
        }
        x, _ = self._step(query, cache, bias)
        return x, cache

    def step_cross(self, x, num_beams, projection, source, bias):
        """Attend from the newest position of each beam to the source, which all beams share.

        The beams stand as queries of one sentence, so its keys and values are kept once.

        Args:
            x: The newest positions, (batch * beams, d_model).
            num_beams: Beams of a sentence.
            projection: From `query_projection`.
            source: What `project` gave, each (batch, heads, source, key_dim).
            bias: float32 (batch, 1, source): `masks.attention_bias` of the source's mask.

        Returns:
            Same shape as `x`; and the attention weights (batch, heads, beams, source).
        """
        shape = (-1, num_beams, self.num_heads, self.key_dim)
        query = _move_axis(ops.reshape(_project(x, projection), shape), 1, 2)
        return self._step(query, source, bias)

    def _step(self, query, memory, bias):
        """Attend from `query` (batch, heads, beams, key_dim).

        Returns:
            (batch * beams, d_model), and the weights (batch, heads, beams, key).
        """
        weights = _attention_weights(query, memory["key"], bias)
        heads = _move_axis(_multiply(weights, memory["value"]), 2, 1)
        heads = ops.reshape(heads, (-1, self.num_heads * self.key_dim))
        return _project(heads, _matrix(self.output_dense, num_inputs=heads.shape[1])), weights


def _attention_weights(query, key, bias):
    """Compute softmax(QK^T + bias), the weights of equation 1; the queries are scaled already.

    In float32 whatever the policy, as extreme products overflow in float16.
    """
    logits = _multiply(ops.cast(query, "float32"), ops.cast(key, "float32"), transpose_y=True)
    if bias is not None:  # (batch, query, key), for all heads
        logits = logits + ops.expand_dims(bias, 1)
    # Not ops.softmax: of few numbers TensorFlow's is three times slower on a CPU, and Keras warns
    # where there is one key, as at every first step.
    weights = ops.exp(logits - ops.max(logits, axis=-1, keepdims=True))
    weights = weights / ops.sum(weights, axis=-1, keepdims=True)
    return ops.cast(weights, query.dtype)


def _multiply(x, y, transpose_y=False):
    """Multiply many small matrices: (batch, heads, n, m) by (batch, heads, m, k)."""
    if keras.backend.backend() != "tensorflow" or x.dtype != "float32":
        return ops.matmul(x, ops.swapaxes(y, -1, -2) if transpose_y else y)
    # Not ops.matmul: TensorFlow hands it to oneDNN on a CPU, where each call takes 40 to 70
    # microseconds however small the matrices are. This op stays with Eigen.
    import tensorflow as tf

    return tf.raw_ops.BatchMatMulV3(x=x, y=y, Tout=x.dtype, adj_y=transpose_y)


def _move_axis(x, source, target):
    """Move an axis of known size; not by a transpose, which oneDNN makes slow as in `_multiply`."""
    return ops.stack(ops.unstack(x, axis=source), axis=target)


def _matrix(projection, num_inputs=None):
    """Return the kernel of `projection` as a matrix (inputs, outputs), and its bias (outputs,)."""
    kernel, bias = ops.convert_to_tensor(projection.kernel), ops.convert_to_tensor(projection.bias)
    kernel = ops.reshape(kernel, (num_inputs or kernel.shape[0], -1))
    dtype = projection.compute_dtype
    return ops.cast(kernel, dtype), ops.cast(ops.reshape(bias, (-1,)), dtype)


def _project(x, projection):
    """Return x @ kernel + bias for `x` (rows, inputs) and `projection` (kernel, bias)."""
    kernel, bias = projection
    return ops.add(ops.matmul(x, kernel), bias)


def _flat(projection, x):
    """Apply `projection` to `x` (batch, length, ...) as one product over all positions."""
    batch, length = ops.shape(x)[:2]
    y = projection(ops.reshape(x, (1, -1, *x.shape[2:])))  # (1, batch * length, ...)
    return ops.reshape(y, (batch, length, *y.shape[2:]))

"""The position-wise network (paper 3.3) and the residual connection around each sub-layer (3.1)."""

import math

import keras
from keras import ops

_WEIGHTS_OF_A_PIECE = 2**17


@keras.saving.register_keras_serializable("keras_transformer")
class FeedForward(keras.layers.Layer):
    """FFN(x) = max(0, x W1 + b1) W2 + b2 (paper 3.3, equation 2), the activation being a choice.

    Args:
        d_ff: Inner width.
        activation: Name of the activation.
        dropout: Rate on the activations; the paper has none there.
        **kwargs: Base-layer arguments.
    """

    def __init__(self, d_ff, activation="relu", dropout=0.0, **kwargs):
        super().__init__(**kwargs)
        self.d_ff = d_ff
        self.activation = activation
        self.rate = dropout
        self.dropout = keras.layers.Dropout(dropout, dtype=self.dtype_policy)

    def build(self, input_shape):
        """Make both matrices."""
        self.inner = keras.layers.Dense(
            self.d_ff, activation=self.activation, dtype=self.dtype_policy, name="inner"
        )
        self.outer = keras.layers.Dense(input_shape[-1], dtype=self.dtype_policy, name="outer")
        self.inner.build(input_shape)
        self.outer.build((*input_shape[:-1], self.d_ff))

    def call(self, x, training=None):
        """Map (..., d_model) to the same shape, each position alone."""
        return self.outer(self.dropout(self.inner(x), training=training))

    def prepare_step(self):
        """Return the weights in pieces of the inner width, for `step`.

        Each product of a few rows is then small enough for one thread of TensorFlow's: waking a
        second one takes 100 microseconds, longer than the product.

        Returns:
            A list of (inner kernel, inner bias, outer kernel), and the outer bias.
        """
        dtype = self.compute_dtype
        inner, outer = self.inner, self.outer
        count = math.gcd(
            self.d_ff, max(1, inner.kernel.shape[0] * self.d_ff // _WEIGHTS_OF_A_PIECE)
        )
        pieces = zip(
            ops.split(ops.cast(inner.kernel, dtype), count, axis=1),
            ops.split(ops.cast(inner.bias, dtype), count),
            ops.split(ops.cast(outer.kernel, dtype), count, axis=0),
            strict=True,
        )
        return list(pieces), ops.cast(outer.bias, dtype)

    def step(self, x, weights):
        """Return what `call` does at inference, for few positions.

        Args:
            x: (rows, d_model).
            weights: From `prepare_step`.
        """
        pieces, y = weights
        for inner_kernel, inner_bias, outer_kernel in pieces:
            h = self.inner.activation(ops.add(ops.matmul(x, inner_kernel), inner_bias))
            y = y + ops.matmul(h, outer_kernel)
        return y

    def get_config(self):
        """Return the constructor arguments."""
        config = super().get_config()
        config.update({"d_ff": self.d_ff, "activation": self.activation, "dropout": self.rate})
        return config


@keras.saving.register_keras_serializable("keras_transformer")
class Residual(keras.layers.Layer):
    """What surrounds a sub-layer: x + Dropout(Sublayer(x)) with layer normalisation (3.1, 5.4).

    Two calls, since the sub-layer stands between them: `y = sublayer(residual.enter(x))`, then
    `x = residual.leave(x, y)`.

    Args:
        dropout: Rate on the sub-layer's output.
        pre_norm: Normalise the sub-layer's input (Xiong et al. 2020) instead of the sum (paper).
        **kwargs: Base-layer arguments.
    """

    def __init__(self, dropout=0.1, pre_norm=False, **kwargs):
        super().__init__(**kwargs)
        self.rate = dropout
        self.pre_norm = pre_norm
        self.dropout = keras.layers.Dropout(dropout, dtype=self.dtype_policy)
        self.norm = layer_normalization(self.dtype_policy)

    def build(self, input_shape):
        """Make the normalisation's weights."""
        self.norm.build(input_shape)

    def enter(self, x):
        """Return what the sub-layer is given; same shape."""
        return self.norm(x) if self.pre_norm else x

    def leave(self, x, y, training=None):
        """Add the sub-layer's output `y` to its input `x`; same shape."""
        total = x + self.dropout(y, training=training)
        return total if self.pre_norm else self.norm(total)

    def get_config(self):
        """Return the constructor arguments."""
        config = super().get_config()
        config.update({"dropout": self.rate, "pre_norm": self.pre_norm})
        return config


def layer_normalization(dtype, name="norm"):
    """Return the layer normalisation that all parts use; epsilon as in the authors' code."""
    return keras.layers.LayerNormalization(epsilon=1e-6, dtype=dtype, name=name)

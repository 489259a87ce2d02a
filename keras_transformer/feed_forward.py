"""The position-wise network (paper 3.3) and the residual connection around each sub-layer (3.1)."""

import keras


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

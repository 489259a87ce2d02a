"""What encoder and decoder have in common: the options of a layer, and a stack of such layers."""

import keras

from keras_transformer.attention import MultiHeadAttention
from keras_transformer.embedding import PositionalEncoding
from keras_transformer.feed_forward import FeedForward, Residual, layer_normalization


class TransformerLayer(keras.layers.Layer):
    """Base of EncoderLayer and DecoderLayer: their options, and how they make sub-layers.

    Args:
        num_heads: Attention heads h; d_model / h is the width of one.
        d_ff: Inner width of the feed-forward network.
        dropout: Rate on each sub-layer's output (5.4).
        attention_dropout: Rate on the attention weights.
        activation: Activation of the feed-forward network.
        pre_norm: Normalise before each sub-layer instead of after it.
        activation_dropout: Rate inside the feed-forward network.
        **kwargs: Base-layer arguments.
    """

    def __init__(
        self,
        num_heads,
        d_ff,
        dropout=0.1,
        attention_dropout=0.0,
        activation="relu",
        pre_norm=False,
        activation_dropout=0.0,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.d_ff = d_ff
        self.dropout = dropout
        self.attention_dropout = attention_dropout
        self.activation = activation
        self.pre_norm = pre_norm
        self.activation_dropout = activation_dropout

    def get_config(self):
        """Return the constructor arguments."""
        return {**super().get_config(), **layer_options(self)}

    def make_attention(self, name, shape):
        """Return a built attention sub-layer for vectors of `shape` (..., d_model)."""
        attention = MultiHeadAttention(
            self.num_heads,
            shape[-1] // self.num_heads,
            self.attention_dropout,
            dtype=self.dtype_policy,
            name=name,
        )
        attention.build(shape, shape)
        return attention

    def make_feed_forward(self, name, shape):
        """Return a built feed-forward sub-layer for vectors of `shape` (..., d_model)."""
        layer = FeedForward(
            self.d_ff,
            self.activation,
            self.activation_dropout,
            dtype=self.dtype_policy,
            name=name,
        )
        layer.build(shape)
        return layer

    def make_residual(self, name, shape):
        """Return the built residual connection for one sub-layer."""
        layer = Residual(self.dropout, self.pre_norm, dtype=self.dtype_policy, name=name)
        layer.build(shape)
        return layer


class Stack(keras.layers.Layer):
    """Base of Encoder and Decoder: positions, dropout on their sum with the embeddings, N layers.

    Args:
        num_layers: Number of layers N.
        learned_positions: Learn the position vectors.
        max_length: Rows of the learned position table.
        num_heads: As in TransformerLayer, and so the next six.
        d_ff: Inner width of the feed-forward network.
        dropout: Rate on sub-layer outputs and on the sum of embedding and position (5.4).
        attention_dropout: Rate on the attention weights.
        activation: Activation of the feed-forward network.
        pre_norm: Normalise before each sub-layer; then the stack's output is normalised too.
        activation_dropout: Rate inside the feed-forward network.
        **kwargs: Base-layer arguments.
    """

    layer_class: type[TransformerLayer]

    def __init__(
        self,
        num_layers,
        num_heads,
        d_ff,
        dropout=0.1,
        attention_dropout=0.0,
        activation="relu",
        pre_norm=False,
        activation_dropout=0.0,
        learned_positions=False,
        max_length=256,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_layers = num_layers
        self.num_heads = num_heads
        self.d_ff = d_ff
        self.dropout = dropout
        self.attention_dropout = attention_dropout
        self.activation = activation
        self.pre_norm = pre_norm
        self.activation_dropout = activation_dropout
        self.learned_positions = learned_positions
        self.max_length = max_length

    def get_config(self):
        """Return the constructor arguments."""
        return {
            **super().get_config(),
            **layer_options(self),
            "num_layers": self.num_layers,
            "learned_positions": self.learned_positions,
            "max_length": self.max_length,
        }

    def build_stack(self, shape, *layer_shapes):
        """Make and build everything for inputs of `shape`, each layer for `layer_shapes`."""
        policy = self.dtype_policy
        self.positions = PositionalEncoding(
            self.learned_positions, self.max_length, dtype=policy, name="positions"
        )
        self.positions.build(shape)
        self.input_dropout = keras.layers.Dropout(self.dropout, dtype=policy, name="input_dropout")
        self.layers = [
            self.layer_class(**layer_options(self), dtype=policy, name=f"layer_{i}")
            for i in range(self.num_layers)
        ]
        for layer in self.layers:
            layer.build(*layer_shapes)
        self.norm = layer_normalization(policy) if self.pre_norm else None
        if self.norm:
            self.norm.build(shape)

    def enter(self, x, training=None):
        """Add positions to the embeddings `x` (batch, length, d_model), with dropout."""
        return self.input_dropout(self.positions(x), training=training)

    def leave(self, x):
        """Return the output of the stack, given that of its last layer."""
        return self.norm(x) if self.norm else x


def layer_options(layer):
    """Return the options that TransformerLayer and Stack share, as constructor arguments."""
    return {
        "num_heads": layer.num_heads,
        "d_ff": layer.d_ff,
        "dropout": layer.dropout,
        "attention_dropout": layer.attention_dropout,
        "activation": layer.activation,
        "pre_norm": layer.pre_norm,
        "activation_dropout": layer.activation_dropout,
    }

"""The encoder (paper 3.1): self-attention and feed-forward, N times."""

import keras
from keras import ops

from keras_transformer.stack import Stack, TransformerLayer


@keras.saving.register_keras_serializable("keras_transformer")
class EncoderLayer(TransformerLayer):
    """One layer of the encoder: two sub-layers, each in a residual connection.

    Arguments as in TransformerLayer.
    """

    def build(self, x_shape, attention_mask_shape=None):
        """Make the sub-layers for inputs (batch, source, d_model)."""
        self.self_attention = self.make_attention("self_attention", x_shape)
        self.self_attention_residual = self.make_residual("self_attention_residual", x_shape)
        self.feed_forward = self.make_feed_forward("feed_forward", x_shape)
        self.feed_forward_residual = self.make_residual("feed_forward_residual", x_shape)

    def call(self, x, attention_mask, training=None):
        """Encode.

        Args:
            x: (batch, source, d_model).
            attention_mask: bool (batch, 1, source), True = attend. Nothing attends to a padded
                position; what such a position itself becomes has no meaning.
            training: Whether dropout is active.

        Returns:
            Same shape as `x`.
        """
        h = self.self_attention_residual.enter(x)
        h = self.self_attention(h, h, attention_mask=attention_mask, training=training)
        x = self.self_attention_residual.leave(x, h, training)
        return self._feed_forward(x, training)

    def call_with_scores(self, x, attention_mask):
        """Encode at inference; return what `call` does, and scores (batch, heads, query, key)."""
        h = self.self_attention_residual.enter(x)
        h, scores = self.self_attention.call_with_scores(h, h, attention_mask)
        x = self.self_attention_residual.leave(x, h, training=False)
        return self._feed_forward(x, training=False), scores

    def _feed_forward(self, x, training):
        h = self.feed_forward(self.feed_forward_residual.enter(x), training=training)
        return self.feed_forward_residual.leave(x, h, training)


@keras.saving.register_keras_serializable("keras_transformer")
class Encoder(Stack):
    """Positions, dropout, and N encoder layers. Arguments as in Stack."""

    layer_class = EncoderLayer

    def build(self, x_shape, attention_mask_shape=None):
        """Make the layers for inputs (batch, source, d_model)."""
        self.build_stack(x_shape, x_shape)

    def call(self, x, attention_mask, training=None):
        """Encode.

        Args:
            x: Scaled token embeddings (batch, source, d_model).
            attention_mask: bool (batch, 1, source), True = attend.
            training: Whether dropout is active.

        Returns:
            The encoder output, same shape as `x`.
        """
        x = self.enter(x, training)
        for layer in self.layers:
            x = layer(x, attention_mask=attention_mask, training=training)
        return self.leave(x)

    def call_with_scores(self, x, attention_mask):
        """Encode at inference; return what `call` does, and (batch, layers, heads, query, key)."""
        x = self.enter(x, training=False)
        all_scores = []
        for layer in self.layers:
            x, scores = layer.call_with_scores(x, attention_mask)
            all_scores.append(scores)
        return self.leave(x), ops.stack(all_scores, axis=1)

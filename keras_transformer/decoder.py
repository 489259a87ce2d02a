"""The decoder (paper 3.1): whole sequences for training, one cached position for decoding."""

import keras
from keras import ops

from keras_transformer.stack import Stack, TransformerLayer


@keras.saving.register_keras_serializable("keras_transformer")
class DecoderLayer(TransformerLayer):
    """One layer of the decoder: three sub-layers, each in a residual connection.

    Arguments as in TransformerLayer.
    """

    def build(self, x_shape, encoder_output_shape, *mask_shapes, **named_mask_shapes):
        """Make the sub-layers for inputs (batch, target, d_model)."""
        self.self_attention = self.make_attention("self_attention", x_shape)
        self.self_attention_residual = self.make_residual("self_attention_residual", x_shape)
        self.cross_attention = self.make_attention("cross_attention", x_shape)
        self.cross_attention_residual = self.make_residual("cross_attention_residual", x_shape)
        self.feed_forward = self.make_feed_forward("feed_forward", x_shape)
        self.feed_forward_residual = self.make_residual("feed_forward_residual", x_shape)

    def call(self, x, encoder_output, self_attention_mask, cross_attention_mask, training=None):
        """Decode whole sequences.

        Args:
            x: (batch, target, d_model).
            encoder_output: (batch, source, d_model).
            self_attention_mask: bool (batch, target, target), causal, True = attend.
            cross_attention_mask: bool (batch, 1, source), True = attend.
            training: Whether dropout is active.

        Returns:
            Same shape as `x`.
        """
        h = self.self_attention_residual.enter(x)
        h = self.self_attention(h, h, attention_mask=self_attention_mask, training=training)
        x = self.self_attention_residual.leave(x, h, training)
        h = self.cross_attention_residual.enter(x)
        h = self.cross_attention(
            h, encoder_output, attention_mask=cross_attention_mask, training=training
        )
        x = self.cross_attention_residual.leave(x, h, training)
        return self._feed_forward(x, training)

    def call_with_scores(self, x, encoder_output, self_attention_mask, cross_attention_mask):
        """Decode whole sequences at inference, with the attention scores.

        Returns:
            What `call` does; self-attention scores (batch, heads, target, target); and
            cross-attention scores (batch, heads, target, source).
        """
        h = self.self_attention_residual.enter(x)
        h, self_scores = self.self_attention.call_with_scores(h, h, self_attention_mask)
        x = self.self_attention_residual.leave(x, h, training=False)
        h = self.cross_attention_residual.enter(x)
        h, cross_scores = self.cross_attention.call_with_scores(
            h, encoder_output, cross_attention_mask
        )
        x = self.cross_attention_residual.leave(x, h, training=False)
        return self._feed_forward(x, training=False), self_scores, cross_scores

    def step(self, x, cache, source, cross_attention_mask):
        """Decode one position at inference; equal to that position of `call`.

        Args:
            x: The position, one for each beam: (batch, beams, d_model).
            cache: Self-attention keys and values of the earlier positions, see
                MultiHeadAttention.extend.
            source: Cross-attention keys and values, see MultiHeadAttention.project.
            cross_attention_mask: bool (batch, 1, source), True = attend.

        Returns:
            Same shape as `x`; and the cache with this position added.
        """
        h = self.self_attention_residual.enter(x)
        cache = self.self_attention.extend(cache, h)
        h = self.self_attention.attend_to_target(h, cache)
        x = self.self_attention_residual.leave(x, h, training=False)
        h = self.cross_attention_residual.enter(x)
        h = self.cross_attention.attend_to_source(h, source, cross_attention_mask)
        x = self.cross_attention_residual.leave(x, h, training=False)
        return self._feed_forward(x, training=False), cache

    def _feed_forward(self, x, training):
        h = self.feed_forward(self.feed_forward_residual.enter(x), training=training)
        return self.feed_forward_residual.leave(x, h, training)


@keras.saving.register_keras_serializable("keras_transformer")
class Decoder(Stack):
    """Positions, dropout, and N decoder layers. Arguments as in Stack."""

    layer_class = DecoderLayer

    def build(self, x_shape, encoder_output_shape, *mask_shapes, **named_mask_shapes):
        """Make the layers for inputs (batch, target, d_model)."""
        self.build_stack(x_shape, x_shape, encoder_output_shape)

    def call(self, x, encoder_output, self_attention_mask, cross_attention_mask, training=None):
        """Decode whole sequences.

        Args:
            x: Scaled token embeddings (batch, target, d_model).
            encoder_output: (batch, source, d_model).
            self_attention_mask: bool (batch, target, target), causal, True = attend.
            cross_attention_mask: bool (batch, 1, source), True = attend.
            training: Whether dropout is active.

        Returns:
            Same shape as `x`.
        """
        x = self.enter(x, training)
        for layer in self.layers:
            x = layer(
                x,
                encoder_output,
                self_attention_mask=self_attention_mask,
                cross_attention_mask=cross_attention_mask,
                training=training,
            )
        return self.leave(x)

    def call_with_scores(self, x, encoder_output, self_attention_mask, cross_attention_mask):
        """Decode whole sequences at inference, with the attention scores.

        Returns:
            What `call` does; self-attention scores (batch, layers, heads, target, target); and
            cross-attention scores (batch, layers, heads, target, source).
        """
        x = self.enter(x, training=False)
        all_self_scores, all_cross_scores = [], []
        for layer in self.layers:
            x, self_scores, cross_scores = layer.call_with_scores(
                x, encoder_output, self_attention_mask, cross_attention_mask
            )
            all_self_scores.append(self_scores)
            all_cross_scores.append(cross_scores)
        return (
            self.leave(x),
            ops.stack(all_self_scores, axis=1),
            ops.stack(all_cross_scores, axis=1),
        )

    def project_source(self, encoder_output):
        """Return each layer's cross-attention keys and values, computed once a sentence."""
        return [layer.cross_attention.project(encoder_output) for layer in self.layers]

    def empty_cache(self, batch_size, num_beams):
        """Return each layer's cache before the first position; leaves are (batch, beams, ...)."""
        return [layer.self_attention.empty_cache(batch_size, num_beams) for layer in self.layers]

    def step(self, x, position, cache, source, cross_attention_mask):
        """Decode one position at inference; equal to that position of `call`.

        Args:
            x: Scaled token embeddings, one for each beam: (batch, beams, d_model).
            position: int32 scalar, 0 for the first.
            cache: From `empty_cache`, or from the step before.
            source: From `project_source`.
            cross_attention_mask: bool (batch, 1, source), True = attend.

        Returns:
            Same shape as `x`; and the cache for the next step.
        """
        x = x + self.positions.vectors(ops.expand_dims(position, 0), x.shape[-1], x.dtype)
        new_cache = []
        for layer, layer_cache, layer_source in zip(self.layers, cache, source, strict=True):
            x, layer_cache = layer.step(x, layer_cache, layer_source, cross_attention_mask)
            new_cache.append(layer_cache)
        return self.leave(x), new_cache

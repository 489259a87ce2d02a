"""The decoder (paper 3.1): whole sequences for training, one cached position for decoding."""

import keras
from keras import ops

from keras_transformer.masks import attention_bias, beam_mask
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

    def prepare_step(self):
        """Return what every `step` needs of the weights, in the form it needs."""
        return {
            "self": self.self_attention.self_projection(),
            "cross": self.cross_attention.query_projection(),
            "feed_forward": self.feed_forward.prepare_step(),
        }

    def step(self, x, num_beams, weights, cache, self_attention_bias, cross_attention_bias):
        """Decode one position of each beam at inference; equal to that position of `call`.

        Args:
            x: The position, (batch * beams, d_model).
            num_beams: Beams of a sentence.
            weights: From `prepare_step`.
            cache: {"target", "source"}: keys and values of the earlier positions and of the source,
                see MultiHeadAttention.step_self and step_cross.
            self_attention_bias: float32 (batch, beams, keys), or None for one beam.
            cross_attention_bias: float32 (batch, 1, source).

        Returns:
            Same shape as `x`; the cache with this position added; and the cross-attention weights
            (batch, heads, beams, source).
        """
        h = self.self_attention_residual.enter(x)
        h, target = self.self_attention.step_self(
            h, num_beams, weights["self"], cache["target"], self_attention_bias
        )
        x = self.self_attention_residual.leave(x, h, training=False)
        h = self.cross_attention_residual.enter(x)
        h, scores = self.cross_attention.step_cross(
            h, num_beams, weights["cross"], cache["source"], cross_attention_bias
        )
        x = self.cross_attention_residual.leave(x, h, training=False)
        cache = {"target": target, "source": cache["source"]}
        h = self.feed_forward_residual.enter(x)
        h = self.feed_forward.step(h, weights["feed_forward"])
        return self.feed_forward_residual.leave(x, h, training=False), cache, scores

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

    def start(self, encoder_output, source_mask, num_beams, with_coverage=False):
        """Return the cache before the first step.

        Args:
            encoder_output: (batch, source, d_model).
            source_mask: bool (batch, 1, source), True = attend.
            num_beams: How many hypotheses of each sentence `step` extends.
            with_coverage: Whether to sum up where the hypotheses looked, as "coverage".

        Returns:
            A nested structure whose leaves are (batch, ...).
        """
        batch_size, source_length = ops.shape(encoder_output)[:2]
        layers = [
            {
                "target": layer.self_attention.empty_cache(batch_size),
                "source": layer.cross_attention.project(encoder_output),
            }
            for layer in self.layers
        ]
        cache = {"layers": layers, "source_bias": attention_bias(source_mask)}
        if num_beams > 1:
            cache["self_attention_mask"] = ops.zeros((batch_size, num_beams, 0), "bool")
        if with_coverage:
            cache["coverage"] = ops.zeros((batch_size, num_beams, source_length), "float32")
        return cache

    def prepare_step(self):
        """Return what every `step` needs of the weights, in the form it needs."""
        return [layer.prepare_step() for layer in self.layers]

    def step(self, x, parents, position, weights, cache):
        """Decode one position of each beam at inference; equal to that position of `call`.

        Args:
            x: Scaled token embeddings, (batch, beams, d_model).
            parents: int32 (batch, beams): which beam of the step before each beam continues.
            position: int32 scalar, 0 for the first.
            weights: From `prepare_step`.
            cache: From `start`, or from the step before.

        Returns:
            (batch * beams, d_model); and the cache for the next step.
        """
        _, num_beams, d_model = x.shape
        x = x + self.positions.vectors(ops.expand_dims(position, 0), d_model, x.dtype)
        x = ops.reshape(x, (-1, d_model))  # one product for all beams of all sentences
        next_cache = {**cache, "layers": []}
        self_bias = None  # one beam sees all of its positions
        if num_beams > 1:
            mask = beam_mask(cache["self_attention_mask"], parents)
            next_cache["self_attention_mask"] = mask
            self_bias = attention_bias(mask)
        for layer, layer_weights, layer_cache in zip(
            self.layers, weights, cache["layers"], strict=True
        ):
            x, layer_cache, scores = layer.step(
                x, num_beams, layer_weights, layer_cache, self_bias, cache["source_bias"]
            )
            next_cache["layers"].append(layer_cache)
        if "coverage" in cache:  # of the last layer, the mean of its heads
            newest = ops.mean(ops.cast(scores, "float32"), axis=1)  # (batch, beams, source)
            is_parent = ops.one_hot(parents, num_beams, dtype="float32")
            next_cache["coverage"] = ops.matmul(is_parent, cache["coverage"]) + newest
        return self.leave(x), next_cache

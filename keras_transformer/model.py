"""The Transformer of "Attention Is All You Need" (Vaswani et al. 2017) as a functional model."""

import keras
from keras import ops

from keras_transformer.config import ModelConfig
from keras_transformer.decoder import Decoder
from keras_transformer.embedding import TokenEmbedding
from keras_transformer.encoder import Encoder
from keras_transformer.masks import SourceMask, TargetMask, source_attention_mask


def build_transformer(config: ModelConfig, name: str = "transformer") -> keras.Model:
    """Build the encoder-decoder model (paper 3, figure 1) for `model.fit`.

    Args:
        config: Sizes and options.
        name: Name of the model.

    Returns:
        A functional model from {"source_ids": int32 (batch, source), "target_ids": int32
        (batch, target)} to logits float32 (batch, target, vocabulary): position t scores the token
        after target_ids[:, t]. Padding (id 0) stands at the ends and is never attended to.

    Example:
        >>> model = build_transformer(ModelConfig.preset("tiny", vocab_size=8000))
        >>> model({"source_ids": [[4, 5, 3]], "target_ids": [[2, 6]]}).shape
        TensorShape([1, 2, 8000])
    """
    source_ids = keras.Input((None,), dtype="int32", name="source_ids")
    target_ids = keras.Input((None,), dtype="int32", name="target_ids")

    target_embedding = TokenEmbedding(
        config.vocab_size,
        config.d_model,
        tie_weights=config.tie_weights,
        name="embedding" if config.shares_vocabulary else "target_embedding",
    )
    source_embedding = target_embedding  # one matrix (3.4)
    if config.source_vocab_size:
        source_embedding = TokenEmbedding(
            config.source_vocab_size, config.d_model, name="source_embedding"
        )
    options = {
        "num_heads": config.num_heads,
        "d_ff": config.d_ff,
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "activation": config.activation,
        "pre_norm": config.pre_norm,
        "activation_dropout": config.activation_dropout,
        "learned_positions": config.learned_positions,
    }
    encoder = Encoder(
        config.num_encoder_layers, max_length=config.max_length, name="encoder", **options
    )
    decoder = Decoder(
        config.num_decoder_layers, max_length=config.max_target_length, name="decoder", **options
    )

    source_mask = SourceMask(name="source_mask")(source_ids)
    target_mask = TargetMask(name="target_mask")(target_ids)
    encoder_output = encoder(source_embedding(source_ids), attention_mask=source_mask)
    decoder_output = decoder(
        target_embedding(target_ids),
        encoder_output,
        self_attention_mask=target_mask,
        cross_attention_mask=source_mask,
    )
    logits = target_embedding(decoder_output, reverse=True)
    return keras.Model({"source_ids": source_ids, "target_ids": target_ids}, logits, name=name)


def build_attention_model(model: keras.Model) -> keras.Model:
    """Build a second functional model over the same layers, with attention scores as outputs.

    Args:
        model: From `build_transformer`.

    Returns:
        A model with the same inputs and the outputs "logits" as before, "encoder" (batch, layers,
        heads, source, source), "decoder" (batch, layers, heads, target, target) and "cross"
        (batch, layers, heads, target, source). It computes inference, whatever `training` says.
        A padded query's row has no meaning; a padded key's column is 0.
    """
    parts = Parts(model)
    inputs = {name: model.input[name] for name in ("source_ids", "target_ids")}
    source_mask = parts.source_mask(inputs["source_ids"])
    encoder_output, encoder_scores = _WithScores(parts.encoder, name="encoder_with_scores")(
        parts.source_embedding(inputs["source_ids"]), source_mask
    )
    decoder_output, decoder_scores, cross_scores = _WithScores(
        parts.decoder, name="decoder_with_scores"
    )(
        parts.target_embedding(inputs["target_ids"]),
        encoder_output,
        parts.target_mask(inputs["target_ids"]),
        source_mask,
    )
    outputs = {
        "logits": parts.target_embedding(decoder_output, reverse=True),
        "encoder": encoder_scores,
        "decoder": decoder_scores,
        "cross": cross_scores,
    }
    return keras.Model(inputs, outputs, name=f"{model.name}_attention")


class _WithScores(keras.layers.Layer):
    """Calls a stack's `call_with_scores`, so that a functional model can hold it as one node."""

    def __init__(self, stack, **kwargs):
        super().__init__(**kwargs)
        self.stack = stack

    def call(self, *inputs):
        return self.stack.call_with_scores(*inputs)


class StepDecoder:
    """The same function as the model, one target position at a time.

    Args:
        model: From `build_transformer`; its layers are used, not copied.
    """

    def __init__(self, model: keras.Model):
        self._parts = Parts(model)

    def start(self, source_ids, num_beams=1, with_coverage=False):
        """Encode the source.

        Args:
            source_ids: int32 (batch, source).
            num_beams: How many hypotheses of each sentence each step extends.
            with_coverage: Whether the cache keeps what `log_coverage` needs.

        Returns:
            `step`, a function from
                ids, the newest token of each hypothesis, int32 (batch, beams),
                parents, which hypothesis of the step before each continues, int32 (batch, beams),
                position, int32 scalar, 0 for the start token, and
                the cache of the step before
            to logits float32 (batch, beams, vocabulary) and the cache for the next step; and the
            cache before the first step, a nested structure whose leaves are (batch, ...).
        """
        parts = self._parts
        mask = source_attention_mask(source_ids)
        encoder_output = parts.encoder(
            parts.source_embedding(source_ids), attention_mask=mask, training=False
        )
        # Once a search, not once a step.
        weights = parts.decoder.prepare_step()
        output_kernel = parts.target_embedding.output_kernel()

        def step(ids, parents, position, cache):
            x, cache = parts.decoder.step(
                parts.target_embedding(ids), parents, position, weights, cache
            )
            logits = ops.matmul(ops.cast(x, "float32"), output_kernel)
            return ops.reshape(logits, (-1, num_beams, logits.shape[-1])), cache

        return step, parts.decoder.start(encoder_output, mask, num_beams, with_coverage)

    @staticmethod
    def log_coverage(cache):
        """Return how well each hypothesis has looked at its source (Wu et al. 2016, equation 14).

        Attention is that of the last layer, the mean of its heads.

        Args:
            cache: Of a search started `with_coverage`.

        Returns:
            float32 (batch, beams): the sum over source tokens of log(min(attention, 1)), 0 at most.
        """
        logs = ops.log(ops.clip(cache["coverage"], 1e-9, 1.0))
        return ops.sum(ops.where(cache["source_bias"] == 0, logs, 0.0), axis=-1)


class Parts:
    """The layers of a built model, by what they are."""

    def __init__(self, model: keras.Model):
        shares_embedding = any(layer.name == "embedding" for layer in model.layers)
        self.source_embedding, self.target_embedding = (
            model.get_layer("embedding" if shares_embedding else f"{side}_embedding")
            for side in ("source", "target")
        )
        self.source_mask = model.get_layer("source_mask")
        self.target_mask = model.get_layer("target_mask")
        self.encoder = model.get_layer("encoder")
        self.decoder = model.get_layer("decoder")

"""Writes a run as a CTranslate2 model, to serve on CPUs without TensorFlow."""

from pathlib import Path

import numpy as np
import tensorflow as tf
from ctranslate2.specs import common_spec, transformer_spec
from keras import ops

from keras_transformer.config import PAD_ID, SOURCE_TOKENIZER_FILE, TOKENIZER_FILE
from keras_transformer.decoder import DecoderLayer
from keras_transformer.embedding import sinusoid
from keras_transformer.model import Parts
from keras_transformer.tokenizer import Tokenizer
from keras_transformer.translator import Translator

_ACTIVATIONS = {
    "relu": common_spec.Activation.RELU,
    "gelu": common_spec.Activation.GELU,
    "silu": common_spec.Activation.SWISH,
}
# Sinusoids go on without end, CTranslate2's table doesn't: it cuts a source at 1,024 tokens and
# stops a translation at 256 unless asked otherwise.
_SINUSOIDS = 1025


def save(translator: Translator, folder: Path, quantization: str = "float32") -> None:
    """Write a translator's weights, vocabulary and tokenizer into the empty `folder`.

    CTranslate2 adds the start and end tokens itself: it takes and gives the tokenizer's pieces.

    Args:
        translator: What to export; its beam size and length penalty are options of each call there.
        folder: An existing folder.
        quantization: How the weights are stored, a name of CTranslate2's.
    """
    parts = Parts(translator.model)
    spec = transformer_spec.TransformerSpec.from_config(
        (parts.encoder.num_layers, parts.decoder.num_layers),
        parts.encoder.num_heads,
        pre_norm=parts.encoder.pre_norm,
        activation=_ACTIVATIONS[parts.encoder.activation],
    )
    spec.config.add_source_eos = True
    spec.config.layer_norm_epsilon = parts.encoder.layers[0].feed_forward_residual.norm.epsilon
    # Ours: CTranslate2 cuts at its own `max_input_length`, which a learned table may not reach.
    spec.config.add_attribute("max_source_length", translator.max_source_length)
    source, target = parts.source_embedding, parts.target_embedding
    spec.encoder.embeddings[0].weight = _array(source.embeddings)
    spec.decoder.embeddings.weight = _array(target.embeddings)
    spec.decoder.projection.weight = _array(
        target.embeddings if target.tie_weights else ops.transpose(target.reverse_embeddings)
    )
    never = np.zeros(target.input_dim, "float32")
    never[PAD_ID] = -1e4  # our search never chooses padding; this fits 16 bits, too
    spec.decoder.projection.bias = never
    _set_stack(spec.encoder, parts.encoder, source.output_dim)
    _set_stack(spec.decoder, parts.decoder, target.output_dim)
    spec.register_source_vocabulary(_pieces(translator.source_tokenizer))
    spec.register_target_vocabulary(_pieces(translator.tokenizer))
    spec.validate()
    spec.optimize(quantization=quantization)
    spec.save(str(folder))
    folder.joinpath(TOKENIZER_FILE).write_bytes(translator.tokenizer.model)
    if translator.source_tokenizer is not translator.tokenizer:
        folder.joinpath(SOURCE_TOKENIZER_FILE).write_bytes(translator.source_tokenizer.model)


def _set_stack(spec, stack, d_model) -> None:
    """Copy an encoder or a decoder."""
    positions = stack.positions
    spec.position_encodings.encodings = _array(
        positions.table if positions.learned else sinusoid(np.arange(_SINUSOIDS), d_model)
    )
    if stack.norm:
        _set_norm(spec.layer_norm, stack.norm)
    for layer_spec, layer in zip(spec.layer, stack.layers, strict=True):
        attention = layer.self_attention
        projections = (attention.query_dense, attention.key_dense, attention.value_dense)
        _set_linear(layer_spec.self_attention.linear[0], *projections)
        _set_linear(layer_spec.self_attention.linear[1], attention.output_dense)
        _set_norm(layer_spec.self_attention.layer_norm, layer.self_attention_residual.norm)
        if isinstance(layer, DecoderLayer):
            attention = layer.cross_attention
            _set_linear(layer_spec.attention.linear[0], attention.query_dense)
            _set_linear(layer_spec.attention.linear[1], attention.key_dense, attention.value_dense)
            _set_linear(layer_spec.attention.linear[2], attention.output_dense)
            _set_norm(layer_spec.attention.layer_norm, layer.cross_attention_residual.norm)
        _set_linear(layer_spec.ffn.linear_0, layer.feed_forward.inner)
        _set_linear(layer_spec.ffn.linear_1, layer.feed_forward.outer)
        _set_norm(layer_spec.ffn.layer_norm, layer.feed_forward_residual.norm)


def _set_linear(spec, *projections) -> None:
    """Copy projections of the same input, one under the other: (outputs, inputs) in CTranslate2."""
    kernels, biases = [], []
    for projection in projections:
        bias = _array(projection.bias).reshape(-1)
        kernels.append(_array(projection.kernel).reshape(-1, bias.size).T)
        biases.append(bias)
    spec.weight = np.concatenate(kernels)
    spec.bias = np.concatenate(biases)


def _set_norm(spec, norm) -> None:
    spec.gamma = _array(norm.gamma)
    spec.beta = _array(norm.beta)


def _array(weight) -> np.ndarray:
    return np.asarray(ops.convert_to_numpy(weight), "float32")


def _pieces(tokenizer: Tokenizer) -> list[str]:
    return [piece.decode() for piece in tokenizer.pieces(tf.range(tokenizer.vocab_size)).numpy()]

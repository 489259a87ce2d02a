"""What a model looks at: the attention weights behind references and its own translations."""

from collections.abc import Sequence
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.compiled_search import pad_width
from keras_transformer.config import PAD_ID
from keras_transformer.model import build_attention_model
from keras_transformer.tokenizer import Tokenizer
from keras_transformer.translator import Translator, decoder_input


class Attention(NamedTuple):
    """The attention of one sentence pair, without padding.

    Attributes:
        source: Pieces of the source, with the end token.
        target_input: Pieces that the decoder reads: the start token, then the target.
        target: Pieces that it is to predict: `target_input` one step ahead, with the end token.
        text: The target as text.
        encoder: float32 (layers, heads, source, source).
        decoder: float32 (layers, heads, target_input, target_input).
        cross: float32 (layers, heads, target, source).
    """

    source: list[str]
    target_input: list[str]
    target: list[str]
    text: str
    encoder: np.ndarray
    decoder: np.ndarray
    cross: np.ndarray


class Inspector:
    """Looks into a translator's model, which it shares and does not change.

    Args:
        translator: Whose model, tokenizers and search are used.

    Example:
        >>> (attention,) = Inspector(translator).translations(["你好。"])
        >>> attention.cross.shape  # (layers, heads, target, source)
        (2, 4, 3, 4)
    """

    def __init__(self, translator: Translator):
        self.translator = translator
        model = build_attention_model(translator.model)
        if keras.backend.backend() != "tensorflow":
            model.make_predict_function()
            self._scores = lambda source_ids, target_ids: model.predict_on_batch(
                {
                    "source_ids": pad_width(source_ids.numpy(), translator.max_source_length),
                    "target_ids": pad_width(target_ids.numpy(), translator.max_target_length),
                }
            )
            return

        def scores(source_ids, target_ids):
            return model({"source_ids": source_ids, "target_ids": target_ids})

        ids = tf.TensorSpec([None, None], tf.int32)
        self._scores = tf.function(scores, input_signature=[ids, ids], autograph=False)

    def references(self, sources: Sequence[str], references: Sequence[str]) -> list[Attention]:
        """Return the attention for given translations, as in training (teacher forcing)."""
        labels, _ = self.translator.tokenizer.encode(
            tf.constant(references), self.translator.max_target_length
        )
        return self._inspect(sources, labels)

    def translations(self, sources: Sequence[str]) -> list[Attention]:
        """Return the attention for the model's own translations."""
        return self._inspect(sources, self.translator.best_ids(sources))

    def _inspect(self, sources: Sequence[str], labels: tf.Tensor) -> list[Attention]:
        """Return the attention of each source and its target.

        Args:
            sources: Source texts.
            labels: int32 (batch, target): tokens with the end token, then padding.
        """
        translator = self.translator
        source_ids, _ = translator.source_tokenizer.encode(
            tf.constant(sources), translator.max_source_length
        )
        # One step behind the labels. Behind a shorter target stands its end token, which no token
        # before it can see.
        target_ids = decoder_input(labels)
        scores = self._scores(source_ids, target_ids)
        source_pieces = _pieces(translator.source_tokenizer, source_ids)
        input_pieces = _pieces(translator.tokenizer, target_ids)
        target_pieces = _pieces(translator.tokenizer, labels)
        texts = translator.tokenizer.decode(labels).numpy()
        encoder, decoder, cross = (
            np.asarray(scores[name], np.float32) for name in ("encoder", "decoder", "cross")
        )
        found = []
        for i, (source, target) in enumerate(zip(source_pieces, target_pieces, strict=True)):
            s, t = len(source), len(target)
            found.append(
                Attention(
                    source,
                    input_pieces[i][:t],
                    target,
                    texts[i].decode(errors="replace"),
                    encoder[i, :, :, :s, :s],
                    decoder[i, :, :, :t, :t],
                    cross[i, :, :, :t, :s],
                )
            )
        return found


def _pieces(tokenizer: Tokenizer, ids: tf.Tensor) -> list[list[str]]:
    """Return the pieces of each row of int32 (batch, length), without padding."""
    return [
        [piece.decode(errors="replace") for piece in row[row_ids != PAD_ID]]
        for row, row_ids in zip(tokenizer.pieces(ids).numpy(), np.asarray(ids), strict=True)
    ]

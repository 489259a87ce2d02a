"""Text to text with an export: a SavedModel, or a CTranslate2 folder."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from keras import ops

from keras_transformer.batching import translate_in_batches
from keras_transformer.config import (
    CONFIG_FILE,
    EXTRA_TARGET_LENGTH,
    SAVED_MODEL_FILE,
    SOURCE_TOKENIZER_FILE,
    TOKENIZER_FILE,
    DecodingConfig,
)
from keras_transformer.decoding import length_penalty
from keras_transformer.translator import Translator

CTRANSLATE2_FILE = "model.bin"


class ExportedTranslator:
    """Translates strings with an exported SavedModel, as a server would.

    Args:
        path: The folder of one version (`DIR/N/V`), or `DIR/N`: then its highest version.

    Raises:
        ValueError: There is no SavedModel, or it lacks the signature `serving_default`.
    """

    def __init__(self, path: str | Path):
        folder = Path(path)
        versions = [child for child in folder.glob("*") if child.name.isdecimal()]
        if versions:
            folder = max(versions, key=lambda child: int(child.name))
        if not (folder / SAVED_MODEL_FILE).is_file():
            raise ValueError(f"{path}: no SavedModel ({SAVED_MODEL_FILE}) is there")
        try:
            self._loaded = tf.saved_model.load(str(folder))
        except (OSError, ValueError, tf.errors.OpError) as error:
            raise ValueError(f"{folder}: {str(error).splitlines()[0]}") from None
        self._folder = folder
        self._translate = self.signature("serving_default")

    def signature(self, name: str):
        """Return the function of a signature.

        Raises:
            ValueError: The SavedModel lacks it.
        """
        if name not in self._loaded.signatures:
            raise ValueError(f"{self._folder}: has no signature {name}")
        return self._loaded.signatures[name]

    def __call__(
        self, texts: Sequence[str], batch_size: int = 64, progress: bool = False
    ) -> list[str]:
        """Translate any number of strings; as `Translator.__call__`."""

        def translate(batch):
            translations = self._translate(text=tf.constant(batch))["translation"].numpy()
            return [translation.decode() for translation in translations]

        return translate_in_batches(translate, texts, batch_size, progress)


class CTranslate2Translator:
    """Translates strings with an exported CTranslate2 folder.

    Args:
        folder: What `python -m export RUN --format ctranslate2` wrote.
        decoding: Options of the search; of them the beam size, the length penalty and
            `no_repeat_ngram` apply.

    Raises:
        ValueError: The folder does not load, or the package `ctranslate2` is missing.
    """

    def __init__(self, folder: str | Path, decoding: DecodingConfig = DecodingConfig()):
        try:
            import ctranslate2
        except ImportError:
            raise ValueError(
                f"{folder} needs the package ctranslate2: pip install ctranslate2"
            ) from None
        import sentencepiece

        folder = Path(folder)
        target = folder / TOKENIZER_FILE
        source = folder / SOURCE_TOKENIZER_FILE
        try:
            config = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
            self._max_source_length = config["max_source_length"]
            self._translator = ctranslate2.Translator(str(folder))
            self._target_pieces = sentencepiece.SentencePieceProcessor(model_file=str(target))
            self._source_pieces = (
                sentencepiece.SentencePieceProcessor(model_file=str(source))
                if source.is_file()
                else self._target_pieces
            )
        except (OSError, RuntimeError, ValueError, KeyError) as error:
            reason = (str(error).splitlines() or [""])[0]
            raise ValueError(f"{folder}: no CTranslate2 folder of ours: {reason}") from None
        self._decoding = decoding

    def __call__(
        self, texts: Sequence[str], batch_size: int = 64, progress: bool = False
    ) -> list[str]:
        """Translate any number of strings; as `Translator.__call__`."""
        options = self._decoding

        def best(result):  # by our length penalty, CTranslate2's formula is another
            lengths = [len(pieces) + 1 for pieces in result.hypotheses]
            penalties = ops.convert_to_numpy(length_penalty(lengths, options.length_penalty))
            return result.hypotheses[np.argmax(result.scores / penalties)]

        def translate(batch):
            texts = [text.decode(errors="replace") for text in batch]
            sources = [
                pieces[: self._max_source_length - 1]
                for pieces in self._source_pieces.encode(texts, out_type=str)
            ]
            # In pieces, without the end tokens: of a text without any, nothing.
            limits = [len(pieces) and len(pieces) + EXTRA_TARGET_LENGTH for pieces in sources]
            if options.max_target_length:
                limits = [min(limit, options.max_target_length - 1) for limit in limits]
            results = self._translator.translate_batch(
                sources,
                beam_size=options.beam_size,
                num_hypotheses=options.beam_size,
                length_penalty=0.0,
                return_scores=True,
                no_repeat_ngram_size=options.no_repeat_ngram,
                min_decoding_length=0,
                max_decoding_length=max(1, *limits),
            )
            return self._target_pieces.decode(
                [best(result)[:limit] for result, limit in zip(results, limits, strict=True)]
            )

        return translate_in_batches(translate, texts, batch_size, progress)


def load_translator(
    path: str | Path, beam_size: int | None = None, length_penalty: float | None = None
) -> Translator | ExportedTranslator | CTranslate2Translator:
    """Return the translator of a run directory or of an export.

    Args:
        path: The folder: of a run, of a SavedModel, or of a CTranslate2 model.
        beam_size: As in DecodingConfig; a SavedModel's is fixed, so None there.
        length_penalty: Likewise.

    Raises:
        ValueError: `path` is none of them, or is not whole, or an option of the search is given for
            a SavedModel.
    """
    options: dict[str, Any] = {"beam_size": beam_size, "length_penalty": length_penalty}
    given = {name: value for name, value in options.items() if value is not None}
    decoding = DecodingConfig(**given)
    folder = Path(path)
    # CTranslate2 has a config.json too.
    if (folder / CTRANSLATE2_FILE).is_file():
        return CTranslate2Translator(folder, decoding)
    if (folder / CONFIG_FILE).is_file():
        return Translator.from_run(folder, decoding)
    if given:
        names = " and ".join(name.replace("_", " ") for name in given)
        raise ValueError(f"{names} can't be set for {path}: fixed at export")
    if not folder.is_dir():
        raise ValueError(f"{path}: no such directory")
    return ExportedTranslator(folder)

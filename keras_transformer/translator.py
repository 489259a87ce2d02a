"""Text to text: tokenizer, model and search together."""

import json
import warnings
from collections.abc import Sequence
from pathlib import Path

import keras
import tensorflow as tf
from tqdm import tqdm

from keras_transformer.config import (
    CONFIG_FILE,
    EXTRA_TARGET_LENGTH,
    PAD_ID,
    SOURCE_TOKENIZER_FILE,
    TOKENIZER_FILE,
    WEIGHTS_FILE,
    ModelConfig,
)
from keras_transformer.decoding import Hypotheses, beam_search, greedy_search
from keras_transformer.model import StepDecoder, build_transformer
from keras_transformer.tokenizer import Tokenizer

SAVED_MODEL_FILE = "saved_model.pb"


class Translator:
    """Translates strings with a model.

    Args:
        model: From `build_transformer`; used, not copied, so that it may train on.
        tokenizer: Of the target, and of the source unless `source_tokenizer` is given.
        source_tokenizer: Of a separate source vocabulary.
        max_length: Longest source in tokens with the end token; what is longer is cut.
        beam_size: Hypotheses to keep; 1 searches greedily.
        length_penalty: Alpha of the length penalty (paper 6.1).

    Raises:
        ValueError: An argument is outside its range.

    Example:
        >>> translator = Translator.from_run("runs/demo")
        >>> translator(["你好。"])
        ['Hello.']
    """

    def __init__(
        self,
        model: keras.Model,
        tokenizer: Tokenizer,
        source_tokenizer: Tokenizer | None = None,
        max_length: int = 256,
        beam_size: int = 4,
        length_penalty: float = 0.6,
    ):
        if beam_size < 1:
            raise ValueError(f"beam_size must be at least 1, received {beam_size}")
        if length_penalty < 0:
            raise ValueError(f"length_penalty must not be negative, received {length_penalty}")
        self.model = model
        self.tokenizer = tokenizer
        self.source_tokenizer = source_tokenizer or tokenizer
        self.max_length = max_length
        self.beam_size = beam_size
        self.length_penalty = length_penalty
        self._decoder = StepDecoder(model)
        # No AutoGraph here or at export: no Python statement depends on a tensor, and it would read
        # the source again, which may have changed since a long run began.
        self._n_best = tf.function(
            self.n_best,
            input_signature=[tf.TensorSpec([None], tf.string, name="text")],
            autograph=False,
        )

    @classmethod
    def from_run(
        cls, run: str | Path, beam_size: int = 4, length_penalty: float = 0.6
    ) -> "Translator":
        """Return the translator of a run directory, with its best weights.

        Raises:
            ValueError: The directory lacks a file, or one does not fit; the message names it.
        """
        run = Path(run)
        if not run.is_dir():
            raise ValueError(f"{run}: no such run directory")
        for name in (CONFIG_FILE, TOKENIZER_FILE, WEIGHTS_FILE):
            if not (run / name).is_file():
                raise ValueError(f"{run / name}: no such file; is {run} a run directory?")
        config = read_model_config(run)
        model = build_transformer(config)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of what doesn't fit, before the error about it
                model.load_weights(run / WEIGHTS_FILE)
        except (OSError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise ValueError(
                f"{run / WEIGHTS_FILE}: does not load into the model of {CONFIG_FILE}: {reason}"
            ) from None
        source_tokenizer = (
            None
            if config.shares_vocabulary
            else _read_tokenizer(run / SOURCE_TOKENIZER_FILE, config.source_vocab_size)
        )
        return cls(
            model,
            _read_tokenizer(run / TOKENIZER_FILE, config.vocab_size),
            source_tokenizer,
            max_length=config.max_length,
            beam_size=beam_size,
            length_penalty=length_penalty,
        )

    def search(self, text: tf.Tensor) -> tuple[Hypotheses, tf.Tensor]:
        """Find the best translations, as ids; a graph function.

        Args:
            text: string (batch,).

        Returns:
            The hypotheses, `beam_size` for each text; and bool (batch,), whether a text was cut.
        """
        source_ids, is_cut = self.source_tokenizer.encode(text, self.max_length)
        lengths = tf.reduce_sum(tf.cast(source_ids != PAD_ID, tf.int32), axis=1)
        source, cache = self._decoder.start(source_ids, self.beam_size)

        def step(ids, position, cache):
            return self._decoder.step(ids, position, cache, source)

        limits = lengths + EXTRA_TARGET_LENGTH
        if self.beam_size == 1:
            return greedy_search(step, cache, limits, self.length_penalty), is_cut
        return beam_search(step, cache, limits, self.beam_size, self.length_penalty), is_cut

    def n_best(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        """Translate, with all hypotheses; a graph function.

        Args:
            text: string (batch,). A text without any token has empty translations.

        Returns:
            "translations" string (batch, beam_size) and "scores" float32 (batch, beam_size), best
            first; "num_tokens" int32 (batch, beam_size), with the end token; "ids" int32 (batch,
            beam_size, target), as `search` finds them; "truncated" bool (batch,).
        """
        hypotheses, is_cut = self.search(text)
        ids = hypotheses.ids  # (batch, beams, target)
        shape = tf.shape(ids)
        translations = self.tokenizer.decode(tf.reshape(ids, [shape[0] * shape[1], shape[2]]))
        translations = tf.reshape(translations, [shape[0], self.beam_size])
        is_empty = self.source_tokenizer.tokenize(text).row_lengths() == 0
        return {
            "translations": tf.where(is_empty[:, tf.newaxis], "", translations),
            "scores": hypotheses.scores,
            "num_tokens": hypotheses.lengths,
            "ids": ids,
            "truncated": is_cut,
        }

    def translate(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        """Translate; a graph function.

        Args:
            text: string (batch,).

        Returns:
            The best hypothesis of each text: "translation" string, "score" float32, "num_tokens"
            int32, and "truncated" bool, each (batch,).
        """
        best = self.n_best(text)
        return {
            "translation": best["translations"][:, 0],
            "score": best["scores"][:, 0],
            "num_tokens": best["num_tokens"][:, 0],
            "truncated": best["truncated"],
        }

    def __call__(
        self, texts: Sequence[str], batch_size: int = 64, progress: bool = False
    ) -> list[str]:
        """Translate any number of strings, in batches of similar length.

        Args:
            texts: Source strings.
            batch_size: Sentences translated at once.
            progress: Show a progress bar on stderr.

        Returns:
            One translation for each, in the same order.
        """
        return translate_in_batches(
            lambda batch: self._n_best(batch)["translations"][:, 0], texts, batch_size, progress
        )

    def best_ids(self, texts: Sequence[str]) -> tf.Tensor:
        """Translate strings, as one batch, and return ids instead of text.

        Returns:
            int32 (batch, target): tokens with the end token, then padding.
        """
        return self._n_best(tf.constant(texts))["ids"][:, 0]


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
        return translate_in_batches(
            lambda batch: self._translate(text=batch)["translation"], texts, batch_size, progress
        )


def load_translator(
    path: str | Path, beam_size: int | None = None
) -> "Translator | ExportedTranslator":
    """Return the translator of a run directory or of an exported SavedModel.

    Args:
        path: Either folder.
        beam_size: Hypotheses to keep (default 4); a SavedModel's is fixed.

    Raises:
        ValueError: `path` is neither, or is not whole, or `beam_size` is given for a SavedModel.
    """
    if (Path(path) / CONFIG_FILE).is_file():
        return Translator.from_run(path, beam_size=4 if beam_size is None else beam_size)
    if beam_size is not None:
        raise ValueError(f"beam size can't be set for {path}: it is fixed at export")
    if not Path(path).is_dir():
        raise ValueError(f"{path}: no such directory")
    return ExportedTranslator(path)


def translate_in_batches(
    translate, texts: Sequence[str], batch_size: int = 64, progress: bool = False
) -> list[str]:
    """Apply `translate`, string (batch,) -> string (batch,), to batches of similar length."""
    translations = [""] * len(texts)
    encoded = [text.encode(errors="surrogatepass") for text in texts]  # lone ones: invalid UTF-8
    by_length = sorted(range(len(texts)), key=lambda i: len(encoded[i]))
    with tqdm(total=len(texts), unit="sentence", disable=not progress, leave=False) as bar:
        for start in range(0, len(texts), batch_size):
            chosen = by_length[start : start + batch_size]
            batch = translate(tf.constant([encoded[i] for i in chosen])).numpy()
            for i, translation in zip(chosen, batch, strict=True):
                translations[i] = translation.decode()
            bar.update(len(chosen))
    return translations


def read_model_config(run: Path) -> ModelConfig:
    """Return the model configuration of a run directory.

    Raises:
        ValueError: `config.json` is no such file; the message names it.
    """
    path = run / CONFIG_FILE
    try:
        return ModelConfig.from_dict(json.loads(path.read_text(encoding="utf-8"))["model"])
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    except KeyError as error:
        raise ValueError(f"{path}: has no key {error}") from None
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from None


def _read_tokenizer(path: Path, vocab_size: int | None) -> Tokenizer:
    tokenizer = Tokenizer.from_file(path)
    if tokenizer.vocab_size != vocab_size:
        raise ValueError(
            f"{path}: has {tokenizer.vocab_size} pieces, the model of {CONFIG_FILE} {vocab_size}"
        )
    return tokenizer

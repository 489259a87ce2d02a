"""Text to text: tokenizer, model and search together."""

import json
import warnings
from collections.abc import Sequence
from pathlib import Path

import keras
import tensorflow as tf

from keras_transformer.batching import translate_in_batches
from keras_transformer.compiled_search import CompiledGreedySearch
from keras_transformer.config import (
    CONFIG_FILE,
    EXTRA_TARGET_LENGTH,
    PAD_ID,
    SOURCE_TOKENIZER_FILE,
    START_ID,
    TOKENIZER_FILE,
    WEIGHTS_FILE,
    DecodingConfig,
    ModelConfig,
)
from keras_transformer.decoding import (
    Hypotheses,
    beam_search,
    greedy_search,
    length_penalty,
    sample,
)
from keras_transformer.model import StepDecoder, build_attention_model, build_transformer
from keras_transformer.segmentation import join_sentences, split_sentences
from keras_transformer.tokenizer import Tokenizer


class Translator:
    """Translates strings with a model.

    Called with strings it gives strings. The other methods are graph functions, on string tensors:
    they become the signatures of an export.

    Args:
        model: From `build_transformer`; used, not copied, so that it may train on.
        tokenizer: Of the target, and of the source unless `source_tokenizer` is given.
        source_tokenizer: Of a separate source vocabulary.
        max_length: Longest source in tokens with the end token that the model takes; what is longer
            is cut.
        decoding: Options of the search.

    Raises:
        ValueError: The backend is not TensorFlow, and the search not the greedy one.

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
        decoding: DecodingConfig = DecodingConfig(),
    ):
        self.model = model
        self.tokenizer = tokenizer
        self.source_tokenizer = source_tokenizer or tokenizer
        self.decoding = decoding
        self.max_source_length = min(max_length, decoding.max_source_length or max_length)
        self.max_target_length = max_length + EXTRA_TARGET_LENGTH
        if decoding.max_target_length:
            self.max_target_length = min(self.max_target_length, decoding.max_target_length)
        self._decoder = StepDecoder(model)
        self._translate = self._best
        self._compiled_search = None
        if keras.backend.backend() == "tensorflow":
            # No AutoGraph here or at export: no Python statement depends on a tensor, and it would
            # read the source again, which may have changed since a long run began.
            self._translate = tf.function(
                self._best,
                input_signature=[tf.TensorSpec([None], tf.string, name="text")],
                autograph=False,
            )
        elif decoding.beam_size == 1 and not decoding.no_repeat_ngram:
            self._compiled_search = CompiledGreedySearch(
                model, self.max_source_length, self.max_target_length, decoding.length_penalty
            )
        else:
            raise ValueError(
                f"beam_size must be 1 and no_repeat_ngram 0 on the {keras.backend.backend()} "
                f"backend, received {decoding.beam_size} and {decoding.no_repeat_ngram}; weights "
                "trained there translate on the other with KERAS_BACKEND=tensorflow"
            )

    @classmethod
    def from_run(cls, run: str | Path, decoding: DecodingConfig = DecodingConfig()) -> "Translator":
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
            decoding=decoding,
        )

    def translate(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        """Translate.

        Args:
            text: string (batch,).

        Returns:
            The best hypothesis of each text: "translation" string, "score" float32, "num_tokens"
            int32, and "truncated" bool, each (batch,).
        """
        best = self._best(text)
        return {name: best[name] for name in ("translation", "score", "num_tokens", "truncated")}

    def n_best(self, text: tf.Tensor, num_best: int | None = None) -> dict[str, tf.Tensor]:
        """Translate, with several hypotheses.

        Args:
            text: string (batch,). A text without any token has empty translations.
            num_best: Hypotheses N for each text, `beam_size` at most; default as configured.

        Returns:
            "translations" string (batch, N) and "scores" float32 (batch, N), best first;
            "num_tokens" int32 (batch, N), with the end token; "truncated" bool (batch,). With
            segmentation, hypothesis n is made of the n-th of each sentence, and its score is of
            their probabilities and lengths together; without, there is also "ids" int32 (batch, N,
            target).
        """
        num_best = num_best or self.decoding.num_best or self.decoding.beam_size
        if not self.decoding.segment:
            return self._n_best(text, num_best)
        sentences = split_sentences(text)
        best = self._n_best(sentences.flat_values, num_best)
        alpha = self.decoding.length_penalty
        log_probs = best["scores"] * length_penalty(best["num_tokens"], alpha)
        num_tokens = tf.reduce_sum(sentences.with_flat_values(best["num_tokens"]), axis=1)
        log_probs = tf.reduce_sum(sentences.with_flat_values(log_probs), axis=1)
        translations = [
            join_sentences(sentences.with_flat_values(best["translations"][:, n]))
            for n in range(num_best)
        ]
        return {
            "translations": tf.stack(translations, axis=1),
            "scores": log_probs / length_penalty(num_tokens, alpha),
            "num_tokens": num_tokens,
            "truncated": tf.reduce_any(sentences.with_flat_values(best["truncated"]), axis=1),
        }

    def score(self, source: tf.Tensor, target: tf.Tensor) -> dict[str, tf.Tensor]:
        """Score given translations.

        Args:
            source: string (batch,).
            target: string (batch,), the translations.

        Returns:
            "log_prob" float32 (batch,), the sum over the target's tokens with the end token;
            "num_tokens" int32 (batch,), their number. `log_prob` over the length penalty is the
            score of `translate`, where the search made the same tokens of the same string.
        """
        source_ids, _ = self.source_tokenizer.encode(source, self.max_source_length)
        labels, _ = self.tokenizer.encode(target, self.max_target_length)
        logits = self.model({"source_ids": source_ids, "target_ids": decoder_input(labels)})
        log_probs = -tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        is_real = labels != PAD_ID
        return {
            "log_prob": tf.reduce_sum(tf.where(is_real, log_probs, 0.0), axis=1),
            "num_tokens": tf.reduce_sum(tf.cast(is_real, tf.int32), axis=1),
        }

    def attention(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        """Translate, and show where each target token looked. Texts are not segmented.

        Args:
            text: string (batch,).

        Returns:
            "source_tokens" string (batch, source) and "target_tokens" string (batch, target), the
            pieces with the end token; "cross_attention" float32 (batch, layers, heads, target,
            source), a row of weights for the making of each target token; "translation" string
            (batch,). Padding tokens are empty strings, and their weights 0.
        """
        source_ids, _ = self.source_tokenizer.encode(text, self.max_source_length)
        hypotheses = self._search(source_ids)
        ids = hypotheses.ids[:, 0, : tf.reduce_max(hypotheses.lengths)]  # (batch, target)
        with tf.init_scope():  # a model is not built in the graph that uses it
            attention_model = build_attention_model(self.model)
        scores = attention_model({"source_ids": source_ids, "target_ids": decoder_input(ids)})
        is_real = tf.cast(ids != PAD_ID, tf.float32)[:, tf.newaxis, tf.newaxis, :, tf.newaxis]
        return {
            "source_tokens": _pieces(self.source_tokenizer, source_ids),
            "target_tokens": _pieces(self.tokenizer, ids),
            "cross_attention": tf.cast(scores["cross"], tf.float32) * is_real,
            "translation": self.tokenizer.decode(ids),
        }

    def sample(
        self,
        text: tf.Tensor,
        temperature: tf.Tensor,
        top_k: tf.Tensor,
        top_p: tf.Tensor,
        seed: tf.Tensor,
    ) -> dict[str, tf.Tensor]:
        """Translate with tokens drawn at random. Texts are not segmented.

        Args:
            text: string (batch,).
            temperature: float32 (batch,); below 0.0001 counts as 0.0001.
            top_k: int32 (batch,): draw among so many tokens; 0 means all.
            top_p: float32 (batch,): draw among the most probable tokens that have this probability
                together; 1 means all.
            seed: int32 (batch,): the same seed gives the same sample.

        Returns:
            "translation" string and "score" float32, each (batch,).
        """
        source_ids, _ = self.source_tokenizer.encode(text, self.max_source_length)
        step, cache = self._decoder.start(source_ids)
        hypotheses = sample(
            step,
            cache,
            self._limits(source_ids),
            seed,
            tf.maximum(temperature, 1e-4),
            top_k,
            top_p,
            self.decoding.length_penalty,
            self.decoding.no_repeat_ngram,
        )
        return {
            "translation": self.tokenizer.decode(hypotheses.ids[:, 0]),
            "score": hypotheses.scores[:, 0],
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

        def translate(batch):
            translations = self._translate(tf.constant(batch))["translation"].numpy()
            return [translation.decode() for translation in translations]

        return translate_in_batches(translate, texts, batch_size, progress)

    def best_ids(self, texts: Sequence[str]) -> tf.Tensor:
        """Translate strings, as one batch, to ids. Texts are not segmented.

        Returns:
            int32 (batch, target): tokens with the end token, then padding.
        """
        if not self.decoding.segment:  # as in __call__, with the same graph
            return self._translate(tf.constant(texts))["ids"]
        source_ids, _ = self.source_tokenizer.encode(tf.constant(texts), self.max_source_length)
        return self._search(source_ids).ids[:, 0]

    def _best(self, text):
        """Return the first of the n-best, with its ids unless texts are segmented."""
        best = self.n_best(text, num_best=1)
        found = {
            "translation": best["translations"][:, 0],
            "score": best["scores"][:, 0],
            "num_tokens": best["num_tokens"][:, 0],
            "truncated": best["truncated"],
        }
        return found | {"ids": best["ids"][:, 0]} if "ids" in best else found

    def _n_best(self, text, num_best):
        source_ids, is_cut = self.source_tokenizer.encode(text, self.max_source_length)
        hypotheses = self._search(source_ids, num_best)
        shape = tf.shape(hypotheses.ids)  # (batch, hypotheses, target)
        translations = self.tokenizer.decode(
            tf.reshape(hypotheses.ids, [shape[0] * num_best, shape[2]])
        )
        return {
            "translations": tf.reshape(translations, [-1, num_best]),
            "scores": hypotheses.scores,
            "num_tokens": hypotheses.lengths,
            "ids": hypotheses.ids,
            "truncated": is_cut,
        }

    def _search(self, source_ids, num_best=1) -> Hypotheses:
        """Return the best hypotheses as ids, for int32 (batch, source)."""
        options = self.decoding
        limits = self._limits(source_ids)
        if self._compiled_search:  # text is TensorFlow's whatever the backend
            found = self._compiled_search(source_ids.numpy(), limits.numpy())
            return Hypotheses(*map(tf.constant, found))
        if options.beam_size == 1:
            step, cache = self._decoder.start(source_ids)
            return greedy_search(
                step, cache, limits, options.length_penalty, options.no_repeat_ngram
            )
        step, cache = self._decoder.start(
            source_ids, options.beam_size, with_coverage=bool(options.coverage_penalty)
        )

        def coverage_penalty(cache):
            return options.coverage_penalty * self._decoder.log_coverage(cache)

        return beam_search(
            step,
            cache,
            limits,
            options.beam_size,
            options.length_penalty,
            num_best,
            options.no_repeat_ngram,
            coverage_penalty if options.coverage_penalty else None,
        )

    def _limits(self, source_ids):
        """Return how long each translation may be; a source of no token ends at once."""
        lengths = tf.reduce_sum(tf.cast(source_ids != PAD_ID, tf.int32), axis=1)
        limits = tf.minimum(lengths + EXTRA_TARGET_LENGTH, self.max_target_length)
        return tf.where(lengths > 1, limits, 1)


def decoder_input(labels):
    """Return the decoder's input whose outputs are `labels`: the start token and all but one."""
    return tf.pad(labels, [[0, 0], [1, 0]], constant_values=START_ID)[:, :-1]


def _pieces(tokenizer, ids):
    return tf.where(ids == PAD_ID, "", tokenizer.pieces(ids))


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

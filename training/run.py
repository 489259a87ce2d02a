"""One run from corpus to run directory: vocabulary, batches, model, `fit`, results."""

import dataclasses
import json
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import keras

from keras_transformer.config import (
    CONFIG_FILE,
    RESULTS_FILE,
    SOURCE_TOKENIZER_FILE,
    TOKENIZER_FILE,
    WEIGHTS_FILE,
    DecodingConfig,
    ModelConfig,
)
from keras_transformer.model import build_transformer
from keras_transformer.tokenizer import Tokenizer
from keras_transformer.translator import Translator
from training import checkpoints, phrasebook
from training.callbacks import (
    AttentionSummary,
    Embeddings,
    Evaluation,
    Scalars,
    States,
    TimeLimit,
)
from training.config import RunConfig, TrainingConfig
from training.corpus import CorpusReport, read_pairs
from training.data import Batches, tokenize_corpus
from training.loss import MaskedCrossentropy
from training.metrics import TokenAccuracy
from training.probes import choose_probes, read_probes
from training.schedule import WarmupInverseSqrt
from training.vocabulary import train_vocabulary

CHECKPOINTS_FOLDER = "checkpoints"
LOGS_FOLDER = "logs"
ATTENTION_FOLDER = "logs/attention"
EXPORTED_SENTENCES = 32
MAX_STEPS_BETWEEN_EVALUATIONS = 1000


def prepare(config: RunConfig, output: Path, resume: bool, started: float) -> "Run":
    """Make everything that can be wrong with a run before its first step.

    Args:
        config: What to train, and how.
        output: The run directory; written: options and vocabulary.
        resume: Go on with the run that is there, if there is one.
        started: When the run began, on the clock of `time.monotonic`; max_minutes counts from it.

    Raises:
        ValueError: A corpus or an option is no good; the message says which.
        OSError: The directory can't be written.
    """
    options = config.training
    keras.utils.set_random_seed(options.seed)  # before any tokenizer: see Tokenizer
    keras.config.set_dtype_policy(options.mixed_precision or "float32")
    tokenizers = _read_or_train_tokenizers(config, output, resume)
    source_tokenizer, tokenizer = tokenizers[0], tokenizers[-1]
    model_config = config.model_config(
        tokenizer.vocab_size, source_tokenizer.vocab_size if len(tokenizers) == 2 else None
    )
    batches = {}
    for split in ("train", "valid"):
        corpus = tokenize_corpus(
            read_split(options, split), source_tokenizer, tokenizer, model_config.max_length
        )
        print(
            f"{split}: {len(corpus):,} pairs; left out, longer than {model_config.max_length} "
            f"tokens: {corpus.num_too_long:,}"
        )
        if not len(corpus):
            raise ValueError(
                f"{getattr(options, split)}: no pair of at most max_length "
                f"{model_config.max_length} tokens"
            )
        batches[split] = Batches(corpus, options.batch_tokens, options.seed)
    model = build_transformer(model_config)
    compile_model(model, model_config, options)
    print(f"{model.count_params():,} parameters, vocabulary of {tokenizer.vocab_size:,} pieces")
    state = checkpoints.newest_state(output / CHECKPOINTS_FOLDER) if resume else None
    earlier = {}
    if state:
        checkpoints.load_state(state, model)
        earlier = checkpoints.read_progress(state)
        print(f"resumed from {state}")
    effective = {"model": model_config.to_dict(), "training": dataclasses.asdict(options)}
    _write_json(output / CONFIG_FILE, effective)
    translator = Translator(
        model, tokenizer, source_tokenizer, model_config.max_length, DecodingConfig(beam_size=1)
    )
    valid_pairs = list(islice(read_split(options, "valid"), options.evaluation_sentences))
    evaluation = Evaluation(
        translator,
        valid_pairs,
        batches["valid"].one_pass(),
        output / WEIGHTS_FILE,
        earlier.get("best_bleu", -1.0),
    )
    attention = None
    if options.attention_every_steps:
        path = options.attention_probes
        attention = AttentionSummary(
            translator,
            read_probes(path) if path else choose_probes(valid_pairs),
            output / ATTENTION_FOLDER,
            options.attention_every_steps,
        )
    hyperparameters = {
        name: value
        for name, value in (model_config.to_dict() | dataclasses.asdict(options)).items()
        if isinstance(value, bool | int | float | str)
    }
    scalars = Scalars(output / LOGS_FOLDER, options.log_every_steps, hyperparameters)
    return Run(
        options, output, model, batches["train"], evaluation, scalars, attention, earlier, started
    )


class Run:
    """A prepared run: `fit` trains, evaluates, and writes the run directory.

    Args:
        options: How to train.
        output: The run directory.
        model: Compiled; restored, if the run is resumed.
        batches: The training corpus.
        evaluation: The validation corpus.
        scalars: Writes to TensorBoard.
        attention: Watches probe sentences; None for none.
        earlier: The results so far of a resumed run.
        started: When this part of the run began, on the clock of `time.monotonic`.
    """

    def __init__(
        self,
        options: TrainingConfig,
        output: Path,
        model: keras.Model,
        batches: Batches,
        evaluation: Evaluation,
        scalars: Scalars,
        attention: AttentionSummary | None,
        earlier: dict[str, Any],
        started: float,
    ):
        self.options = options
        self.output = output
        self.model = model
        self.batches = batches
        self.evaluation = evaluation
        self.scalars = scalars
        self.attention = attention
        self.earlier = earlier
        self.started = started
        self.padding = batches.padding_share()

    def fit(self) -> dict[str, Any]:
        """Train until max_steps or max_minutes; each Keras epoch is the way to an evaluation.

        Returns:
            What `results.json` holds.
        """
        options, model = self.options, self.model
        source_padding, target_padding = self.padding
        print(
            f"{self.batches.steps_per_pass:,} batches a pass, of up to {options.batch_tokens:,} "
            f"tokens; padding is {target_padding:.1%} of the target positions and "
            f"{source_padding:.1%} of the source positions"
        )
        callbacks = self._callbacks()
        every = options.evaluate_every_steps or min(
            self.batches.steps_per_pass, MAX_STEPS_BETWEEN_EVALUATIONS
        )
        step = int(model.optimizer.iterations)
        while step < options.max_steps and not model.stop_training:
            epochs, steps = (options.max_steps - step) // every, every
            if step % every or not epochs:  # in the middle of an epoch, or at the start of the last
                epochs, steps = 1, min(every - step % every, options.max_steps - step)
            first = step // every
            model.fit(
                self.batches.dataset(step),
                initial_epoch=first,
                epochs=first + epochs,
                steps_per_epoch=steps,
                shuffle=False,
                verbose=1 if sys.stdout.isatty() else 2,  # a bar, or a line for each epoch
                callbacks=callbacks,
            )
            step = int(model.optimizer.iterations)
        results = self.results()
        print(
            f"done: {step:,} steps in {results['minutes']:.1f} minutes, "
            f"{results['tokens_per_second']:,.0f} target tokens per second, "
            f"best validation BLEU {results['best_bleu']:.2f}; run directory {self.output}"
        )
        return results

    def results(self) -> dict[str, Any]:
        """Return figures of the run so far, the part before a resume included."""
        seconds = self.earlier.get("seconds", 0.0) + self.scalars.seconds
        num_tokens = self.earlier.get("num_tokens", 0.0) + self.scalars.num_tokens
        return {
            "best_bleu": self.evaluation.best_bleu,
            "steps": int(self.model.optimizer.iterations),
            "minutes": self.earlier.get("minutes", 0.0) + (time.monotonic() - self.started) / 60,
            "num_tokens": num_tokens,
            "seconds": seconds,
            "tokens_per_second": num_tokens / max(seconds, 1e-9),
            "parameters": self.model.count_params(),
            "source_padding": self.padding[0],
            "target_padding": self.padding[1],
            # What `python -m export` checks its work on.
            "validation_sources": self.evaluation.sources[:EXPORTED_SENTENCES],
        }

    def _callbacks(self) -> list[keras.callbacks.Callback]:
        def write_results(epoch, logs):
            _write_json(self.output / RESULTS_FILE, self.results())

        callbacks = [
            self.evaluation,
            self.scalars,
            States(self.output / CHECKPOINTS_FOLDER, self.results),
            keras.callbacks.LambdaCallback(on_epoch_end=write_results),
        ]
        if self.attention:
            callbacks.append(self.attention)
        callbacks.append(Embeddings(self.evaluation.translator, self.output / LOGS_FOLDER))
        if self.options.max_minutes:
            end = self.started + 60 * self.options.max_minutes
            callbacks.append(TimeLimit(end, self.evaluation))
        return callbacks


def compile_model(model: keras.Model, config: ModelConfig, options: TrainingConfig) -> None:
    """Compile with the paper's optimizer, schedule (5.3) and loss (5.4)."""
    model.compile(
        optimizer=keras.optimizers.Adam(
            WarmupInverseSqrt(config.d_model, options.warmup_steps, options.learning_rate_scale),
            beta_1=0.9,
            beta_2=0.98,
            epsilon=1e-9,
        ),
        loss=MaskedCrossentropy(options.label_smoothing),
        metrics=[TokenAccuracy()],
        jit_compile=False,  # XLA compiles each of the many batch shapes anew
    )
    model.optimizer.build(model.trainable_variables)


def read_split(
    options: TrainingConfig, split: str, report: CorpusReport | None = None
) -> Iterator[tuple[str, str]]:
    """Stream the pairs of the "train" or "valid" corpus."""
    corpus = getattr(options, split)
    return read_pairs(corpus, report=report) if corpus else iter(phrasebook.load(split))


def _read_or_train_tokenizers(config: RunConfig, output: Path, resume: bool) -> list[Tokenizer]:
    """Return the tokenizer of both languages, or those of source and target."""
    options = config.training
    shared = options.shared_vocabulary
    names = [TOKENIZER_FILE] if shared else [SOURCE_TOKENIZER_FILE, TOKENIZER_FILE]
    if resume and all((output / name).is_file() for name in names):
        return [Tokenizer.from_file(output / name) for name in names]
    # Reading everything once here also finds and reports bad lines before anything long begins.
    for split in ("valid", "train") if options.train else ():
        report = CorpusReport()
        for _ in read_split(options, split, report):
            pass
        print("\n".join(report.lines()))
    print(f"training the vocabulary: {options.vocab_size:,} pieces")
    tokenizers = []
    for name in names:
        sides = (0, 1) if shared else (names.index(name),)
        texts = (pair[side] for pair in read_split(options, "train") for side in sides)
        model = train_vocabulary(
            texts, options.vocab_size, options.character_coverage, options.seed
        )
        output.mkdir(parents=True, exist_ok=True)
        (output / name).write_bytes(model)
        tokenizers.append(Tokenizer(model))
    return tokenizers


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

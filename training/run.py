"""One run from corpus to run directory: vocabulary, batches, model, `fit`, results."""

import dataclasses
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
from tqdm import tqdm

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
from training.averaging import CheckpointAverage
from training.callbacks import (
    AttentionSummary,
    Divergence,
    EarlyStop,
    Embeddings,
    Evaluation,
    Interruption,
    Scalars,
    States,
    TimeLimit,
)
from training.config import Process, RunConfig, TrainingConfig
from training.corpus import CorpusReport, check_can_be_read_again, read_pairs
from training.data import Batches, Division, TokenizedCorpus, tokenize_corpus
from training.distribution import Distribution, distribute, on_one_device
from training.events import drop_events_after
from training.loss import MaskedCrossentropy
from training.metrics import TokenAccuracy
from training.optimizer import AveragedAdam, AveragedMuon, Muon, is_kernel
from training.probes import Probe, choose_probes, read_probes
from training.sampling import Segmenter, segment_corpus
from training.schedule import WarmupInverseSqrt
from training.variables import steps_done
from training.vocabulary import (
    MAX_PAIRS,
    extend_vocabulary,
    pieces_of,
    sample,
    train_vocabulary,
)
from training.warm_start import check_shape, copy_weights, read_vocabularies

CHECKPOINTS_FOLDER = "checkpoints"
LOGS_FOLDER = "logs"
ATTENTION_FOLDER = "logs/attention"
EXPORTED_SENTENCES = 32
MAX_STEPS_BETWEEN_EVALUATIONS = 1000
LINES_OF_A_BAD_BATCH = 3


def prepare(
    config: RunConfig,
    output: Path,
    resume: bool,
    started: float,
    process: Process | None = None,
) -> "Run":
    """Make everything that can be wrong with a run before its first step.

    Args:
        config: What to train, and how.
        output: The run directory; written: options and vocabulary.
        resume: Go on with the run that is there, if there is one.
        started: When this process began with the run, on the clock of `time.monotonic`.
        process: This process among those that train together; None if it is alone.

    Raises:
        ValueError: A corpus or an option is no good; the message says which.
        OSError: The directory can't be written.
    """
    options = config.training
    keras.utils.set_random_seed(options.seed)  # before any tokenizer: see Tokenizer
    keras.config.set_dtype_policy(options.mixed_precision or "float32")
    distribution = distribute(options, process)
    is_first, share = distribution.is_first, distribution.share
    has_state = share(
        lambda: resume and checkpoints.newest_state(output / CHECKPOINTS_FOLDER) is not None
    )
    if options.init_from and not has_state:
        sizes = (options.vocab_size, None if options.shared_vocabulary else options.vocab_size)
        check_shape(config.model_config(*sizes), Path(options.init_from))
    valid_pairs = list(read_split(options, "valid"))
    vocabularies = share(lambda: _find_vocabularies(options, output, resume))
    train_pairs: Iterable[tuple[str, str]] = read_split(options, "train")
    if not vocabularies:
        # Not at once: in a small corpus, what it says would only stand before an error message.
        progress_bar = tqdm(train_pairs, "read", unit=" pairs", leave=False, delay=1)
        train_pairs = sample(progress_bar, MAX_PAIRS, options.seed)
        is_all = len(train_pairs) < MAX_PAIRS
        if not is_all:
            check_can_be_read_again(options.train)
        vocabularies = share(partial(_train_vocabularies, options, train_pairs))
        if not is_all:  # a corpus that is larger streams, here again
            train_pairs = read_pairs(options.train)
    if is_first:
        for name, vocabulary in zip(_vocabulary_files(options), vocabularies, strict=True):
            checkpoints.save_bytes(output / name, vocabulary)
    tokenizers = [Tokenizer(vocabulary) for vocabulary in vocabularies]
    source_tokenizer, tokenizer = tokenizers[0], tokenizers[-1]
    model_config = config.model_config(
        tokenizer.vocab_size, None if options.shared_vocabulary else source_tokenizer.vocab_size
    )
    distribution.check_vocabulary(model_config.vocab_size, model_config.source_vocab_size)
    max_length = model_config.max_length
    if options.subword_nbest_size > 1:
        source_segmenter, segmenter = (
            Segmenter(vocabularies[side], options.subword_nbest_size, options.subword_alpha)
            for side in (0, -1)
        )
        corpus = segment_corpus(train_pairs, source_segmenter, segmenter, max_length)
    else:
        corpus = tokenize_corpus(train_pairs, source_tokenizer, tokenizer, max_length)
    valid_corpus = tokenize_corpus(valid_pairs, source_tokenizer, tokenizer, max_length)
    division = distribution.division
    batches = _make_batches(corpus, "train", options, max_length, division)
    valid_batches = _make_batches(valid_corpus, "valid", options, max_length, division)
    effective = {"model": model_config.to_dict(), "training": dataclasses.asdict(options)}
    distribution.check_agreement(
        json.dumps(effective).encode(),
        *vocabularies,
        corpus.source.ids.data,
        corpus.target.ids.data,
    )
    with distribution.scope():
        model = build_transformer(model_config)
        compile_model(model, model_config, options)
    print(f"{model.count_params():,} parameters, vocabulary of {tokenizer.vocab_size:,} pieces")
    restored = checkpoints.restore(output / CHECKPOINTS_FOLDER, model, share) if resume else None
    progress: dict[str, Any] = {}
    if restored:
        state, progress = restored
        print(f"resumed from {state}")
    elif options.init_from:
        run = Path(options.init_from)
        num_pieces = copy_weights(model, model_config, vocabularies, run)
        print(f"weights of {run}; {num_pieces:,} pieces have their embeddings from there")
    if is_first:
        if resume:
            drop_events_after(output / LOGS_FOLDER, steps_done(model) if restored else -1)
        checkpoints.save_json(output / CONFIG_FILE, effective)
    with on_one_device():
        translator = Translator(
            model if distribution.is_one_device else build_transformer(model_config),
            tokenizer,
            source_tokenizer,
            max_length,
            DecodingConfig(beam_size=1),
        )
    probes: Sequence[Probe] = []
    if options.attention_every_steps:
        path = options.attention_probes
        probes = read_probes(path) if path else choose_probes(valid_pairs)
    return Run(
        options,
        output,
        model,
        translator,
        batches,
        valid_batches,
        valid_pairs,
        probes,
        progress,
        started,
        distribution,
    )


class Run:
    """A prepared run: `fit` trains, evaluates, and writes the run directory.

    Args:
        options: How to train.
        output: The run directory.
        model: Compiled; restored, if the run is resumed.
        translator: Over the model, or over a copy on one device.
        batches: The training corpus.
        valid_batches: The validation corpus.
        valid_pairs: And as text.
        probes: Pairs whose attention is watched; none to watch nothing.
        progress: Of the restored state; empty without one.
        started: When this part of the run began, on the clock of `time.monotonic`.
        distribution: Where it computes.
    """

    def __init__(
        self,
        options: TrainingConfig,
        output: Path,
        model: keras.Model,
        translator: Translator,
        batches: Batches,
        valid_batches: Batches,
        valid_pairs: Sequence[tuple[str, str]],
        probes: Sequence[Probe],
        progress: dict[str, Any],
        started: float,
        distribution: Distribution,
    ):
        self.options = options
        self.output = output
        self.distribution = distribution
        self.model = model
        self.translator = translator
        self.batches = batches
        self.num_batches = progress.get("num_batches", 0)  # trained on so far
        # As if the minutes before a resume had just been, without the time between.
        self.started = started - 60 * progress.get("minutes", 0.0)
        self.padding = self.batches.padding_share()
        average: Callable[[], list[np.ndarray]] | None = None
        self.checkpoint_average = None
        if options.average_decay:
            average = getattr(self.model.optimizer, "inner_optimizer", self.model.optimizer).average
        elif options.average_checkpoints > 1:
            self.checkpoint_average = CheckpointAverage(
                output / CHECKPOINTS_FOLDER, options.average_checkpoints
            )
            average = partial(distribution.share, self.checkpoint_average.average)
        self.evaluation = Evaluation(
            translator,
            valid_pairs[: options.evaluation_sentences],
            valid_batches.one_pass(),
            output / WEIGHTS_FILE if distribution.is_first else None,
            options.select_by,
            average,
            progress.get("best"),
            progress.get("num_since_best", 0),
            distribution.share,
            None if translator.model is model else translator.model,
        )
        self.early_stop = EarlyStop(self.evaluation, options.patience)
        if not distribution.is_first:  # what follows writes
            return
        self.scalars = Scalars(
            output / LOGS_FOLDER,
            options.log_every_steps,
            progress.get("scalars"),
            _hyperparameters(output),
        )
        self.attention = None
        if probes:
            with on_one_device():
                self.attention = AttentionSummary(
                    translator, probes, output / ATTENTION_FOLDER, options.attention_every_steps
                )
        self.embeddings = Embeddings(translator, output / LOGS_FOLDER)
        self.states = States(output / CHECKPOINTS_FOLDER, self.progress)

    def fit(self) -> dict[str, Any]:
        """Train until max_steps, max_minutes or an early stop.

        Each Keras epoch is the way to an evaluation.

        Returns:
            What `results.json` holds; nothing in a process that is not the first.

        Raises:
            DivergenceError: The loss is not finite.
            Interrupted: A signal came; the state is saved.
            OSError: The directory can't be written.
        """
        options, model = self.options, self.model
        source_padding, target_padding = self.padding
        print(
            f"{self.batches.steps_per_pass:,} batches a pass, of up to {options.batch_tokens:,} "
            f"tokens; padding is {target_padding:.1%} of the target positions and "
            f"{source_padding:.1%} of the source positions"
        )
        callbacks = self._callbacks()
        per_step = options.gradient_accumulation_steps
        every, last = per_step * self._steps_between_evaluations(), per_step * options.max_steps
        is_over = bool(options.patience) and self.early_stop.is_due()
        can_end = options.max_minutes and self.evaluation.best  # without, there are no weights yet
        if can_end and self.distribution.any(self._minutes() >= options.max_minutes):
            print(f"max_minutes, {options.max_minutes:g}, is used up: give more to go on")
            is_over = True
        while self.num_batches < last and not is_over:
            done = self.num_batches
            epochs, batches = (last - done) // every, every
            if done % every or not epochs:  # in the middle of an epoch, or at the start of the last
                epochs, batches = 1, min(every - done % every, last - done)
            first = done // every
            model.fit(
                self.batches.dataset(done, per_step),
                initial_epoch=first,
                epochs=first + epochs,
                steps_per_epoch=batches,
                shuffle=False,
                verbose=1 if sys.stdout.isatty() else 2,  # a bar, or a line for each epoch
                callbacks=callbacks,
            )
            is_over = model.stop_training
        if not self.distribution.is_first:
            return {}
        results = self.results()
        checkpoints.save_json(self.output / RESULTS_FILE, results)
        print(
            f"done: {results['steps']:,} steps in {results['minutes']:.1f} minutes, "
            f"{results['tokens_per_second']:,.0f} target tokens per second, "
            f"best validation BLEU {results.get('best_bleu', 0.0):.2f}; run directory {self.output}"
        )
        return results

    def progress(self) -> dict[str, Any]:
        """Return what a resumed run must know besides the state of the model."""
        return {
            "num_batches": self.num_batches,
            "minutes": self._minutes(),
            "best": self.evaluation.best,
            "num_since_best": self.evaluation.num_since_best,
            "scalars": self.scalars.progress(),
        }

    def results(self) -> dict[str, Any]:
        """Return figures of the run so far, the part before a resume included."""
        return {
            **{f"best_{name}": value for name, value in self.evaluation.best.items()},
            "steps": steps_done(self.model),
            "minutes": self._minutes(),
            "num_tokens": self.scalars.num_tokens,
            "seconds": self.scalars.seconds,
            "tokens_per_second": self.scalars.num_tokens / max(self.scalars.seconds, 1e-9),
            "parameters": self.model.count_params(),
            "source_padding": self.padding[0],
            "target_padding": self.padding[1],
            # What `python -m export` checks its work on.
            "validation_sources": self.evaluation.sources[:EXPORTED_SENTENCES],
        }

    def _minutes(self) -> float:
        return (time.monotonic() - self.started) / 60

    def _steps_between_evaluations(self) -> int:
        if self.options.evaluate_every_steps:
            return self.options.evaluate_every_steps
        steps_per_pass = -(-self.batches.steps_per_pass // self.options.gradient_accumulation_steps)
        return min(steps_per_pass, MAX_STEPS_BETWEEN_EVALUATIONS)

    def _callbacks(self) -> list[keras.callbacks.Callback]:
        """Return the callbacks in the order in which each relies on the one before."""
        writes = self.distribution.is_first
        callbacks = [
            keras.callbacks.LambdaCallback(on_train_batch_end=self._count_batch),
            Divergence(self._first_lines),
        ]
        if self.checkpoint_average and writes:
            callbacks.append(self.checkpoint_average)
        callbacks.append(self.evaluation)
        if writes:
            callbacks.append(self.scalars)
            if self.attention:
                callbacks.append(self.attention)
            callbacks.append(self.states)  # what was written before it is there for a resumed run
        if self.options.patience:
            callbacks.append(self.early_stop)
        if writes:
            callbacks.append(self.embeddings)
        any_process = self.distribution.any
        if self.options.max_minutes:
            end = self.started + 60 * self.options.max_minutes
            callbacks.append(TimeLimit(end, self.evaluation, any_process))
        save: Callable[[], object] = self.states.save if writes else lambda: None
        return [*callbacks, Interruption(save, any_process=any_process)]

    def _count_batch(self, batch, logs):
        self.num_batches += 1

    def _first_lines(self) -> list[str]:
        """Return the first source lines of the batch just trained on."""
        dataset = self.batches.dataset(
            self.num_batches - 1, self.options.gradient_accumulation_steps
        )
        inputs, *_ = next(iter(dataset))
        ids = inputs["source_ids"][:LINES_OF_A_BAD_BATCH]
        return [text.decode() for text in self.translator.source_tokenizer.decode(ids).numpy()]


def compile_model(model: keras.Model, config: ModelConfig, options: TrainingConfig) -> None:
    """Compile with the paper's schedule (5.3) and loss (5.4), and its optimizer or Muon."""
    per_step = options.gradient_accumulation_steps
    schedule = WarmupInverseSqrt(
        config.d_model, options.warmup_steps, options.learning_rate_scale, per_step
    )
    arguments = {
        "gradient_accumulation_steps": per_step if per_step > 1 else None,
        "weight_decay": options.weight_decay or None,
    }
    is_muon = options.optimizer == "muon"
    optimizer: keras.optimizers.Optimizer
    if options.average_decay:
        averaged = AveragedMuon if is_muon else AveragedAdam
        optimizer = averaged(schedule, options.average_decay, **arguments)
    elif is_muon:
        optimizer = Muon(schedule, **arguments)
    else:
        optimizer = keras.optimizers.Adam(
            schedule, beta_1=0.9, beta_2=0.98, epsilon=1e-9, **arguments
        )
    optimizer.exclude_from_weight_decay(
        [weight for weight in model.trainable_variables if not is_kernel(weight)]
    )
    model.compile(
        optimizer=optimizer,
        loss=MaskedCrossentropy(options.label_smoothing),
        metrics=[TokenAccuracy()],
        # On TensorFlow's, XLA would compile each of the many shapes of batches anew.
        jit_compile=keras.backend.backend() == "jax",
    )
    model.optimizer.build(model.trainable_variables)


def read_split(options: TrainingConfig, split: str) -> Iterator[tuple[str, str]]:
    """Stream the pairs of the "train" or "valid" corpus; report on them at the end."""
    corpus = getattr(options, split)
    if not corpus:
        yield from phrasebook.load(split)
        return
    report = CorpusReport()
    yield from read_pairs(corpus, report=report)
    print("\n".join(report.lines()))


def _hyperparameters(output: Path) -> dict[str, bool | float | str]:
    """Return the effective options of model and training, for TensorBoard."""
    config = json.loads((output / CONFIG_FILE).read_text(encoding="utf-8"))
    return {
        name: value
        for name, value in (config["model"] | config["training"]).items()
        if isinstance(value, bool | int | float | str)
    }


def _vocabulary_files(options: TrainingConfig) -> list[str]:
    """Return the file of the vocabulary of both languages, or those of source and target."""
    shared = options.shared_vocabulary
    return [TOKENIZER_FILE] if shared else [SOURCE_TOKENIZER_FILE, TOKENIZER_FILE]


def _find_vocabularies(options: TrainingConfig, output: Path, resume: bool) -> list[bytes]:
    """Return the vocabularies of a run to go on with, or to keep; [] if they are to be trained."""
    files = [output / name for name in _vocabulary_files(options)]
    if resume and all(file.is_file() for file in files):
        return [file.read_bytes() for file in files]
    if options.init_from and options.init_vocabulary == "keep":
        vocabularies = read_vocabularies(Path(options.init_from))
        missing = set(options.tags) - set(pieces_of(vocabularies[0]))
        if missing:
            raise ValueError(
                f"tags: the vocabulary of {options.init_from} lacks {', '.join(sorted(missing))}; "
                'init_vocabulary = "extend" adds them'
            )
        return vocabularies
    return []


def _train_vocabularies(options: TrainingConfig, pairs: Sequence[tuple[str, str]]) -> list[bytes]:
    print(f"training the vocabulary: {options.vocab_size:,} pieces, on {len(pairs):,} pairs")
    sides = [(0, 1)] if options.shared_vocabulary else [(0,), (1,)]
    vocabularies = [
        train_vocabulary(
            [pair[side] for pair in pairs for side in of_vocabulary],
            options.vocab_size,
            options.character_coverage,
            options.tags,
        )
        for of_vocabulary in sides
    ]
    if options.init_from and options.init_vocabulary == "extend":
        earlier = read_vocabularies(Path(options.init_from))
        return [extend_vocabulary(*both) for both in zip(earlier, vocabularies, strict=True)]
    return vocabularies


def _make_batches(
    corpus: TokenizedCorpus,
    split: str,
    options: TrainingConfig,
    max_length: int,
    division: Division,
) -> Batches:
    print(
        f"{split}: {len(corpus):,} pairs; left out, longer than {max_length} tokens: "
        f"{corpus.num_too_long:,}"
    )
    if not len(corpus):
        raise ValueError(
            f"{getattr(options, split)}: no pair of at most max_length {max_length} tokens"
        )
    return Batches(corpus, options.batch_tokens, options.seed, division)

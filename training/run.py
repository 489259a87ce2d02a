"""One run from corpus to run directory: vocabulary, batches, model, `fit`, results."""

import dataclasses
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras

from keras_transformer.config import ModelConfig
from keras_transformer.model import build_transformer
from keras_transformer.tokenizer import Tokenizer
from keras_transformer.translator import (
    CONFIG_FILE,
    SOURCE_TOKENIZER_FILE,
    TOKENIZER_FILE,
    WEIGHTS_FILE,
    Translator,
)
from training import checkpoints, phrasebook
from training.callbacks import Evaluation, Scalars, States, TimeLimit
from training.config import RunConfig, TrainingConfig
from training.corpus import CorpusReport, read_pairs
from training.data import Batches, tokenize_corpus
from training.loss import MaskedCrossentropy
from training.metrics import TokenAccuracy
from training.schedule import WarmupInverseSqrt
from training.vocabulary import train_vocabulary

CHECKPOINTS_FOLDER = "checkpoints"
LOGS_FOLDER = "logs"
RESULTS_FILE = "results.json"
EXPORTED_SENTENCES = 32
MAX_STEPS_BETWEEN_EVALUATIONS = 1000


def train(config: RunConfig, output: Path, resume: bool, started: float) -> None:
    """Train, and write the run directory.

    Args:
        config: What to train, and how.
        output: The run directory.
        resume: Go on with the run that is there.
        started: When the run began, on the clock of `time.monotonic`; --max-minutes counts from it.

    Raises:
        ValueError: A corpus or an option is no good; the message says which.
        OSError: The directory can't be written.
    """
    options = config.training
    keras.utils.set_random_seed(options.seed)  # before any tokenizer: see Tokenizer
    keras.config.set_dtype_policy(options.mixed_precision or "float32")
    output.mkdir(parents=True, exist_ok=True)
    state = checkpoints.newest_state(output / CHECKPOINTS_FOLDER) if resume else None

    tokenizers = _read_or_train_tokenizers(config, output, resume)
    source_tokenizer, tokenizer = tokenizers[0], tokenizers[-1]
    model_config = config.model_config(
        tokenizer.vocab_size, source_tokenizer.vocab_size if len(tokenizers) == 2 else None
    )
    _write_config(output, model_config, options)
    corpora = {}
    for split in ("train", "valid"):
        corpora[split] = tokenize_corpus(
            read_split(options, split), source_tokenizer, tokenizer, model_config.max_length
        )
        left_out = corpora[split].num_too_long
        print(
            f"{split}: {len(corpora[split]):,} pairs"
            + (f"; {left_out:,} longer than max_length {model_config.max_length}" * bool(left_out))
        )
    batches = Batches(corpora["train"], options.batch_tokens, options.seed)
    source_padding, target_padding = batches.padding_share()
    print(
        f"{batches.steps_per_pass:,} batches of up to {options.batch_tokens:,} tokens; padding is "
        f"{target_padding:.1%} of the target and {source_padding:.1%} of the source positions"
    )

    model = build_transformer(model_config)
    compile_model(model, model_config, options)
    print(f"{model.count_params():,} parameters, vocabulary of {tokenizer.vocab_size:,} pieces")
    progress = {"best_bleu": -1.0, "num_tokens": 0.0, "seconds": 0.0, "minutes": 0.0}
    if state:
        checkpoints.load_state(state, model)
        progress.update(checkpoints.read_progress(state))
        print(f"resumed from {state}")

    translator = Translator(
        model,
        tokenizer,
        source_tokenizer,
        max_length=model_config.max_length,
        beam_size=1,
    )
    valid_pairs = list(read_split(options, "valid"))[: options.evaluation_sentences]
    evaluation = Evaluation(
        translator,
        valid_pairs,
        Batches(corpora["valid"], options.batch_tokens, options.seed).one_pass(),
        output / WEIGHTS_FILE,
        progress["best_bleu"],
    )
    scalars = Scalars(output / LOGS_FOLDER, options.log_every_steps)

    def results() -> dict[str, Any]:
        seconds = progress["seconds"] + scalars.seconds
        num_tokens = progress["num_tokens"] + scalars.num_tokens
        return {
            "best_bleu": evaluation.best_bleu,
            "num_tokens": num_tokens,
            "seconds": seconds,
            "tokens_per_second": num_tokens / max(seconds, 1e-9),
            "minutes": progress["minutes"] + (time.monotonic() - started) / 60,
        }

    def write_results(epoch: int, logs: dict[str, Any]) -> None:
        whole = {
            "step": int(model.optimizer.iterations),
            "parameters": model.count_params(),
            "target_padding": target_padding,
            "source_padding": source_padding,
            **results(),
            # What `python -m export` checks its work on.
            "validation_sources": evaluation.sources[:EXPORTED_SENTENCES],
        }
        _write_json(output / RESULTS_FILE, whole)

    callbacks = [
        evaluation,
        scalars,
        States(output / CHECKPOINTS_FOLDER, results),
        keras.callbacks.LambdaCallback(on_epoch_end=write_results),
    ]
    if options.max_minutes:
        callbacks.append(TimeLimit(started + 60 * options.max_minutes, evaluation))
    _fit(model, batches, options, callbacks)
    final = results()
    print(
        f"done: {int(model.optimizer.iterations):,} steps in {final['minutes']:.1f} minutes, "
        f"{final['tokens_per_second']:,.0f} target tokens per second, "
        f"best validation BLEU {final['best_bleu']:.2f}; run directory {output}"
    )


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
        (output / name).write_bytes(model)
        tokenizers.append(Tokenizer(model))
    return tokenizers


def _write_config(output: Path, model: ModelConfig, training: TrainingConfig) -> None:
    effective = {"model": model.to_dict(), "training": dataclasses.asdict(training)}
    _write_json(output / CONFIG_FILE, effective)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _fit(model: keras.Model, batches: Batches, options: TrainingConfig, callbacks: list) -> None:
    """Call `fit` until max_steps; each Keras epoch is the way to the next evaluation."""
    every = options.evaluate_every_steps or min(
        batches.steps_per_pass, MAX_STEPS_BETWEEN_EVALUATIONS
    )
    step = int(model.optimizer.iterations)
    while step < options.max_steps:
        whole_epochs, rest = divmod(options.max_steps - step, every)
        if step % every == 0 and whole_epochs:
            epochs, steps = whole_epochs, every
        else:  # a run that was stopped between two evaluations, or the end of the last epoch
            epochs, steps = 1, min(every - step % every, rest or every)
        first = step // every
        model.fit(
            batches.dataset(step),
            initial_epoch=first,
            epochs=first + epochs,
            steps_per_epoch=steps,
            shuffle=False,
            verbose=1 if sys.stdout.isatty() else 2,  # a bar, or a line for each epoch
            callbacks=callbacks,
        )
        step = int(model.optimizer.iterations)
        if model.stop_training:
            break

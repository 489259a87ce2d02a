"""Keras callbacks: evaluation and best weights, TensorBoard, saved states, ways to end."""

import math
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import contextmanager, nullcontext, suppress
from itertools import islice
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorboard.plugins import projector
from tensorboard.plugins.hparams import api as hparams

from attention_viewer.summary import (
    Snapshot,
    write_entropies,
    write_plain_views,
    write_snapshot,
)
from keras_transformer.config import END_ID
from keras_transformer.inspection import Inspector
from keras_transformer.translator import Translator
from training import checkpoints
from training.averaging import swapped_weights
from training.evaluate import score
from training.loss import MaskedCrossentropy
from training.metrics import Perplexity
from training.probes import Probe
from training.variables import copy_variables, steps_done, to_numpy


class Evaluation(keras.callbacks.Callback):
    """At the end of each Keras epoch: validation loss, BLEU and chrF; and the best weights.

    Puts "val_loss" (without label smoothing), "val_perplexity", "val_bleu" and "val_chrf" into the
    logs, so that they are in `fit`'s history and callbacks that come later see them.

    Args:
        translator: Over the model that is trained, or over `copy`.
        pairs: Validation pairs to translate for BLEU and chrF.
        batches: A finite dataset of the validation corpus, for the loss.
        weights_path: Where the best weights are kept (`.weights.h5`); None keeps none.
        select_by: What they are best in: "bleu", "chrf" or "loss".
        average: Gives the weights to evaluate and to keep in the place of the model's own, such as
            `AveragedAdam.average` or `CheckpointAverage.average`.
        best: The best evaluation before this training, of a resumed run.
        num_since_best: And how many evaluations came after it.
        share: Gives what a function returns in the first of many processes to all of them, as
            `Distribution.share`; by default this process is alone.
        copy: Model of the same kind on one device, which gets the weights to translate with; None
            if the model that is trained translates.
        num_examples: Pairs, the first ones, whose translations are printed.

    Attributes:
        best: Step and scores of the best evaluation so far; empty before the first.
        num_since_best: Evaluations since then.
        seconds: What the last evaluation took.

    Raises:
        ValueError: `select_by` is none of the three.
    """

    def __init__(
        self,
        translator: Translator,
        pairs: Sequence[tuple[str, str]],
        batches: tf.data.Dataset,
        weights_path: Path | None = None,
        select_by: str = "bleu",
        average: Callable[[], Sequence[np.ndarray]] | None = None,
        best: dict[str, float] | None = None,
        num_since_best: int = 0,
        share: Callable[[Callable[[], Any]], Any] = lambda make: make(),
        copy: keras.Model | None = None,
        num_examples: int = 0,
    ):
        super().__init__()
        if select_by not in ("bleu", "chrf", "loss"):
            raise ValueError(f"select_by must be bleu, chrf or loss, received {select_by!r}")
        self.translator = translator
        self.sources = [source for source, _ in pairs]
        self.references = [target for _, target in pairs]
        self.batches = batches
        self.weights_path = weights_path
        self.select_by = select_by
        self.average = average
        self.best = dict(best or {})
        self.num_since_best = num_since_best
        self.share = share
        self.copy = copy
        self.num_examples = num_examples
        self.seconds = 0.0
        self._examples: list[str] = []

    def on_train_begin(self, logs=None):
        """Compile a second view of the model, so that training need not compute perplexity."""
        self._measured = keras.Model(self.model.inputs, self.model.outputs)
        # Keras evaluates no model without a loss; its mean weighs batches, not tokens, alike.
        self._measured.compile(
            loss=MaskedCrossentropy(0.0),
            metrics=[Perplexity()],
            jit_compile=keras.backend.backend() == "jax",
        )

    def on_epoch_end(self, epoch, logs=None):
        """Evaluate, and keep the weights if they are better than all earlier ones."""
        start = time.perf_counter()
        weights = swapped_weights(self.model, self.average()) if self.average else nullcontext()
        with weights:
            scores = self._evaluate()
            is_best = self._is_best(scores)
            if is_best:
                self.best, self.num_since_best = scores, 0
                if self.weights_path:
                    checkpoints.save_weights(self.copy or self.model, self.weights_path)
            else:
                self.num_since_best += 1
        self.seconds = time.perf_counter() - start
        if logs is not None:
            logs.update({f"val_{name}": scores[name] for name in scores if name != "step"})
        print(
            f"step {scores['step']}: validation perplexity {scores['perplexity']:.2f}, "
            f"BLEU {scores['bleu']:.2f}, chrF {scores['chrf']:.2f}"
            + (" (best so far)" if is_best else f" (best at step {self.best['step']})")
        )
        for example in self._examples:
            print(example)

    def _evaluate(self) -> dict[str, float]:
        measured = self._measured.evaluate(self.batches, verbose=0, return_dict=True)
        if self.copy:
            copy_variables(self.model, self.copy)
        # A bar that is not on a terminal stays there: in a log, in a notebook.
        translations = self.share(
            lambda: self.translator(self.sources, progress=sys.stderr.isatty())
        )
        scores = score(translations, self.references)
        triples = zip(self.sources, translations, self.references, strict=True)
        self._examples = [
            f"  {source} → {translation}"
            + ("" if translation == reference else f" (reference: {reference})")
            for source, translation, reference in islice(triples, self.num_examples)
        ]
        return {
            "step": steps_done(self.model),
            "loss": math.log(measured["perplexity"]),
            "perplexity": measured["perplexity"],
            "bleu": scores.bleu,
            "chrf": scores.chrf,
        }

    def _is_best(self, scores: dict[str, float]) -> bool:
        if not self.best:
            return True
        new, best = scores[self.select_by], self.best[self.select_by]
        return new < best if self.select_by == "loss" else new > best


class EarlyStop(keras.callbacks.Callback):
    """Ends training when evaluations stop getting better.

    Args:
        evaluation: Comes before this callback in `fit`.
        patience: Evaluations without a better one after which training ends.
    """

    def __init__(self, evaluation: Evaluation, patience: int):
        super().__init__()
        self.evaluation = evaluation
        self.patience = patience

    def is_due(self) -> bool:
        """Return whether training is to end; also true before a run that had ended is resumed."""
        return self.evaluation.num_since_best >= self.patience

    def on_epoch_end(self, epoch, logs=None):
        """Stop if it is time."""
        if self.is_due():
            print(
                f"early stop: none of {self.evaluation.num_since_best} evaluations since step "
                f"{self.evaluation.best['step']} had a better {self.evaluation.select_by}"
            )
            self.model.stop_training = True


class Scalars(keras.callbacks.Callback):
    """Writes TensorBoard scalars: loss, accuracy, learning rate, tokens per second; evaluations.

    Training values are means over the steps since the last point. Tokens per second are real
    target tokens over the time of training steps, evaluations left out.

    Args:
        logs_path: Folder of the event file.
        every_steps: Steps between two points.
        progress: What `progress` returned, of a resumed run.
        options: Of the run, for the HParams tab; none are written by default.

    Attributes:
        num_tokens: Target tokens trained on so far.
        seconds: Time of the training steps so far.
    """

    def __init__(
        self,
        logs_path: Path,
        every_steps: int = 50,
        progress: dict[str, Any] | None = None,
        options: dict[str, bool | float | str] | None = None,
    ):
        super().__init__()
        progress = progress or {}
        self.every_steps = every_steps
        self.num_tokens = progress.get("num_tokens", 0.0)
        self.seconds = progress.get("seconds", 0.0)
        self._window: Counter[str] = Counter(progress.get("window", {}))
        self._writer = tf.summary.create_file_writer(str(logs_path))
        if options:
            with self._writer.as_default():
                metrics = [hparams.Metric(f"validation/{name}") for name in ("bleu", "perplexity")]
                hparams.hparams_config([hparams.HParam(name) for name in options], metrics)
                hparams.hparams(options)

    def progress(self) -> dict[str, Any]:
        """Return what a resumed run goes on from; the points so far are written to the disk."""
        with self._writing():
            self._writer.flush()
        return {
            "num_tokens": self.num_tokens,
            "seconds": self.seconds,
            "window": dict(self._window),
        }

    def on_train_begin(self, logs=None):
        """Note where training begins."""
        self._step = steps_done(self.model)

    def on_epoch_begin(self, epoch, logs=None):
        """Start counting: Keras has just reset its metrics."""
        self._counted = {"seconds": time.perf_counter()}

    def on_train_batch_end(self, batch, logs=None):
        """Count the step, and write a point at every `every_steps`-th."""
        counts = self._read_counts()
        step_counts = {name: counts[name] - self._counted.get(name, 0.0) for name in counts}
        self._counted = counts
        self._window.update(step_counts)
        self.num_tokens += step_counts["num_tokens"]
        self.seconds += step_counts["seconds"]
        step, before = steps_done(self.model), self._step
        self._step = step
        if step != before and step % self.every_steps == 0:
            self._write(step)
            self._window.clear()

    def on_epoch_end(self, epoch, logs=None):
        """Write what the evaluation put into the logs."""
        step = steps_done(self.model)
        with self._writing():
            for name, value in (logs or {}).items():
                if name.startswith("val_"):
                    tf.summary.scalar(f"validation/{name.removeprefix('val_')}", value, step=step)
            self._writer.flush()

    def _write(self, step):
        window = self._window
        learning_rate = float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate))
        with self._writing():
            tf.summary.scalar("loss", window["loss"] / window["loss_weight"], step=step)
            tf.summary.scalar("accuracy", window["num_correct"] / window["num_tokens"], step=step)
            tf.summary.scalar("learning_rate", learning_rate, step=step)
            tf.summary.scalar(
                "tokens_per_second", window["num_tokens"] / window["seconds"], step=step
            )

    @contextmanager
    def _writing(self):
        try:
            with self._writer.as_default():
                yield
        except tf.errors.OpError as error:  # the disk is full, or is no longer there
            raise OSError(f"can't write to TensorBoard: {error.message.splitlines()[0]}") from None

    def _read_counts(self) -> dict[str, float]:
        """Return the sums behind Keras's running means, which differences turn into a window's."""
        metrics = {metric.name: metric for metric in self.model.metrics}
        loss, accuracy = metrics["loss"], metrics["compile_metrics"].metrics[0]
        return {
            "loss": float(to_numpy(loss.total)),
            "loss_weight": float(to_numpy(loss.count)),
            "num_correct": float(to_numpy(accuracy.total)),
            "num_tokens": float(to_numpy(accuracy.num_tokens)),
            "seconds": time.perf_counter(),
        }


class AttentionSummary(keras.callbacks.Callback):
    """Writes the attention for probe sentences, and their translations, for the attention viewer.

    For TensorBoards without it: each head's entropy as a scalar, and at the end of each Keras epoch
    heat maps as images and translations as text.

    Args:
        translator: Over the model that is trained.
        probes: Pairs to watch.
        logs_path: Folder of the event file; one of its own, as TensorBoard may read no more of a
            file when there is a later one in its folder.
        every_steps: Steps between two snapshots; there is one at the end of each epoch, too.

    Attributes:
        seconds: Time that the snapshots took.
    """

    def __init__(
        self, translator: Translator, probes: Sequence[Probe], logs_path: Path, every_steps: int
    ):
        super().__init__()
        self.probes = probes
        self.every_steps = every_steps
        self.seconds = 0.0
        self._inspector = Inspector(translator)
        self._writer = tf.summary.create_file_writer(str(logs_path))
        self._last_step = -1
        self._snapshots: list[Snapshot] = []

    def on_train_begin(self, logs=None):
        """Write a snapshot of the untrained model; a resumed run has that of the step before."""
        step = steps_done(self.model)
        if step:
            self._last_step = step
        else:
            self._write(step)

    def on_train_batch_end(self, batch, logs=None):
        """Write a snapshot at every `every_steps`-th step."""
        step = steps_done(self.model)
        if step % self.every_steps == 0 and step != self._last_step:
            self._write(step)

    def on_epoch_end(self, epoch, logs=None):
        """Write a snapshot, if there is none of this step yet; and its images and texts."""
        step = steps_done(self.model)
        if step != self._last_step:
            self._write(step)
        start = time.perf_counter()
        with self._writer.as_default():
            for i, snapshot in enumerate(self._snapshots, start=1):
                write_plain_views(f"probe-{i}", snapshot, self._last_step)
        self._writer.flush()
        self._snapshots = []  # written once
        self.seconds += time.perf_counter() - start

    def _write(self, step: int) -> None:
        start = time.perf_counter()
        self._last_step = step
        copy_variables(self.model, self._inspector.translator.model)
        sources = [probe.source for probe in self.probes]
        targets = [probe.target for probe in self.probes]
        references = self._inspector.references(sources, targets)
        translations = self._inspector.translations(sources)
        self._snapshots = [
            Snapshot.of(
                {
                    "source": probe.source,
                    "reference": probe.target,
                    "translation": translation.text,
                },
                translation,
                reference,
                probe.links,
            )
            for probe, translation, reference in zip(
                self.probes, translations, references, strict=True
            )
        ]
        with self._writer.as_default():
            for i, snapshot in enumerate(self._snapshots, start=1):
                write_snapshot(f"probe-{i}", snapshot, step)
            write_entropies(self._snapshots, step)
        self._writer.flush()
        self.seconds += time.perf_counter() - start


class Embeddings(keras.callbacks.Callback):
    """At the end of training: the token embeddings for TensorBoard's projector, with their pieces.

    Args:
        translator: Over the model that is trained.
        logs_path: Folder to write to.
        most: Pieces at the most; those with the lowest ids, which are the most frequent.
    """

    def __init__(self, translator: Translator, logs_path: Path, most: int = 5000):
        super().__init__()
        self.translator = translator
        self.logs_path = logs_path
        self.most = most

    def on_train_end(self, logs=None):
        """Write the vectors, their labels, and the file that tells the projector of them."""
        self.logs_path.mkdir(parents=True, exist_ok=True)
        config = projector.ProjectorConfig()
        tokenizers = {
            "embedding": self.translator.tokenizer,
            "source_embedding": self.translator.source_tokenizer,
            "target_embedding": self.translator.tokenizer,
        }
        copy_variables(self.model, self.translator.model)
        for layer in self.translator.model.layers:
            if layer.name not in tokenizers:
                continue
            vectors = keras.ops.convert_to_numpy(layer.embeddings)[END_ID + 1 :][: self.most]
            ids = tf.range(END_ID + 1, END_ID + 1 + len(vectors))
            pieces = tokenizers[layer.name].pieces(ids).numpy()
            # A label is a line; no piece but a control character could break one.
            labels = [" ".join(piece.decode(errors="replace").split()) or "?" for piece in pieces]
            info = config.embeddings.add(tensor_name=layer.name)
            info.tensor_path = f"{layer.name}.vectors.tsv"
            info.metadata_path = f"{layer.name}.pieces.tsv"
            np.savetxt(self.logs_path / info.tensor_path, vectors, "%.4g", delimiter="\t")
            text = "".join(f"{label}\n" for label in labels)
            (self.logs_path / info.metadata_path).write_text(text, encoding="utf-8")
        projector.visualize_embeddings(str(self.logs_path), config)


class States(keras.callbacks.Callback):
    """Saves the whole state of training at the end of each Keras epoch.

    Args:
        folder: `checkpoints/` of the run.
        progress: Gives what else a resumed run must know.

    Raises:
        DivergenceError: While training, if there is a weight that is not finite.
    """

    def __init__(self, folder: Path, progress: Callable[[], dict[str, Any]]):
        super().__init__()
        self.folder = folder
        self.progress = progress

    def on_epoch_end(self, epoch, logs=None):
        """Save."""
        self.save()

    def save(self) -> Path:
        """Save; return the folder of the state."""
        _check_weights(self.model)
        step = steps_done(self.model)
        return checkpoints.save_state(self.folder, self.model, step, self.progress())


class DivergenceError(ArithmeticError):
    """Training has diverged: a loss or a weight is not finite."""


class Divergence(keras.callbacks.Callback):
    """Ends training with a DivergenceError at the first step whose loss is not finite.

    Stands before the callbacks that evaluate and save, so that what they have kept stays good: at
    the end of an epoch the weights are looked at too, which the last step has changed since its
    loss was computed. Costs nothing: Keras reads the loss after each step anyway.

    Args:
        first_lines: Gives the first source lines of the batch just trained on, for the message.
    """

    def __init__(self, first_lines: Callable[[], Sequence[str]] = list):
        super().__init__()
        self.first_lines = first_lines

    def on_train_batch_end(self, batch, logs=None):
        """Look at the running mean of the loss, which stays not finite once a loss was."""
        loss = (logs or {}).get("loss", 0.0)
        if not math.isfinite(loss):
            lines = "".join(f"\n  {line}" for line in self.first_lines())
            raise DivergenceError(
                f"step {steps_done(self.model)}: the loss is {loss}"
                + (f"; its batch begins with{lines}" if lines else "")
            )

    def on_epoch_end(self, epoch, logs=None):
        """Look at the weights."""
        _check_weights(self.model)


def _check_weights(model: keras.Model) -> None:
    for variable in model.trainable_variables:
        if not np.isfinite(to_numpy(variable)).all():
            raise DivergenceError(f"step {steps_done(model)}: {variable.path} is not finite")


class Interrupted(KeyboardInterrupt):
    """Training was ended by a signal, after its state was saved.

    Attributes:
        signal: The signal.
    """

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.signal = signal.Signals(number)


class Interruption(keras.callbacks.Callback):
    """Ends training after the step in which a signal comes: saves, then raises Interrupted.

    After the last step of a Keras epoch, and in its evaluation, the epoch is finished first. A
    second signal does not wait. Works in the main thread alone, where Python receives signals.

    Args:
        save: Called before training ends. Give this callback to `fit` as the last one.
        signals: Ctrl-C (also a notebook's interrupt) and the request to terminate.
        any_process: Whether a flag is set in any of many processes, which end together, as
            `Distribution.any`; by default this process is alone.
    """

    def __init__(
        self,
        save: Callable[[], object],
        signals: Sequence[int] = (signal.SIGINT, signal.SIGTERM),
        any_process: Callable[[bool], bool] = bool,
    ):
        super().__init__()
        self.save = save
        self.signals = signals
        self.any_process = any_process
        self._received: int | None = None
        self._handlers: dict[int, Any] = {}

    def on_train_begin(self, logs=None):
        """Take the signals."""
        self._handlers = {number: signal.signal(number, self._note) for number in self.signals}

    def on_train_batch_end(self, batch, logs=None):
        """Save and end, if a signal has come and the epoch goes on."""
        if batch + 1 != self.params["steps"]:
            self._end()

    def on_epoch_end(self, epoch, logs=None):
        """Save and end, if a signal has come."""
        self._end()

    def on_train_end(self, logs=None):
        """Give the signals back."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _end(self):
        if self.any_process(self._received is not None):
            received, self._received = self._received or signal.SIGTERM, None
            self.save()
            self.on_train_end()
            raise Interrupted(received)

    def _note(self, number, frame):
        if self._received is not None:
            raise KeyboardInterrupt
        self._received = number
        with suppress(RuntimeError):  # the signal came in the middle of another print
            print(f"{signal.Signals(number).name}: training ends after this step", file=sys.stderr)


class TimeLimit(keras.callbacks.Callback):
    """Ends training in time for a last evaluation.

    Args:
        end: When all should be done, on the clock of `time.monotonic`.
        evaluation: Whose last duration is left for the final one.
        any_process: As in Interruption.
    """

    def __init__(
        self,
        end: float,
        evaluation: Evaluation,
        any_process: Callable[[bool], bool] = bool,
    ):
        super().__init__()
        self.end = end
        self.evaluation = evaluation
        self.any_process = any_process

    def on_train_batch_end(self, batch, logs=None):
        """Stop when no time is left."""
        if self.any_process(time.monotonic() + self.evaluation.seconds >= self.end):
            self.model.stop_training = True

    def on_epoch_end(self, epoch, logs=None):
        """Stop when no step with another evaluation would be in time."""
        self.on_train_batch_end(None)

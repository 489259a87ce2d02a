"""Keras callbacks: BLEU and best weights, TensorBoard, saved states, a time limit."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
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
from training.evaluate import score
from training.loss import MaskedCrossentropy
from training.metrics import Perplexity
from training.probes import Probe


class Evaluation(keras.callbacks.Callback):
    """At the end of each Keras epoch: validation perplexity and BLEU; the best weights by BLEU.

    Puts "val_perplexity" and "val_bleu" into the logs, so that they are in `fit`'s history and
    callbacks that come later see them.

    Args:
        translator: Over the model that is trained.
        pairs: Validation pairs to translate for BLEU.
        batches: A finite dataset of the validation corpus, for perplexity.
        weights_path: Where the best weights are kept (`.weights.h5`); None keeps none.
        best_bleu: The best BLEU before this training, of a resumed run.
    """

    def __init__(
        self,
        translator: Translator,
        pairs: Sequence[tuple[str, str]],
        batches: tf.data.Dataset,
        weights_path: Path | None = None,
        best_bleu: float = -1.0,
    ):
        super().__init__()
        self.translator = translator
        self.sources = [source for source, _ in pairs]
        self.references = [target for _, target in pairs]
        self.batches = batches
        self.weights_path = weights_path
        self.best_bleu = best_bleu
        self.seconds = 0.0  # what the last evaluation took

    def on_train_begin(self, logs=None):
        """Compile a second view of the model, so that training need not compute perplexity."""
        self._measured = keras.Model(self.model.inputs, self.model.outputs)
        # Keras evaluates no model without a loss; its mean weighs batches, not tokens, alike.
        self._measured.compile(
            loss=MaskedCrossentropy(0.0), metrics=[Perplexity()], jit_compile=False
        )

    def on_epoch_end(self, epoch, logs=None):
        """Evaluate, and keep the weights if their BLEU is better than all earlier ones."""
        start = time.perf_counter()
        measured = self._measured.evaluate(self.batches, verbose=0, return_dict=True)
        hypotheses = self.translator(self.sources, progress=True)
        bleu = score(hypotheses, self.references).bleu
        is_best = bleu > self.best_bleu
        if is_best:
            self.best_bleu = bleu
            if self.weights_path:
                checkpoints.save_weights(self.model, self.weights_path)
        self.seconds = time.perf_counter() - start
        if logs is not None:
            logs["val_perplexity"], logs["val_bleu"] = measured["perplexity"], bleu
        print(
            f"step {int(self.model.optimizer.iterations)}: validation perplexity "
            f"{measured['perplexity']:.2f}, BLEU {bleu:.2f}"
            + (" (best so far)" if is_best else f" (best {self.best_bleu:.2f})")
        )


class Scalars(keras.callbacks.Callback):
    """Writes TensorBoard scalars: loss, accuracy, learning rate, tokens per second; evaluations.

    Training values are means over the steps since the last point. Tokens per second are real
    target tokens over the time of training steps, evaluations left out.

    Args:
        logs_path: Folder of the event file.
        every_steps: Steps between two points.
        options: Of the run, for the HParams tab; none are written by default.

    Attributes:
        num_tokens: Target tokens trained on so far.
        seconds: Time of the training steps so far.
    """

    def __init__(
        self,
        logs_path: Path,
        every_steps: int = 50,
        options: dict[str, bool | float | str] | None = None,
    ):
        super().__init__()
        self.every_steps = every_steps
        self.num_tokens = 0.0
        self.seconds = 0.0
        self._writer = tf.summary.create_file_writer(str(logs_path))
        self._window: Counter[str] = Counter()
        if options:
            with self._writer.as_default():
                metrics = [hparams.Metric(f"validation/{name}") for name in ("bleu", "perplexity")]
                hparams.hparams_config([hparams.HParam(name) for name in options], metrics)
                hparams.hparams(options)

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
        step = int(self.model.optimizer.iterations)
        if step % self.every_steps == 0:
            self._write(step)
            self._window.clear()

    def on_epoch_end(self, epoch, logs=None):
        """Write what the evaluation put into the logs."""
        step = int(self.model.optimizer.iterations)
        with self._writer.as_default():
            for name, value in (logs or {}).items():
                if name.startswith("val_"):
                    tf.summary.scalar(f"validation/{name.removeprefix('val_')}", value, step=step)
        self._writer.flush()

    def _write(self, step):
        window = self._window
        learning_rate = float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate))
        with self._writer.as_default():
            tf.summary.scalar("loss", window["loss"] / window["loss_weight"], step=step)
            tf.summary.scalar("accuracy", window["num_correct"] / window["num_tokens"], step=step)
            tf.summary.scalar("learning_rate", learning_rate, step=step)
            tf.summary.scalar(
                "tokens_per_second", window["num_tokens"] / window["seconds"], step=step
            )

    def _read_counts(self) -> dict[str, float]:
        """Return the sums behind Keras's running means, which differences turn into a window's."""
        metrics = {metric.name: metric for metric in self.model.metrics}
        loss, accuracy = metrics["loss"], metrics["compile_metrics"].metrics[0]
        return {
            "loss": float(loss.total),
            "loss_weight": float(loss.count),
            "num_correct": float(accuracy.total),
            "num_tokens": float(accuracy.num_tokens),
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
        every_steps: Steps between two snapshots.

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
        step = int(self.model.optimizer.iterations)
        if step:
            self._last_step = step
        else:
            self._write(step)

    def on_train_batch_end(self, batch, logs=None):
        """Write a snapshot at every `every_steps`-th step."""
        step = int(self.model.optimizer.iterations)
        if step % self.every_steps == 0 and step != self._last_step:
            self._write(step)

    def on_epoch_end(self, epoch, logs=None):
        """Write images and texts of the last snapshot."""
        start = time.perf_counter()
        with self._writer.as_default():
            for i, snapshot in enumerate(self._snapshots, start=1):
                write_plain_views(f"probe-{i}", snapshot, self._last_step)
        self._writer.flush()
        self._snapshots = []  # written once
        self.seconds += time.perf_counter() - start

    def on_train_end(self, logs=None):
        """Write a snapshot of the trained model."""
        step = int(self.model.optimizer.iterations)
        if step != self._last_step:
            self._write(step)

    def _write(self, step: int) -> None:
        start = time.perf_counter()
        self._last_step = step
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
        for layer in self.model.layers:
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
    """

    def __init__(self, folder: Path, progress: Callable[[], dict[str, Any]]):
        super().__init__()
        self.folder = folder
        self.progress = progress

    def on_epoch_end(self, epoch, logs=None):
        """Save."""
        step = int(self.model.optimizer.iterations)
        checkpoints.save_state(self.folder, self.model, step, self.progress())


class TimeLimit(keras.callbacks.Callback):
    """Ends training in time for a last evaluation.

    Args:
        end: When all should be done, on the clock of `time.monotonic`.
        evaluation: Whose last duration is left for the final one.
    """

    def __init__(self, end: float, evaluation: Evaluation):
        super().__init__()
        self.end = end
        self.evaluation = evaluation

    def on_train_batch_end(self, batch, logs=None):
        """Stop when no time is left."""
        if time.monotonic() + self.evaluation.seconds >= self.end:
            self.model.stop_training = True

    def on_epoch_end(self, epoch, logs=None):
        """Stop when no step with another evaluation would be in time."""
        self.on_train_batch_end(None)

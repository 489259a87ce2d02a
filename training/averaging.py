"""Averages of weights in the place of the weights: swapped in, and taken over checkpoints."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import keras
import numpy as np

from training import checkpoints
from training.variables import steps_done, to_numpy


@contextmanager
def swapped_weights(model: keras.Model, weights: Sequence[np.ndarray]) -> Iterator[None]:
    """Give the model other trainable weights for a while; then its own again, bit for bit.

    Args:
        model: Built.
        weights: One array for each of `model.trainable_variables`.
    """
    own = [np.array(to_numpy(v)) for v in model.trainable_variables]
    try:
        _assign(model, weights)
        yield
    finally:
        _assign(model, own)


class CheckpointAverage(keras.callbacks.Callback):
    """Saves the weights at the end of each Keras epoch, and averages the last of them (paper 6.1).

    Give it to `fit` before what asks for the average. A resumed run finds the earlier weights in
    the folder.

    Args:
        folder: Where the weights are kept.
        count: How many to average.
    """

    def __init__(self, folder: Path, count: int):
        super().__init__()
        self.folder = folder
        self.count = count

    def on_epoch_end(self, epoch, logs=None):
        """Save the weights."""
        step = steps_done(self.model)
        weights = [to_numpy(v) for v in self.model.trainable_variables]
        checkpoints.save_arrays(self.folder / f"weights-{step:08d}.npz", weights)
        # One more than the average takes: a run may have to go back by one saved state.
        for old in self._files()[: -self.count - 1]:
            old.unlink()

    def average(self) -> list[np.ndarray]:
        """Return the mean of the last weights, one array for each trainable variable."""
        files = self._files()[-self.count :]
        total = checkpoints.load_arrays(files[0])
        for file in files[1:]:
            for sum_, array in zip(total, checkpoints.load_arrays(file), strict=True):
                sum_ += array
        return [sum_ / np.float32(len(files)) for sum_ in total]

    def _files(self) -> list[Path]:
        """Return the saved weights up to this step, the oldest first."""
        newest = f"weights-{steps_done(self.model):08d}.npz"
        return sorted(file for file in self.folder.glob("weights-*.npz") if file.name <= newest)


def _assign(model, weights):
    for variable, weight in zip(model.trainable_variables, weights, strict=True):
        variable.assign(weight)

"""Saves and restores a run: the best weights, and the whole state of training for --resume.

Everything is written beside its place and renamed into it, so that a file is whole at any moment,
whatever ends the process; renaming is all that is asked of the file system.
"""

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras
import numpy as np

from training.variables import to_numpy

STATE_FILE = "state.npz"
PROGRESS_FILE = "progress.json"
HDF5_BYTES_PER_VARIABLE = 8192  # its names and tables take about half of it


class DamagedStateError(ValueError):
    """A saved state that can't be read; the message names the file."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a name to write a file or folder to, which then takes the place of `path`.

    Raises:
        OSError: It can't be written; what was at `path` is still there.
    """
    temporary = path.with_name(f".writing.{path.name}")
    _remove(temporary)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        for file in [temporary, *temporary.glob("*")]:
            _write_through(file)
        if path.is_dir():
            _retire(path)
        os.replace(temporary, path)
    except (OSError, RuntimeError) as error:  # h5py raises either when the disk is full
        _remove(temporary)
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise OSError(f"{path}: can't be written: {reason}") from error


def save_json(path: Path, value: dict[str, Any]) -> None:
    """Write a JSON object to `path`."""
    save_bytes(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


def save_bytes(path: Path, content: bytes) -> None:
    """Write bytes to `path`."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def save_weights(model: keras.Model, path: Path) -> None:
    """Write the weights to `path`."""
    with replacing(path) as temporary:
        _check_space(temporary, model)
        model.save_weights(temporary)


def save_arrays(path: Path, arrays: Sequence[np.ndarray]) -> None:
    """Write arrays to an .npz file."""
    with replacing(path) as temporary:
        np.savez(temporary, *arrays)


def load_arrays(path: Path) -> list[np.ndarray]:
    """Return what `save_arrays` wrote.

    Raises:
        OSError: The file is missing or damaged.
    """
    try:
        with path.open("rb") as file, np.load(file) as arrays:
            return [arrays[f"arr_{i}"] for i in range(len(arrays))]
    except Exception as error:  # a damaged archive raises whatever its bytes suggest
        raise OSError(f"{path}: can't be read: {error}") from None


def save_state(folder: Path, model: keras.Model, step: int, progress: dict[str, Any]) -> Path:
    """Write weights, optimizer, random generators and `progress` into `folder/step-N`.

    Older states are removed, but for the one before.

    Args:
        folder: `checkpoints/` of the run.
        model: Compiled and built.
        step: Optimizer steps done.
        progress: What else a resumed run must know; JSON.

    Returns:
        The folder written.

    Raises:
        OSError: It can't be written; the earlier states are still there.
    """
    target = folder / f"step-{step:08d}"
    with replacing(target) as temporary:
        temporary.mkdir()
        np.savez(temporary / STATE_FILE, **_state(model))  # type: ignore[arg-type]
        (temporary / PROGRESS_FILE).write_text(json.dumps(progress, indent=2))
    for old in _states(folder)[2:]:
        _retire(old)
    return target


def restore(
    folder: Path,
    model: keras.Model,
    share: Callable[[Callable[[], Any]], Any] = lambda read: read(),
) -> tuple[Path, dict[str, Any]] | None:
    """Restore the newest saved state that is whole, and say so of those that are not.

    Args:
        folder: `checkpoints/` of the run.
        model: Compiled as when it was saved.
        share: Gives what the function that reads the state returns to all processes, of which
            one alone may have the folder: `training.distribution.Distribution.share`.

    Returns:
        The state's folder and its progress; None if nothing was saved.

    Raises:
        ValueError: The states belong to another model or optimizer, or none is whole.
    """
    newest = share(lambda: _read_newest(folder, model))
    if newest is None:
        return None
    state, arrays, progress = newest
    _assign(model, arrays)
    return state, progress


def _read_newest(
    folder: Path, model: keras.Model
) -> tuple[Path, dict[str, np.ndarray], dict[str, Any]] | None:
    for unfinished in folder.glob(".*"):  # what a killed run was writing or removing
        _remove(unfinished)
    damaged: list[Path] = []
    for state in _states(folder):
        try:
            progress = read_progress(state)
            arrays = _read_arrays(state, model)
        except DamagedStateError as error:
            print(f"warning: {error}; trying the state before it", file=sys.stderr)
            damaged.append(state)
            continue
        for other in damaged:  # out of the way: the run will come to their steps again
            with replacing(other.with_name(f"damaged-{other.name}")) as temporary:
                os.replace(other, temporary)
        return state, arrays, progress
    if damaged:
        raise ValueError(f"{folder}: none of the saved states can be restored")
    return None


def newest_state(folder: Path) -> Path | None:
    """Return the folder of the newest saved state, or None."""
    return next(iter(_states(folder)), None)


def read_progress(state: Path) -> dict[str, Any]:
    """Return the progress that `save_state` was given.

    Raises:
        DamagedStateError: The file is missing or damaged.
    """
    try:
        return json.loads((state / PROGRESS_FILE).read_text())
    except (OSError, ValueError) as error:
        raise DamagedStateError(f"{state / PROGRESS_FILE}: can't be read: {error}") from None


def load_state(state: Path, model: keras.Model) -> None:
    """Restore the model, its optimizer and its random generators.

    Args:
        state: A folder that `save_state` wrote.
        model: Compiled as then.

    Raises:
        DamagedStateError: The file is missing or damaged.
        ValueError: It belongs to another model or optimizer.
    """
    _assign(model, _read_arrays(state, model))


def _read_arrays(state: Path, model: keras.Model) -> dict[str, np.ndarray]:
    path = state / STATE_FILE
    try:
        with path.open("rb") as file, np.load(file) as archive:
            arrays = dict(archive)
    except Exception as error:  # a damaged archive raises whatever its bytes suggest
        raise DamagedStateError(f"{path}: can't be read: {error}") from None
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    variables = _variables(model)
    if sorted(arrays) != sorted(variables):
        raise ValueError(f"{path}: can't be restored: it belongs to another model or optimizer")
    for name, variable in variables.items():
        if arrays[name].shape != tuple(variable.shape):
            raise ValueError(f"{path}: can't be restored: {name} has another shape")
    return arrays


def _assign(model: keras.Model, arrays: dict[str, np.ndarray]) -> None:
    for name, variable in _variables(model).items():
        variable.assign(arrays[name])


def _states(folder: Path) -> list[Path]:
    """Return the saved states, the newest first."""
    return sorted(folder.glob("step-*"), reverse=True)


def _state(model: keras.Model) -> dict[str, np.ndarray]:
    return {name: to_numpy(v) for name, v in _variables(model).items()}


def _variables(model: keras.Model) -> dict[str, keras.Variable]:
    """Return weights, states of random generators and optimizer, each under a name of its own.

    Not by `variable.path`, which counts what else the process has made.
    """
    everything = [*model.variables, *model.optimizer.variables]
    return {f"{i:05d}_{variable.name}": variable for i, variable in enumerate(everything)}


def _check_space(path: Path, model: keras.Model) -> None:
    """Meet a full disk in Python: in HDF5 it ends the process with a segmentation fault."""
    num_bytes = sum(keras.ops.convert_to_numpy(variable).nbytes for variable in model.variables)
    num_bytes += HDF5_BYTES_PER_VARIABLE * len(model.variables)
    with path.open("wb") as file:
        while num_bytes > 0:
            num_bytes -= file.write(bytes(min(num_bytes, 2**20)))
    path.unlink()


def _write_through(file: Path) -> None:
    """Wait until a file is on the disk, not only in memory: its name must not be there first."""
    if file.is_file():
        with file.open("rb") as opened:
            os.fsync(opened.fileno())


def _retire(state: Path) -> None:
    """Remove a saved state, which loses its name first: `step-N` is never a half-removed one."""
    removed = state.with_name(f".removing-{state.name}")
    _remove(removed)
    os.replace(state, removed)
    _remove(removed)


def _remove(path: Path) -> None:
    """Remove a file or folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)

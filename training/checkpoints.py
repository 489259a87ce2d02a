"""Saves and restores a run: the best weights, and the whole state of training for --resume."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import keras
import numpy as np

STATE_FILE = "state.npz"
PROGRESS_FILE = "progress.json"


def save_weights(model: keras.Model, path: Path) -> None:
    """Write the weights to `path`, which is whole at any moment."""
    temporary = path.with_name(f".writing.{path.name}")
    model.save_weights(temporary)
    os.replace(temporary, path)


def save_state(folder: Path, model: keras.Model, step: int, progress: dict[str, Any]) -> Path:
    """Write weights, optimizer, random generators and `progress` into `folder/step-N`.

    The folder gets its name when it is whole; older ones are removed, but for the one before.

    Args:
        folder: `checkpoints/` of the run.
        model: Compiled and built.
        step: Optimizer steps done.
        progress: What else a resumed run must know; JSON.

    Returns:
        The folder written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"step-{step:08d}"
    temporary = folder / f".writing-{target.name}"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    np.savez(temporary / STATE_FILE, **_state(model))  # type: ignore[arg-type]
    (temporary / PROGRESS_FILE).write_text(json.dumps({"step": step, **progress}, indent=2))
    if target.exists():
        _remove(target)
    os.replace(temporary, target)
    for old in sorted(folder.glob("step-*"))[:-2]:
        _remove(old)
    return target


def _remove(state: Path) -> None:
    """Remove a saved state, which loses its name first: `step-N` is never a half-removed one."""
    removed = state.with_name(f".removing-{state.name}")
    shutil.rmtree(removed, ignore_errors=True)
    os.replace(state, removed)
    shutil.rmtree(removed)


def newest_state(folder: Path) -> Path | None:
    """Return the folder of the newest saved state, or None."""
    return max(folder.glob("step-*"), default=None)


def read_progress(state: Path) -> dict[str, Any]:
    """Return what `save_state` was given, with "step".

    Raises:
        ValueError: The file is missing or damaged.
    """
    try:
        return json.loads((state / PROGRESS_FILE).read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"{state / PROGRESS_FILE}: {error}") from None


def load_state(state: Path, model: keras.Model) -> None:
    """Restore the model, its optimizer and its random generators.

    Args:
        state: A folder that `save_state` wrote.
        model: Compiled and built as then.

    Raises:
        ValueError: The file is damaged, or belongs to another model.
    """
    path = state / STATE_FILE
    variables = _variables(model)
    try:
        with path.open("rb") as file, np.load(file) as arrays:
            if sorted(arrays) != sorted(variables):
                raise ValueError("it belongs to another model")
            for name, variable in variables.items():
                if arrays[name].shape != tuple(variable.shape):
                    raise ValueError(f"{name} has another shape")
                variable.assign(arrays[name])
    except Exception as error:  # a damaged archive raises whatever its bytes suggest
        raise ValueError(f"{path}: can't be restored: {error}") from None


def _state(model: keras.Model) -> dict[str, np.ndarray]:
    return {name: keras.ops.convert_to_numpy(v) for name, v in _variables(model).items()}


def _variables(model: keras.Model) -> dict[str, keras.Variable]:
    """Return weights, states of random generators and optimizer, each under a name of its own.

    Not by `variable.path`, which counts what else the process has made.
    """
    everything = [*model.variables, *model.optimizer.variables]
    return {f"{i:05d}_{variable.name}": variable for i, variable in enumerate(everything)}

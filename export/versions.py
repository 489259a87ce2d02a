"""The versions of an exported model: the folders in `DIR/N` whose names are numbers."""

import shutil
from collections.abc import Collection
from pathlib import Path

from keras_transformer.config import SAVED_MODEL_FILE


def versions_of(model: Path) -> list[int]:
    """Return the versions of a model that a server would load, in increasing order."""
    return sorted(
        int(child.name)
        for child in model.iterdir()
        if child.name.isdecimal() and (child / SAVED_MODEL_FILE).is_file()
    )


def next_version(model: Path) -> int:
    """Return one above the highest number that is taken, be it by a SavedModel or not."""
    taken = [int(child.name) for child in model.iterdir() if child.name.isdecimal()]
    return max(taken, default=0) + 1


def prune(model: Path, keep: int, spare: Collection[int]) -> list[int]:
    """Remove all but the newest versions.

    Args:
        model: `DIR/N`.
        keep: How many to leave.
        spare: Versions that stay in any case.

    Returns:
        The versions that were removed.
    """
    old = [version for version in versions_of(model)[:-keep] if version not in spare]
    for version in old:
        # Out of the server's sight at once: it would see a folder that is half gone.
        hidden = (model / str(version)).rename(model / f".removing-{version}")
        shutil.rmtree(hidden)
    return old

"""TensorBoard's event files: reading curves, and going on from an earlier step."""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import tensorflow as tf

from training.checkpoints import replacing


def read_scalars(logs_path: Path) -> dict[str, dict[int, float]]:
    """Return the curves of a run, the parts before a resume included.

    Args:
        logs_path: Folder with event files.

    Returns:
        For each tag, such as "loss" or "validation/bleu", its values by step.
    """
    curves: dict[str, dict[int, float]] = defaultdict(dict)
    for file in sorted(logs_path.glob("events.out.tfevents.*")):  # the name begins with the time
        for event, _ in _read(file):
            if event is None:
                continue
            for value in event.summary.value:
                if value.metadata.plugin_data.plugin_name == "scalars":
                    curves[value.tag][event.step] = float(tf.make_ndarray(value.tensor))
    return dict(curves)


def drop_events_after(logs_path: Path, step: int) -> None:
    """Remove the points after `step`, which a run resumed there will write again.

    Args:
        logs_path: Folder with event files, in whatever subfolder.
        step: The last step that is kept; -1 keeps none.

    Raises:
        OSError: A file can't be written.
    """
    for file in logs_path.rglob("events.out.tfevents.*"):
        if any(event is None or event.step > step for event, _ in _read(file)):
            with replacing(file) as temporary, tf.io.TFRecordWriter(str(temporary)) as writer:
                for event, record in _read(file):
                    if event is not None and (event.step <= step or event.file_version):
                        writer.write(record)


def _read(file: Path) -> Iterator[tuple[tf.compat.v1.Event | None, bytes]]:
    """Yield the events of a file with their bytes; None for an end that was not written whole."""
    records = tf.data.TFRecordDataset(str(file)).as_numpy_iterator()
    try:
        for record in records:
            yield tf.compat.v1.Event.FromString(record), record
    except tf.errors.DataLossError:
        yield None, b""

"""TensorBoard's event files of a run that goes on from an earlier step."""

from collections.abc import Iterator
from pathlib import Path

import tensorflow as tf

from training.checkpoints import replacing


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

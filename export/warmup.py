"""The warm-up of an export: requests that a server answers before it serves a version.

TensorFlow Serving looks for them in `assets.extra/tf_serving_warmup_requests`, as a TFRecord file
of PredictionLog messages.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from export import protos
from export.examples import example_inputs

WARMUP_FILE = Path("assets.extra/tf_serving_warmup_requests")
MAX_RECORDS = 1000  # with more, the server does not load the version


def write_warmup(
    folder: Path,
    signatures: Mapping,
    sentences: Sequence[str],
    batch_sizes: Sequence[int],
    model_name: str,
) -> None:
    """Write requests for every signature, in every batch size and in several lengths.

    Args:
        folder: The exported version.
        signatures: Of `tf.saved_model.load(folder)`.
        sentences: What the requests ask; the longest, the one in the middle and the shortest are
            taken.
        batch_sizes: Those of the server's batching.
        model_name: The server's name of the model.

    Raises:
        ValueError: A signature has an input for which there is no example.
    """
    by_length = sorted(sentences, key=len, reverse=True)
    lengths = [by_length[0], by_length[len(by_length) // 2], by_length[-1]]
    path = folder / WARMUP_FILE
    path.parent.mkdir(exist_ok=True)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for name, signature in sorted(signatures.items()):
            for i, batch_size in enumerate(batch_sizes):
                batch = [lengths[i % len(lengths)]] * batch_size
                inputs = example_inputs(name, signature, batch)
                record = predict_record(model_name, name, inputs)
                writer.write(record.SerializeToString(deterministic=True))


def predict_record(model_name: str, signature_name: str, inputs: Mapping[str, np.ndarray]):
    """Return the PredictionLog of a request, with the tensors that TensorFlow makes of `inputs`."""
    record = protos.PredictionLog()
    request = record.predict_log.request
    request.model_spec.name = model_name
    request.model_spec.signature_name = signature_name
    for key, value in inputs.items():
        request.inputs[key].ParseFromString(tf.make_tensor_proto(value).SerializeToString())
    return record


def read_warmup(folder: Path) -> Iterator[tuple[str, dict[str, tf.Tensor]]]:
    """Yield the signature name and the inputs of each request in a version's warm-up."""
    for record in tf.data.TFRecordDataset(str(folder / WARMUP_FILE)):
        request = protos.PredictionLog.FromString(record.numpy()).predict_log.request
        inputs = {
            key: tf.io.parse_tensor(tensor.SerializeToString(), tf.dtypes.as_dtype(tensor.dtype))
            for key, tensor in request.inputs.items()
        }
        yield request.model_spec.signature_name, inputs

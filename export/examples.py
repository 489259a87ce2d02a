"""Example requests for every signature of an export, whatever it is called."""

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf


def example_inputs(name: str, signature, sentences: Sequence[str]) -> Mapping[str, np.ndarray]:
    """Return values for the inputs of a signature: sentences for strings, ones for numbers.

    Args:
        name: The signature's name, for messages.
        signature: Of `tf.saved_model.load(...).signatures`.
        sentences: One for each row of the batch.

    Raises:
        ValueError: An input has another type, or a shape that a server's batching can't join.
    """
    _, specs = signature.structured_input_signature
    inputs = {}
    for key, spec in specs.items():
        if spec.shape.as_list() != [None]:
            raise ValueError(
                f"signature {name}: input {key} must have the shape [None], so that a server can "
                f"join requests into a batch, received {spec.shape}"
            )
        if spec.dtype == tf.string:
            inputs[key] = np.array([sentence.encode() for sentence in sentences], object)
        elif spec.dtype.is_floating or spec.dtype.is_integer:
            inputs[key] = np.ones(len(sentences), spec.dtype.as_numpy_dtype)
        else:
            raise ValueError(f"signature {name}: no example for input {key} of {spec.dtype.name}")
    return inputs

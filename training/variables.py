"""Reads variables wherever they lie: on one device, on several, or divided among processes."""

import keras
import numpy as np


def to_numpy(variable: keras.Variable) -> np.ndarray:
    """Return the value of a variable, whole."""
    value = variable.value
    if keras.backend.backend() != "jax" or value.is_fully_addressable or value.is_fully_replicated:
        return keras.ops.convert_to_numpy(variable)
    # Divided among the devices of each process, which so has all of it without asking the others.
    whole = np.empty(value.shape, value.dtype)
    for shard in value.addressable_shards:
        whole[shard.index] = shard.data
    return whole


def steps_done(model: keras.Model) -> int:
    """Return how many steps the model's optimizer has made."""
    steps = model.optimizer.iterations
    # int() takes no mirrored variable. With gradient accumulation it is computed: a tensor.
    return int(to_numpy(steps) if isinstance(steps, keras.Variable) else steps)


def copy_variables(model: keras.Model, copy: keras.Model) -> None:
    """Give `copy`, a model of the same kind, the weights of `model`; nothing, if they are one."""
    if copy is not model:
        for variable, own in zip(model.variables, copy.variables, strict=True):
            own.assign(to_numpy(variable))

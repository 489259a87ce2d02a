"""Where a run computes: on one device, on many devices of a machine, or on many machines."""

import hashlib
import pickle
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TypeVar

import keras
import numpy as np
import tensorflow as tf

from training.config import Process, TrainingConfig
from training.data import Division

BLOCK_BYTES = 2**20
T = TypeVar("T")


class Distribution:
    """One device. The base of what divides the work among more.

    Args:
        division: How the batches are divided.

    Attributes:
        is_first: Whether this process is the one that writes the run directory.
        is_one_device: Whether the model can translate as it is, without a copy on one device.
    """

    is_first = True
    is_one_device = True

    def __init__(self, division: Division):
        self.division = division

    def check_vocabulary(self, *sizes: int | None) -> None:
        """Check that vocabularies of these sizes can be divided.

        Raises:
            ValueError: They can't.
        """

    def scope(self) -> AbstractContextManager:
        """Return the context in which the model is built and compiled."""
        return nullcontext()

    def share(self, make: Callable[[], T]) -> T:
        """Return what `make` returns in the first process, where alone it is called.

        Raises:
            ValueError: `make` raised it; likewise OSError.
        """
        return make()

    def any(self, flag: bool) -> bool:
        """Return whether the flag is set in any process."""
        return flag

    def check_agreement(self, *contents: bytes | memoryview) -> None:
        """Check that all processes have the same contents.

        Raises:
            ValueError: They have not.
        """


class Mirrored(Distribution):
    """The devices of one machine, by `tf.distribute.MirroredStrategy`: TensorFlow's backend."""

    def __init__(self):
        devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
        super().__init__(Division(num_parts=len(devices), weigh_parts=True))
        self._strategy = tf.distribute.MirroredStrategy([device.name for device in devices])
        print(f"mirrored on {len(devices)} devices")

    def scope(self) -> AbstractContextManager:
        """Return the strategy's scope."""
        return self._strategy.scope()


class DataParallel(Distribution):
    """All devices of all processes, by `keras.distribution`: the JAX backend.

    Every process runs the same program. What decides how it goes on must not differ between them:
    `share` and `any` see to that.

    Args:
        process: This process among the others; None if it is alone.
        vocabulary_shards: Among how many devices the embedding and the output matrix are divided.

    Raises:
        ValueError: The devices can't be divided that way.
        OSError: The processes don't find each other.
    """

    is_one_device = False

    def __init__(self, process: Process | None, vocabulary_shards: int):
        process = process or Process(0, 1, "")
        if process.num_processes > 1:
            try:
                keras.distribution.initialize(
                    process.coordinator, process.num_processes, process.number
                )
            except RuntimeError as error:
                raise OSError(f"--process {process}: {str(error).splitlines()[0]}") from None
        devices = keras.distribution.list_devices()
        per_process = len(devices) // process.num_processes
        if per_process % vocabulary_shards:
            raise ValueError(
                f"vocabulary_shards must divide the number of devices of a process, {per_process}, "
                f"received {vocabulary_shards}"
            )
        self.is_first = process.number == 0
        self._process = process
        self._vocabulary_shards = vocabulary_shards
        num_parts = len(devices) // vocabulary_shards
        super().__init__(
            Division(
                num_parts,
                fixed_shapes=True,
                process=process.number,
                num_processes=process.num_processes,
            )
        )
        # With nothing in the map this is keras.distribution.DataParallel.
        mesh = keras.distribution.DeviceMesh(
            (num_parts, vocabulary_shards), ("batch", "vocabulary"), devices
        )
        layouts = keras.distribution.LayoutMap(mesh)
        if vocabulary_shards > 1:
            layouts["embedding/embeddings$"] = ("vocabulary", None)
            layouts["embedding/reverse_embeddings$"] = (None, "vocabulary")
        keras.distribution.set_distribution(
            keras.distribution.ModelParallel(layout_map=layouts, auto_shard_dataset=False)
        )
        shards = f", {vocabulary_shards} to each share of a batch" if vocabulary_shards > 1 else ""
        print(f"data parallel: {len(devices)} devices, {process.num_processes} processes{shards}")

    def check_vocabulary(self, *sizes: int | None) -> None:
        """Check that the shards of the vocabularies are of one size."""
        for size in sizes:
            if size and size % self._vocabulary_shards:
                raise ValueError(
                    f"vocabulary_shards {self._vocabulary_shards} must divide the vocabulary, "
                    f"which has {size} pieces; choose another vocab_size"
                )

    def share(self, make: Callable[[], T]) -> T:
        """Return what `make` returns in the first process, or raise what it raises there."""
        if self._process.num_processes == 1:
            return make()
        outcome: tuple[T | None, Exception | None] = (None, None)
        if self.is_first:
            try:
                outcome = make(), None
            except (ValueError, OSError) as error:
                outcome = None, error
        value, failure = pickle.loads(self._broadcast(pickle.dumps(outcome)))
        if failure is not None:
            raise failure
        return value

    def any(self, flag: bool) -> bool:
        """Return whether the flag is set in any process."""
        return flag if self._process.num_processes == 1 else bool(np.any(_gather(np.array([flag]))))

    def check_agreement(self, *contents: bytes | memoryview) -> None:
        """Check that all processes have the same contents, by a hash of them."""
        if self._process.num_processes == 1:
            return
        digest = hashlib.sha256()
        for content in contents:
            digest.update(content)
        digests = _gather(np.frombuffer(digest.digest(), np.uint8))
        others = [number for number, row in enumerate(digests) if np.any(row != digests[0])]
        if others:
            raise ValueError(
                f"process {others[0]} has other options or another corpus than process 0"
            )

    def _broadcast(self, content: bytes) -> bytes:
        """Return the content that the first process has."""
        from jax.experimental.multihost_utils import broadcast_one_to_all

        num_blocks = int(broadcast_one_to_all(np.int32(-(-len(content) // BLOCK_BYTES))))
        blocks = np.zeros(num_blocks * BLOCK_BYTES, np.uint8)
        if self.is_first:
            blocks[: len(content)] = np.frombuffer(content, np.uint8)
        return broadcast_one_to_all(blocks.reshape(num_blocks, BLOCK_BYTES)).tobytes()


def _gather(array: np.ndarray) -> np.ndarray:
    """Return the arrays of all processes, (processes, ...)."""
    from jax.experimental.multihost_utils import process_allgather

    return process_allgather(array)


@contextmanager
def on_one_device() -> Iterator[None]:
    """Build what has nothing to do with the distribution that is set."""
    distribution = keras.distribution.distribution()
    keras.distribution.set_distribution(None)
    try:
        yield
    finally:
        keras.distribution.set_distribution(distribution)


def distribute(options: TrainingConfig, process: Process | None) -> Distribution:
    """Return where a run computes. On JAX, nothing may have been computed before.

    Args:
        options: Of the run.
        process: This process among the others; None if it is alone.

    Raises:
        ValueError: The options don't fit the backend, or the devices.
        OSError: The processes don't find each other.
    """
    backend = keras.backend.backend()
    strategy = options.strategy or ("data_parallel" if process else "")
    needed = {"mirrored": "tensorflow", "data_parallel": "jax"}.get(strategy, backend)
    if backend != needed:
        option = f"strategy {strategy}" if options.strategy else "--process"
        raise ValueError(f"{option} needs the {needed} backend: set KERAS_BACKEND={needed}")
    if strategy != "data_parallel":
        if process:
            raise ValueError("--process needs strategy data_parallel")
        if options.vocabulary_shards > 1:
            raise ValueError("vocabulary_shards needs strategy data_parallel")
    if strategy == "mirrored":
        if options.gradient_accumulation_steps > 1:
            # keras.optimizers.Optimizer updates inside of ops.cond, where replicas can't meet.
            raise ValueError("gradient_accumulation_steps must be 1 with strategy mirrored")
        return Mirrored()
    if strategy == "data_parallel":
        return DataParallel(process, options.vocabulary_shards)
    return Distribution(Division(fixed_shapes=backend == "jax"))

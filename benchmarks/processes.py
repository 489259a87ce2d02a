"""Times a training step of 1 device against 2 on the same cores, and 1 process against 2.

Run: `PYTHONPATH=. .venv/bin/python benchmarks/processes.py`. The arms take turns, each in processes
of its own, with the same model on the same random batches; it prints one line an arm.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time

# Arm: backend, devices of each process, processes.
ARMS = {
    "TensorFlow, 1 device": ("tensorflow", 1, 1),
    "TensorFlow, mirrored on 2": ("tensorflow", 2, 1),
    "JAX, 1 process": ("jax", 1, 1),
    "JAX, 2 devices of 1 process": ("jax", 2, 1),
    "JAX, 2 processes": ("jax", 1, 2),
}
ROWS, LENGTH, VOCABULARY = 64, 32, 8000


def main() -> None:
    """Start the arms in turn, and print their times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="small")
    parser.add_argument("--steps", type=int, default=10, help="timed steps of a turn")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--work", help=argparse.SUPPRESS)  # as a process of an arm: its part, JSON
    options = parser.parse_args()
    if options.work:
        return work(*json.loads(options.work), options.preset, options.steps)
    seconds: dict[str, list[float]] = {name: [] for name in ARMS}
    for _ in range(options.turns):
        for name, arm in ARMS.items():
            seconds[name].append(measure(arm, options))
    print("| arm | ms a step | spread | target tokens/s |")
    print("| --- | ---: | ---: | ---: |")
    for name, times in seconds.items():
        median = statistics.median(times)
        print(
            f"| {name} | {1e3 * median:.0f} | {1e3 * min(times):.0f}-{1e3 * max(times):.0f} "
            f"| {ROWS * LENGTH / median:.0f} |"
        )


def measure(arm, options) -> float:
    """Return the median seconds of a step of one arm, which runs in processes of its own."""
    backend, num_devices, num_processes = arm
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        address = f"localhost:{listener.getsockname()[1]}"
    processes = [
        subprocess.Popen(
            [
                *(sys.executable, __file__, "--preset", options.preset),
                *("--steps", str(options.steps)),
                *("--work", json.dumps([num_devices, number, num_processes, address])),
            ],
            env={
                **os.environ,
                "KERAS_BACKEND": backend,
                "JAX_PLATFORMS": "cpu",
                "XLA_FLAGS": f"--xla_force_host_platform_device_count={num_devices}",
                "TF_CPP_MIN_LOG_LEVEL": "3",
            },
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(num_processes)
    ]
    printed = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit(f"{arm}: failed")
    return float(printed[0].splitlines()[-1])


def work(num_devices, number, num_processes, address, preset, steps) -> None:
    """Train as one process of an arm; print the median seconds of a step."""
    import tensorflow as tf

    if os.environ["KERAS_BACKEND"] == "tensorflow":
        (cpu,) = tf.config.list_physical_devices("CPU")
        devices = num_devices * [tf.config.LogicalDeviceConfiguration()]
        tf.config.set_logical_device_configuration(cpu, devices)
    import keras
    import numpy as np

    from keras_transformer import ModelConfig, build_transformer
    from training.config import Process, TrainingConfig
    from training.data import Batches, Sequences, TokenizedCorpus
    from training.distribution import distribute
    from training.run import compile_model

    keras.utils.set_random_seed(1)
    is_jax = keras.backend.backend() == "jax"
    strategy = "data_parallel" if is_jax else "mirrored"
    options = TrainingConfig(strategy=strategy if num_devices * num_processes > 1 else "")
    process = Process(number, num_processes, address) if num_processes > 1 else None
    distribution = distribute(options, process)
    ids = np.random.default_rng(1).integers(4, VOCABULARY, (4 * ROWS, LENGTH), np.int32)
    sequences = Sequences(ids.ravel(), np.arange(0, ids.size + 1, LENGTH))
    corpus = TokenizedCorpus(sequences, sequences, 0)
    batches = Batches(corpus, ROWS * LENGTH, 1, distribution.division)
    config = ModelConfig.preset(preset, VOCABULARY)
    with distribution.scope():
        model = build_transformer(config)
        compile_model(model, config, options)
    times: list[float] = []

    class Clock(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            float(logs["loss"])  # waits for the step
            times.append(time.perf_counter())

    model.fit(
        batches.dataset(),
        steps_per_epoch=steps + 3,  # the first ones compile
        shuffle=False,
        verbose=0,
        callbacks=[Clock()],
    )
    print(statistics.median(np.diff(times)[2:]))


if __name__ == "__main__":
    main()

"""Many devices, and many processes, end with the weights of one device with the same batches."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from random import Random

import numpy as np
import pytest
from ports import free_ports

from keras_transformer import ModelConfig, build_transformer

ROOT = Path(__file__).parents[2]
STEPS = 6
# Dropout stays on where each device draws what it draws as part of the whole: on JAX.
CONFIG = """
[model]
preset = "tiny"
num_encoder_layers = 1
num_decoder_layers = 1
d_model = 16
num_heads = 2
d_ff = 16
dropout = {dropout}

[training]
vocab_size = 280
batch_tokens = 200
warmup_steps = 10
evaluate_every_steps = 3
evaluation_sentences = 2
select_by = "loss"
attention_every_steps = 0
"""
needs_jax = pytest.mark.skipif(
    importlib.util.find_spec("jax") is None, reason="jax is not installed"
)
MIRRORED_ON_TWO_DEVICES = """
import runpy
import tensorflow as tf

(cpu,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, 2 * [tf.config.LogicalDeviceConfiguration()])
runpy.run_module("training", run_name="__main__", alter_sys=True)
"""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A folder with a corpus whose sentences are about as long, so that JAX compiles little."""
    folder = tmp_path_factory.mktemp("corpus")
    random = Random(1)
    for name, count in (("train", 60), ("valid", 6)):
        lines = [
            " ".join(random.choices("abcdefgh", k=7)) + "\t" + " ".join(random.choices("stuv", k=7))
            for _ in range(count)
        ]
        (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    for name, dropout in (("plain", 0.0), ("dropout", 0.1)):
        (folder / f"{name}.toml").write_text(CONFIG.format(dropout=dropout))
    return folder


def start(corpus, config, output, *more, backend, num_devices=1, command=("-m", "training")):
    return subprocess.Popen(
        [
            *(sys.executable, *command, "--config", corpus / config, "--output", output),
            *("--train", corpus / "train.tsv", "--valid", corpus / "valid.tsv"),
            *map(str, ("--max-steps", STEPS, *more)),
        ],
        cwd=ROOT,
        env={
            **os.environ,
            "KERAS_BACKEND": backend,
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={num_devices}",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(*processes):
    """Return what the processes printed, once all have ended well."""
    try:
        printed = [process.communicate(timeout=280) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (_, errors) in zip(processes, printed, strict=True):
        assert process.returncode == 0, errors
    return [output for output, _ in printed]


def start_two(corpus, configs, outputs, *more, **options):
    (port,) = free_ports(1)
    return [
        start(
            corpus,
            config,
            output,
            *("--process", f"{i}/2@localhost:{port}", *more),
            backend="jax",
            **options,
        )
        for i, (config, output) in enumerate(zip(configs, outputs, strict=True))
    ]


def assert_same_end(run, other):
    """Check weights and scores of two runs, to rounding."""
    config = json.loads((run / "config.json").read_text())["model"]
    models = [build_transformer(ModelConfig.from_dict(config)) for _ in range(2)]
    for model, folder in zip(models, (run, other), strict=True):
        model.load_weights(folder / "model.weights.h5")
    for one, two in zip(*(model.trainable_variables for model in models), strict=True):
        # A bias of all keys changes no attention; Adam makes steps of its rounding errors.
        if "key/bias" not in one.path:
            np.testing.assert_allclose(one, two, rtol=1e-3, atol=2e-5, err_msg=one.path)
    results, other_results = (
        json.loads((folder / "results.json").read_text()) for folder in (run, other)
    )
    assert results["steps"] == other_results["steps"] == STEPS
    assert results["best_loss"] == pytest.approx(other_results["best_loss"], rel=1e-5)
    assert results["num_tokens"] == other_results["num_tokens"]


def test_mirrored_devices_end_like_one_device(corpus, tmp_path):
    finish(start(corpus, "plain.toml", tmp_path / "one", backend="tensorflow"))
    (printed,) = finish(
        start(
            *(corpus, "plain.toml", tmp_path / "two", "--strategy", "mirrored"),
            backend="tensorflow",
            command=("-c", MIRRORED_ON_TWO_DEVICES),
        )
    )
    assert "mirrored on 2 devices" in printed
    assert_same_end(tmp_path / "two", tmp_path / "one")


@pytest.fixture(scope="module")
def one_process(corpus):
    """The run directory of one process on JAX, on one device."""
    output = corpus / "one"
    finish(start(corpus, "dropout.toml", output, backend="jax"))
    return output


@needs_jax
def test_two_processes_end_like_one_and_only_the_first_writes_and_prints(
    corpus, one_process, tmp_path
):
    outputs = tmp_path / "first", tmp_path / "second"
    first, second = finish(*start_two(corpus, 2 * ["dropout.toml"], outputs))
    assert "2 devices, 2 processes" in first and "done: 6 steps" in first
    assert "step" not in second
    assert not outputs[1].exists()
    assert {file.name for file in outputs[0].iterdir()} == {
        file.name for file in one_process.iterdir()
    }
    assert_same_end(outputs[0], one_process)


@pytest.mark.slow
@needs_jax
def test_two_processes_with_a_divided_vocabulary_are_resumed_and_end_like_one(
    corpus, one_process, tmp_path
):
    (corpus / "shards.toml").write_text(
        (corpus / "dropout.toml").read_text() + "vocabulary_shards = 2\n"
    )
    outputs = tmp_path / "first", tmp_path / "second"
    for more in (("--max-steps", STEPS // 2), ("--resume",)):
        first, _ = finish(*start_two(corpus, 2 * ["shards.toml"], outputs, *more, num_devices=2))
        assert "4 devices, 2 processes, 2 to each share of a batch" in first
    assert "resumed from" in first
    assert_same_end(outputs[0], one_process)


@pytest.mark.slow
@needs_jax
def test_when_the_first_process_fails_the_other_ends_too(corpus, tmp_path):
    (tmp_path / "first").mkdir()
    (tmp_path / "first/checkpoints").touch()  # where a folder should be
    processes = start_two(corpus, 2 * ["dropout.toml"], (tmp_path / "first", tmp_path / "second"))
    errors = [process.communicate(timeout=280)[1] for process in processes]
    assert processes[0].returncode == 1
    assert errors[0].splitlines()[-1].startswith("error: ")
    assert str(tmp_path / "first/checkpoints") in errors[0].splitlines()[-1]
    assert processes[1].returncode not in (0, None)


@pytest.mark.slow
@needs_jax
def test_processes_with_different_options_are_told(corpus, tmp_path):
    configs = "plain.toml", "dropout.toml"
    processes = start_two(corpus, configs, (tmp_path / "first", tmp_path / "second"))
    for process in processes:
        _, errors = process.communicate(timeout=280)
        assert process.returncode == 2
        assert "error: process 1 has other options or another corpus than process 0" in errors

"""What all tests share: repeatable draws, and tiny models made once."""

import os
import random

import numpy as np
import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


@pytest.fixture(autouse=True)
def seed():
    """Seed Python and NumPy, from which Keras draws the seeds of its layers.

    Not keras.utils.set_random_seed: it destroys the tokenizers that were made before it.
    """
    random.seed(1)
    np.random.seed(1)


@pytest.fixture(scope="session")
def tiny_config():
    """Return a function that makes a ModelConfig of 2 + 2 layers and 20 pieces, no sizes equal."""
    from keras_transformer import ModelConfig

    def make(**overrides):
        tiny = {
            "vocab_size": 20,
            "num_encoder_layers": 2,
            "num_decoder_layers": 2,
            "d_model": 12,
            "num_heads": 3,
            "d_ff": 10,
            "max_length": 14,
        }
        return ModelConfig(**{**tiny, **overrides})

    return make


@pytest.fixture(scope="session")
def tiny_model(tiny_config):
    """Return a function that gives the model of `tiny_config`, the same each time: don't train it.

    No weight keeps its initial value, so that biases and normalisations matter too.
    """
    from keras_transformer import build_transformer

    models = {}

    def make(**overrides):
        key = tuple(sorted(overrides.items()))
        if key not in models:
            models[key] = build_transformer(tiny_config(**overrides))
            rng = np.random.default_rng(1)
            for weight in models[key].trainable_variables:
                weight.assign(weight + 0.2 * rng.standard_normal(weight.shape))
        return models[key]

    return make


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    """A run directory with random weights."""
    from exporting import write_run

    return write_run(tmp_path_factory.mktemp("runs") / "demo")


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """The folder that `run` is exported to."""
    return tmp_path_factory.mktemp("export") / "models"


@pytest.fixture(scope="session")
def command(run, models):
    """The export of `run`, by the command: exit status, stdout and stderr."""
    from exporting import run_main

    return run_main(run, "--output", models)


@pytest.fixture(scope="session")
def exported(command, models):
    """The folder of the exported version."""
    assert command.status == 0, command.err
    return models / "demo/1"

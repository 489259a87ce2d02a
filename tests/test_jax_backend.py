"""The layers use Keras operations only: their tests pass on its JAX backend too."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
FILES = [
    "test_masks.py",
    "test_embedding.py",
    "test_attention.py",
    "test_feed_forward.py",
    "test_encoder_decoder.py",
    "test_model.py",
    "test_numpy_reference.py",
]
# Compiling is what takes time on JAX: leave out what has shapes or precisions of its own.
LEFT_OUT = [
    "warns",
    "paper",
    "mixed_precision",
    "dtype_policy",
    "of_one_token",
    "decoder_steps",
    "in_training",
    "number_of_weights",
]
RUN = """
import sys
import keras, pytest
assert keras.backend.backend() == "jax"
sys.exit(pytest.main(sys.argv[1:]))
"""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed")
@pytest.mark.skipif(os.environ.get("KERAS_BACKEND") == "jax", reason="this is the JAX run")
def test_the_tests_of_the_layers_pass_on_jax():
    process = subprocess.run(
        [
            sys.executable,
            "-c",
            RUN,
            "-q",
            "-p",
            "no:cacheprovider",
            "-k",
            " and ".join(f"not {name}" for name in LEFT_OUT),
            *FILES,
        ],
        cwd=TESTS,
        env={
            **os.environ,
            "KERAS_BACKEND": "jax",
            "JAX_PLATFORMS": "cpu",
            "PYTHONPATH": os.pathsep.join([str(TESTS.parent), os.environ.get("PYTHONPATH", "")]),
        },
        capture_output=True,
        text=True,
    )
    report = process.stdout + process.stderr
    assert process.returncode == 0, report
    (passed,) = re.findall(r"(\d+) passed", report)
    assert int(passed) > 150, report
    skipped = sum(int(count) for count in re.findall(r"(\d+) skipped", report))
    assert skipped < 5, report

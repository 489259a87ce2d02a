"""Options of many devices that don't fit: the message says what to set."""

import keras
import pytest

from training.config import Process, TrainingConfig
from training.distribution import distribute, on_one_device


@pytest.mark.parametrize(
    "text", ["", "0", "0/2", "2/2@host:1", "0/2@host", "0/0@host:1", "-1/2@host:1", "0/2@:1 x"]
)
def test_a_process_that_is_none_is_an_error(text):
    with pytest.raises(ValueError, match="--process must be NUMBER/COUNT@HOST:PORT"):
        Process.parse(text)


def test_a_process_is_read_from_its_text_and_written_back():
    assert Process.parse("1/4@host1:9876") == Process(1, 4, "host1:9876")
    assert str(Process.parse("1/4@host1:9876")) == "1/4@host1:9876"


def test_an_unknown_strategy_is_an_error():
    with pytest.raises(ValueError, match="strategy must be one of: empty, mirrored, data_paral"):
        TrainingConfig(strategy="tpu")


@pytest.mark.parametrize(
    "backend, options, process, message",
    [
        ("tensorflow", {"strategy": "data_parallel"}, None, "strategy data_parallel .* jax"),
        ("tensorflow", {}, Process(0, 2, "host:1"), "--process .* KERAS_BACKEND=jax"),
        ("jax", {"strategy": "mirrored"}, None, "strategy mirrored .* KERAS_BACKEND=tensorflow"),
        (
            "tensorflow",
            {"strategy": "mirrored"},
            Process(0, 2, "host:1"),
            "--process needs strategy data_parallel",
        ),
        ("jax", {"vocabulary_shards": 2}, None, "vocabulary_shards needs strategy data_parallel"),
        (
            "tensorflow",
            {"strategy": "mirrored", "gradient_accumulation_steps": 2},
            None,
            "gradient_accumulation_steps must be 1 with strategy mirrored",
        ),
    ],
)
def test_options_that_do_not_fit_are_named(monkeypatch, backend, options, process, message):
    monkeypatch.setattr(keras.backend, "backend", lambda: backend)
    with pytest.raises(ValueError, match=message):
        distribute(TrainingConfig(**options), process)


def test_one_device_shares_nothing():
    distribution = distribute(TrainingConfig(), None)
    assert distribution.is_first and distribution.is_one_device
    assert distribution.share(lambda: 5) == 5
    assert distribution.any(True) and not distribution.any(False)
    distribution.check_vocabulary(7, None)
    distribution.check_agreement(b"anything")


def test_the_distribution_is_back_after_what_is_built_on_one_device():
    before = keras.distribution.distribution()
    with pytest.raises(RuntimeError), on_one_device():
        assert keras.distribution.distribution() is None
        raise RuntimeError
    assert keras.distribution.distribution() is before

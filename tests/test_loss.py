"""The loss against Keras's own on one-hot labels, and its written-out gradient against autodiff."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from training.loss import MaskedCrossentropy, token_crossentropy

VOCAB_SIZE = 7
SMOOTHINGS = [0.0, 0.1, 0.5]


@pytest.fixture
def labels():
    """Three targets of different lengths; 0 is padding."""
    return np.array([[4, 1, 6, 3], [5, 3, 0, 0], [3, 0, 0, 0]], np.int32)


@pytest.fixture
def logits():
    return np.random.default_rng(1).normal(0, 3, (3, 4, VOCAB_SIZE)).astype(np.float32)


def naive_loss(labels, logits, label_smoothing):
    """Return the definition: cross-entropy with the smoothed distribution, written out."""
    target = (1 - label_smoothing) * tf.one_hot(labels, VOCAB_SIZE) + label_smoothing / VOCAB_SIZE
    losses = -tf.reduce_sum(target * tf.nn.log_softmax(logits), axis=-1)
    is_real = tf.cast(labels != 0, tf.float32)
    return tf.reduce_sum(losses * is_real) / tf.reduce_sum(is_real)


def loss_and_gradient(function, labels, logits):
    logits = tf.constant(logits)
    with tf.GradientTape() as tape:
        tape.watch(logits)
        loss = function(labels, logits)
    return loss, tape.gradient(loss, logits)


@pytest.mark.parametrize("label_smoothing", SMOOTHINGS)
def test_the_loss_is_that_of_keras_on_one_hot_labels_of_the_real_tokens(
    labels, logits, label_smoothing
):
    of_keras = keras.losses.CategoricalCrossentropy(
        label_smoothing=label_smoothing, from_logits=True
    )
    is_real = labels != 0
    expected = of_keras(np.eye(VOCAB_SIZE)[labels[is_real]], logits[is_real])
    loss = MaskedCrossentropy(label_smoothing)(labels, logits)
    assert float(loss) == pytest.approx(float(expected), rel=1e-5)


def test_epsilon_is_0_1_as_in_the_paper(labels, logits):
    loss = MaskedCrossentropy()(labels, logits)
    assert float(loss) == pytest.approx(float(naive_loss(labels, logits, 0.1)), rel=1e-5)


def test_the_loss_of_each_token_is_its_own_and_0_at_padding(labels, logits):
    losses, is_real = token_crossentropy(labels, logits)
    log_probs = np.log(np.exp(logits) / np.exp(logits).sum(-1, keepdims=True))
    expected = -np.take_along_axis(log_probs, labels[..., None], -1)[..., 0] * (labels != 0)
    np.testing.assert_allclose(losses, expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(is_real, labels != 0)


def test_logits_at_padding_change_nothing(labels, logits):
    loss = MaskedCrossentropy(0.1)
    changed = logits.copy()
    changed[labels == 0] = 1000 * np.random.default_rng(2).normal(size=VOCAB_SIZE)
    before, gradient_before = loss_and_gradient(loss, labels, logits)
    after, gradient_after = loss_and_gradient(loss, labels, changed)
    assert float(before) == float(after)
    np.testing.assert_array_equal(gradient_before, gradient_after)


def test_the_gradient_is_0_at_padding_and_not_elsewhere(labels, logits):
    _, gradient = loss_and_gradient(MaskedCrossentropy(0.1), labels, logits)
    assert not np.any(gradient.numpy()[labels == 0])
    assert np.all(gradient.numpy()[labels != 0])


@pytest.mark.parametrize("label_smoothing", SMOOTHINGS)
@pytest.mark.parametrize("in_graph", [False, True])
def test_the_gradient_is_that_of_the_naive_formula(labels, logits, label_smoothing, in_graph):
    def naive(labels, logits):
        return naive_loss(labels, logits, label_smoothing)

    loss = MaskedCrossentropy(label_smoothing)
    function = tf.function(loss) if in_graph else loss
    value, gradient = loss_and_gradient(function, labels, logits)
    expected_value, expected_gradient = loss_and_gradient(naive, labels, logits)
    assert float(value) == pytest.approx(float(expected_value), rel=1e-5)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-4, atol=1e-7)


def test_the_gradient_reaches_what_made_the_logits_and_each_token_by_its_weight(labels, logits):
    """The losses are not only averaged: `upstream` differs from token to token here."""
    weights = np.random.default_rng(3).normal(size=labels.shape).astype(np.float32)

    def ours(labels, logits):
        return tf.reduce_sum(weights * token_crossentropy(labels, 2.0 * logits, 0.1)[0])

    def naive(labels, logits):
        target = 0.9 * tf.one_hot(labels, VOCAB_SIZE) + 0.1 / VOCAB_SIZE
        losses = -tf.reduce_sum(target * tf.nn.log_softmax(2.0 * logits), axis=-1)
        return tf.reduce_sum(weights * losses * tf.cast(labels != 0, tf.float32))

    _, gradient = loss_and_gradient(ours, labels, logits)
    _, expected = loss_and_gradient(naive, labels, logits)
    np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("label_smoothing", SMOOTHINGS)
@pytest.mark.parametrize(
    "row",
    [
        [1e4, -1e4, 0, 0, 0, 0, 0],
        [-1e4, 1e4, -1e4, 1e4, -1e4, 0, 0],
        [1e4] * VOCAB_SIZE,
        [-1e4] * VOCAB_SIZE,
    ],
)
def test_extreme_logits_have_the_exact_finite_loss_and_a_finite_gradient(row, label_smoothing):
    labels = np.array([[1, 2, 6]], np.int32)
    logits = np.tile(np.array(row, np.float32), (1, 3, 1))
    exact = np.array(row, np.float64)
    log_partition = exact.max() + np.log(np.exp(exact - exact.max()).sum())
    expected = (
        log_partition
        - (1 - label_smoothing) * exact[labels].mean()
        - label_smoothing * exact.mean()
    )
    loss, gradient = loss_and_gradient(MaskedCrossentropy(label_smoothing), labels, logits)
    assert float(loss) == pytest.approx(expected, rel=1e-6, abs=1e-2)
    assert np.all(np.isfinite(gradient))
    np.testing.assert_allclose(np.sum(gradient, axis=-1), 0, atol=1e-6)


def test_a_batch_of_padding_has_loss_0_and_gradient_0(logits):
    labels = np.zeros((3, 4), np.int32)
    loss, gradient = loss_and_gradient(MaskedCrossentropy(0.1), labels, logits)
    assert float(loss) == 0
    assert not np.any(gradient)


def test_float16_logits_are_computed_in_float32(labels, logits):
    half = (20 * logits).astype(np.float16)  # exp of some of these is no float16
    whole = half.astype(np.float32)
    loss, gradient = loss_and_gradient(MaskedCrossentropy(0.1), labels, half)
    expected, expected_gradient = loss_and_gradient(MaskedCrossentropy(0.1), labels, whole)
    assert loss.dtype == tf.float32 and float(loss) == float(expected)
    assert gradient.dtype == tf.float16
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-2, atol=1e-4)


def test_the_loss_survives_serialization(labels, logits):
    loss = MaskedCrossentropy(0.2, name="mine")
    restored = keras.losses.deserialize(keras.losses.serialize(loss))
    assert isinstance(restored, MaskedCrossentropy)
    assert (restored.name, restored.label_smoothing) == ("mine", 0.2)
    assert float(restored(labels, logits)) == float(loss(labels, logits))


@pytest.mark.parametrize("value", [-0.1, 1, 1.5, float("nan")])
def test_smoothing_outside_0_to_1_is_an_error_that_names_it(value):
    with pytest.raises(ValueError, match=rf"^label_smoothing must be in \[0, 1\), .* {value}$"):
        MaskedCrossentropy(value)


JAX_RUN = """
import jax, jax.numpy as jnp, keras, numpy as np
from training.loss import MaskedCrossentropy

assert keras.backend.backend() == "jax"
labels = np.array([[4, 1, 6, 3], [5, 3, 0, 0], [3, 0, 0, 0]], np.int32)
logits = np.random.default_rng(1).normal(0, 3, (3, 4, 7)).astype(np.float32)

def naive(labels, logits, epsilon):
    target = (1 - epsilon) * jax.nn.one_hot(labels, 7) + epsilon / 7
    losses = -jnp.sum(target * jax.nn.log_softmax(logits), axis=-1)
    return jnp.sum(losses * (labels != 0)) / jnp.sum(labels != 0)

for epsilon in (0.0, 0.1):
    ours = jax.jit(jax.value_and_grad(MaskedCrossentropy(epsilon), argnums=1))
    value, gradient = ours(labels.astype("float32"), logits)
    expected = jax.value_and_grad(naive, argnums=1)(labels, logits, epsilon)
    np.testing.assert_allclose(value, expected[0], rtol=1e-5)
    np.testing.assert_allclose(gradient, expected[1], rtol=1e-4, atol=1e-7)
    assert not np.any(np.asarray(gradient)[labels == 0])
print("same")
"""


@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed")
def test_loss_and_gradient_are_the_same_on_jax():
    process = subprocess.run(
        [sys.executable, "-c", JAX_RUN],
        cwd=Path(__file__).resolve().parents[1],
        env={**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
    )
    assert process.stdout == "same\n", process.stderr

"""Facts about the position-wise network (paper 3.3) and the residual connection (3.1, 5.4)."""

import keras
import numpy as np
import pytest
import reference
from keras import ops

from keras_transformer.config import ACTIVATIONS
from keras_transformer.feed_forward import FeedForward, Residual


def values(x):
    return ops.convert_to_numpy(x)


def draw(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype("float32")


def randomize(layer):
    for weight in layer.trainable_weights:
        weight.assign(weight + 0.3 * draw(*weight.shape))
    return layer


def make_feed_forward(activation="relu"):
    layer = FeedForward(10, activation)
    layer.build((None, None, 6))
    return randomize(layer)


def make_residual(**options):
    layer = Residual(**options)
    layer.build((None, None, 6))
    return randomize(layer)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_feed_forward_equals_the_formula(activation):
    layer = make_feed_forward(activation)
    weights = [values(weight) for weight in layer.weights]
    assert [weight.shape for weight in weights] == [(6, 10), (10,), (10, 6), (6,)]
    x = draw(2, 3, 6)
    expected = reference.feed_forward(x, weights, activation)
    np.testing.assert_allclose(values(layer(x)), expected, atol=1e-5)


def test_feed_forward_treats_each_position_alone():
    layer = make_feed_forward()
    x = draw(2, 3, 6)
    np.testing.assert_allclose(values(layer(x[:, 1:2])), values(layer(x))[:, 1:2], atol=1e-6)


def test_dropout_acts_on_the_activations_in_training_only():
    layer = FeedForward(1000, dropout=0.5)
    layer.build((None, 6))
    layer.set_weights([np.zeros((6, 1000)), np.ones(1000), np.full((1000, 6), 0.001), np.zeros(6)])
    x = draw(4, 6)
    np.testing.assert_allclose(values(layer(x, training=False)), 1.0, atol=1e-5)
    kept = values(layer(x, training=True)) / 2  # those that are kept are doubled
    assert np.all((kept > 0.4) & (kept < 0.6)) and len(np.unique(kept[:, 0])) > 1


def test_post_norm_residual_normalises_the_sum():
    layer = make_residual(dropout=0.1, pre_norm=False)
    x, y = draw(2, 3, 6), draw(2, 4, 6)[:, :3]
    norm = (values(layer.norm.gamma), values(layer.norm.beta))
    np.testing.assert_array_equal(values(layer.enter(x)), x)
    np.testing.assert_allclose(
        values(layer.leave(x, y)), reference.layer_norm(x + y, norm), atol=1e-5
    )


def test_pre_norm_residual_normalises_the_input_of_the_sublayer():
    layer = make_residual(dropout=0.1, pre_norm=True)
    x, y = draw(2, 3, 6), draw(2, 4, 6)[:, :3]
    norm = (values(layer.norm.gamma), values(layer.norm.beta))
    np.testing.assert_allclose(values(layer.enter(x)), reference.layer_norm(x, norm), atol=1e-5)
    np.testing.assert_allclose(values(layer.leave(x, y)), x + y, atol=1e-6)


def test_dropout_acts_on_the_sublayer_output_in_training_only():
    layer = make_residual(dropout=0.5, pre_norm=True)
    x, y = draw(9, 20, 6), np.ones((9, 20, 6), "float32")
    np.testing.assert_allclose(values(layer.leave(x, y, training=False)), x + 1, atol=1e-6)
    added = values(layer.leave(x, y, training=True)) - x
    dropped = np.isclose(added, 0, atol=1e-5)
    assert 0.4 < dropped.mean() < 0.6
    np.testing.assert_allclose(added[~dropped], 2.0, atol=1e-5)  # never x itself


@pytest.mark.parametrize(
    "layer",
    [
        FeedForward(10, "gelu", 0.25, name="some", dtype="mixed_bfloat16"),
        Residual(0.25, True, name="some", dtype="mixed_bfloat16"),
    ],
    ids=["FeedForward", "Residual"],
)
def test_layers_survive_their_config(layer):
    restored = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layer))
    assert type(restored) is type(layer)
    assert restored.get_config() == layer.get_config()
    for each in (layer, restored):
        each.build((None, None, 6))
    restored.set_weights(layer.get_weights())
    x = ops.cast(draw(2, 3, 6), "bfloat16")
    outputs = [
        each(x) if isinstance(each, FeedForward) else each.leave(x, each.enter(x))
        for each in (layer, restored)
    ]
    np.testing.assert_array_equal(*(values(ops.cast(output, "float32")) for output in outputs))
    assert keras.backend.standardize_dtype(outputs[1].dtype) == "bfloat16"

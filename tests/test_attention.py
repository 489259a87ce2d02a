"""Facts about multi-head attention (paper 3.2) and its cached step."""

import keras
import numpy as np
import pytest
import reference
from keras import ops

from keras_transformer.attention import MultiHeadAttention
from keras_transformer.masks import attention_bias

HEADS, KEY_DIM, D_MODEL = 3, 4, 12


def values(x):
    return ops.convert_to_numpy(x)


def draw(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype("float32")


def make_attention(dropout=0.0):
    layer = MultiHeadAttention(HEADS, KEY_DIM, dropout=dropout)
    layer.build((None, None, D_MODEL), (None, None, D_MODEL))
    rng = np.random.default_rng(1)
    for weight in layer.trainable_weights:  # biases too
        weight.assign(weight + 0.3 * rng.standard_normal(weight.shape))
    return layer


def numpy_weights(layer):
    def projection(dense):
        return values(dense.kernel).transpose(1, 0, 2), values(dense.bias)

    output = values(layer.output_dense.kernel)
    return {
        "query": projection(layer.query_dense),
        "key": projection(layer.key_dense),
        "value": projection(layer.value_dense),
        "output": (output.reshape(HEADS * KEY_DIM, D_MODEL), values(layer.output_dense.bias)),
    }


MASK = np.array(
    [
        [[1, 1, 0, 0, 0], [1, 0, 1, 0, 1], [0, 0, 0, 0, 1]],
        [[1, 1, 1, 1, 1], [0, 1, 1, 0, 0], [1, 0, 0, 0, 0]],
    ],
    dtype=bool,
)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("with_scores", [False, True], ids=["call", "call_with_scores"])
def test_masked_attention_equals_the_formula(dropout, with_scores):
    layer = make_attention(dropout)
    query, memory = draw(2, 3, D_MODEL), draw(2, 5, D_MODEL)
    if with_scores:
        outputs, _ = layer.call_with_scores(query, memory, MASK, training=False)
    else:
        outputs = layer(query, memory, attention_mask=MASK)
    for sentence in range(2):
        visible = [np.flatnonzero(row) for row in MASK[sentence]]
        expected = reference.multi_head_attention(
            query[sentence], memory[sentence], visible, numpy_weights(layer)
        )
        np.testing.assert_allclose(values(outputs)[sentence], expected, atol=1e-5)


def test_scores_are_distributions_over_the_allowed_keys():
    query, memory = draw(2, 3, D_MODEL), draw(2, 5, D_MODEL)
    _, scores = make_attention().call_with_scores(query, memory, MASK)
    scores = values(scores)
    assert scores.shape == (2, HEADS, 3, 5)
    np.testing.assert_allclose(scores.sum(axis=-1), 1.0, atol=1e-6)
    blocked = np.broadcast_to(~MASK[:, np.newaxis], scores.shape)
    assert (scores[blocked] == 0).all()
    assert (scores[~blocked] > 0).all()


def test_scores_equal_the_formula():
    layer = make_attention()
    x = draw(2, 5, D_MODEL)
    _, scores = layer.call_with_scores(x, x, np.ones((2, 5, 5), bool))
    (query, query_bias), (key, key_bias) = (numpy_weights(layer)[name] for name in ("query", "key"))
    for head in range(HEADS):
        q, k = x[0] @ query[head] + query_bias[head], x[0] @ key[head] + key_bias[head]
        expected = [reference.softmax(row) for row in q @ k.T / np.sqrt(KEY_DIM)]
        np.testing.assert_allclose(values(scores)[0, head], expected, atol=1e-5)


def test_dropout_acts_on_the_weights_in_training_only():
    layer = MultiHeadAttention(num_heads=D_MODEL, key_dim=1, dropout=0.25)
    layer.build((None, None, D_MODEL), (None, None, D_MODEL))
    layer.value_dense.kernel.assign(np.zeros((D_MODEL, D_MODEL, 1)))
    layer.value_dense.bias.assign(np.ones((D_MODEL, 1)))
    layer.output_dense.kernel.assign(np.eye(D_MODEL).reshape(D_MODEL, 1, D_MODEL))
    x, one_key = draw(2, 50, D_MODEL), draw(2, 1, D_MODEL)
    mask = np.ones((2, 1, 1), bool)
    # Each output is the weight of the only key in one head.
    np.testing.assert_allclose(values(layer(x, one_key, mask, training=False)), 1.0, atol=1e-6)
    weights = values(layer(x, one_key, mask, training=True))
    dropped = weights == 0
    assert 0.2 < dropped.mean() < 0.3
    np.testing.assert_allclose(weights[~dropped], 1 / 0.75, rtol=1e-5)


def test_initial_kernels_are_glorot_uniform_for_square_matrices():
    d_model = 64
    layer = MultiHeadAttention(num_heads=4, key_dim=16)
    layer.build((None, None, d_model), (None, None, d_model))
    limit = np.sqrt(6 / (d_model + d_model))
    for dense in (layer.query_dense, layer.key_dense, layer.value_dense, layer.output_dense):
        kernel = values(dense.kernel)
        assert kernel.size == d_model**2
        assert 0.97 * limit < np.abs(kernel).max() <= limit
        assert abs(kernel.std() - limit / np.sqrt(3)) < 0.03 * limit
        assert not values(dense.bias).any()


def test_projection_gives_keys_and_values_by_head():
    layer = make_attention()
    x = draw(2, 5, D_MODEL)
    projected = layer.project(x)
    for name in ("key", "value"):
        matrix, bias = numpy_weights(layer)[name]
        expected = np.einsum("bld,hdk->bhlk", x, matrix) + bias[:, np.newaxis]
        np.testing.assert_allclose(values(projected[name]), expected, atol=1e-5)


@pytest.mark.parametrize("beams", [1, 3])
def test_the_cache_starts_empty_and_grows_by_one_position_of_each_beam(beams):
    layer = make_attention()
    cache = layer.empty_cache(2)
    assert set(cache) == {"key", "value"}
    for length in range(3):
        for leaf in cache.values():
            assert tuple(leaf.shape) == (2, HEADS, length * beams, KEY_DIM)
        x = draw(2 * beams, D_MODEL)
        _, cache = layer.step_self(x, beams, layer.self_projection(), cache)


@pytest.mark.parametrize("beams", [1, 3])
def test_steps_of_self_attention_equal_causal_attention(beams):
    layer = make_attention()
    length = 4
    x = draw(2, beams, length, D_MODEL)
    causal = np.tril(np.ones((1, length, length), bool))
    flat = x.reshape(2 * beams, length, D_MODEL)
    whole = values(layer(flat, flat, attention_mask=causal)).reshape(x.shape)
    cache, projection = layer.empty_cache(2), layer.self_projection()
    for position in range(length):
        own = np.tile(np.eye(beams, dtype=bool), (2, 1, position + 1))  # each beam its own only
        newest = x[:, :, position].reshape(2 * beams, D_MODEL)
        step, cache = layer.step_self(newest, beams, projection, cache, attention_bias(own))
        step = values(step).reshape(2, beams, D_MODEL)
        np.testing.assert_allclose(step, whole[:, :, position], atol=1e-5)


@pytest.mark.parametrize("beams", [1, 3])
def test_attention_to_a_projected_source_equals_cross_attention(beams):
    layer = make_attention()
    x, source = draw(2, beams, D_MODEL), draw(2, 5, D_MODEL)
    mask = np.array([[[1, 1, 1, 0, 0]], [[1, 0, 0, 0, 0]]], dtype=bool)
    whole, scores = layer.call_with_scores(x, source, mask)
    flat = x.reshape(2 * beams, D_MODEL)
    projection, projected = layer.query_projection(), layer.project(source)
    step, weights = layer.step_cross(flat, beams, projection, projected, attention_bias(mask))
    np.testing.assert_allclose(values(step), values(whole).reshape(flat.shape), atol=1e-5)
    np.testing.assert_allclose(values(weights), values(scores), atol=1e-6)


def test_attention_survives_its_config():
    layer = MultiHeadAttention(HEADS, KEY_DIM, dropout=0.25, name="some")
    restored = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layer))
    assert type(restored) is MultiHeadAttention
    assert restored.get_config() == layer.get_config()
    assert (restored.num_heads, restored.key_dim, restored.dropout) == (HEADS, KEY_DIM, 0.25)
    for each in (layer, restored):
        each.build((None, None, D_MODEL), (None, None, D_MODEL))
    restored.set_weights(layer.get_weights())
    x, mask = draw(2, 5, D_MODEL), np.ones((2, 1, 5), bool)
    np.testing.assert_array_equal(values(restored(x, x, mask)), values(layer(x, x, mask)))

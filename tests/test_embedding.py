"""Facts about embeddings, logits and positions (paper 3.4, 3.5)."""

import keras
import numpy as np
import pytest
import reference
from keras import ops

from keras_transformer.embedding import PositionalEncoding, TokenEmbedding, sinusoid

IDS = np.array([[1, 5, 0], [7, 7, 2]])


def values(x):
    return ops.convert_to_numpy(x)


def rng():
    return np.random.default_rng(1)


def test_embedding_is_scaled_by_the_root_of_d_model():
    layer = TokenEmbedding(9, 16)
    vectors = values(layer(IDS))
    np.testing.assert_allclose(vectors, values(layer.embeddings)[IDS] * 4.0, rtol=1e-6)


def test_initial_scaled_embeddings_have_unit_variance():
    vectors = values(TokenEmbedding(500, 64)(np.arange(500)))
    assert abs(vectors.std() - 1) < 0.03
    assert abs(vectors.mean()) < 0.03


def test_tied_logits_are_unscaled_products_with_the_embedding():
    layer = TokenEmbedding(9, 16)
    layer.build()
    x = rng().standard_normal((2, 3, 16)).astype("float32")
    np.testing.assert_allclose(
        values(layer(x, reverse=True)), x @ values(layer.embeddings).T, rtol=1e-4, atol=1e-5
    )
    assert len(layer.weights) == 1


def test_untied_logits_use_a_matrix_of_their_own():
    layer = TokenEmbedding(9, 16, tie_weights=False)
    layer.build()
    x = rng().standard_normal((2, 3, 16)).astype("float32")
    first, second = (values(weight) for weight in layer.weights)
    assert first.shape == (9, 16)
    assert second.shape == (16, 9)
    assert not np.allclose(first, second.T)
    np.testing.assert_allclose(values(layer(x, reverse=True)), x @ second, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(values(layer(IDS)), first[IDS] * 4.0, rtol=1e-6)


@pytest.mark.parametrize("policy", ["float32", "mixed_float16", "mixed_bfloat16"])
def test_logits_are_float32_under_every_policy(policy):
    layer = TokenEmbedding(9, 16, dtype=policy)
    vectors = layer(IDS)
    assert keras.backend.standardize_dtype(vectors.dtype) == layer.compute_dtype
    logits = layer(vectors, reverse=True)
    assert keras.backend.standardize_dtype(logits.dtype) == "float32"
    symbolic = keras.KerasTensor((2, 3, 16), dtype=layer.compute_dtype)
    assert layer(symbolic, reverse=True).dtype == "float32"
    assert layer(symbolic, reverse=True).shape == (2, 3, 9)
    assert layer(keras.KerasTensor((2, 3), dtype="int32")).dtype == layer.compute_dtype


def test_bfloat16_logits_are_a_bfloat16_product():
    layer = TokenEmbedding(9, 16, dtype="mixed_bfloat16")
    layer.build()
    vectors = ops.cast(rng().standard_normal((2, 3, 16)), "bfloat16")
    rounded = ops.cast(layer.embeddings, "bfloat16")
    expected = values(ops.cast(ops.matmul(vectors, ops.transpose(rounded)), "float32"))
    np.testing.assert_array_equal(values(layer(vectors, reverse=True)), expected)


@pytest.mark.parametrize("tie_weights", [True, False])
def test_token_embedding_survives_its_config(tie_weights):
    layer = TokenEmbedding(9, 16, tie_weights=tie_weights, name="some", dtype="mixed_bfloat16")
    layer.build()
    restored = TokenEmbedding.from_config(layer.get_config())
    restored.build()
    assert restored.get_config() == layer.get_config()
    restored.set_weights(layer.get_weights())
    x = rng().standard_normal((2, 3, 16)).astype("float32")
    np.testing.assert_array_equal(values(restored(x, reverse=True)), values(layer(x, reverse=True)))
    assert (restored.name, restored.compute_dtype) == ("some", "bfloat16")


@pytest.mark.parametrize("d_model", [2, 6, 16])
def test_sinusoids_follow_the_formula(d_model):
    expected = reference.positional_encoding(60, d_model)
    np.testing.assert_allclose(values(sinusoid(np.arange(60), d_model)), expected, atol=1e-5)


def test_sinusoids_take_any_positions():
    positions = np.array([3, 0, 300])
    expected = reference.positional_encoding(301, 8)[positions]
    np.testing.assert_allclose(values(sinusoid(positions, 8)), expected, atol=1e-4)


def test_sinusoids_are_added_whatever_the_length():
    layer = PositionalEncoding(max_length=4)
    x = rng().standard_normal((2, 7, 6)).astype("float32")
    expected = x + reference.positional_encoding(7, 6)
    np.testing.assert_allclose(values(layer(x)), expected, atol=1e-5)
    assert layer.weights == []


def test_learned_positions_are_added_row_by_row():
    layer = PositionalEncoding(learned=True, max_length=5)
    x = rng().standard_normal((2, 3, 6)).astype("float32")
    y = values(layer(x))
    (table,) = layer.trainable_weights
    assert tuple(table.shape) == (5, 6)
    np.testing.assert_allclose(y, x + values(table)[:3], atol=1e-6)


@pytest.mark.parametrize("learned", [True, False])
def test_vectors_of_single_positions_are_those_of_the_sequence(learned):
    layer = PositionalEncoding(learned=learned, max_length=5)
    x = np.zeros((1, 5, 6), "float32")
    whole = values(layer(x))[0]
    for position in range(5):
        row = values(layer.vectors(np.array([position]), 6, "float32"))
        np.testing.assert_allclose(row, whole[position : position + 1], atol=1e-6)


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="only TensorFlow checks the index of a gather"
)
def test_a_sequence_beyond_the_learned_table_is_an_error():
    layer = PositionalEncoding(learned=True, max_length=5)
    layer(np.zeros((1, 5, 6), "float32"))
    with pytest.raises(Exception, match=r"indices\[5\] = 5 is not in \[0, 5\)"):
        layer(np.zeros((1, 6, 6), "float32"))


@pytest.mark.parametrize("learned", [True, False])
def test_positions_keep_the_compute_dtype(learned):
    layer = PositionalEncoding(learned=learned, max_length=5, dtype="mixed_bfloat16")
    y = layer(ops.ones((1, 3, 6), "bfloat16"))
    assert keras.backend.standardize_dtype(y.dtype) == "bfloat16"


def test_positional_encoding_survives_its_config():
    layer = PositionalEncoding(learned=True, max_length=5, name="some")
    layer.build((None, None, 6))
    restored = PositionalEncoding.from_config(layer.get_config())
    assert restored.get_config() == layer.get_config()
    restored.build((None, None, 6))
    restored.set_weights(layer.get_weights())
    x = rng().standard_normal((2, 3, 6)).astype("float32")
    np.testing.assert_array_equal(values(restored(x)), values(layer(x)))

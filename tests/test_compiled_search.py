"""Greedy search in buffers of fixed shape finds what the cached search finds."""

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.compiled_search import CompiledGreedySearch
from keras_transformer.config import PAD_ID
from keras_transformer.decoding import greedy_search
from keras_transformer.model import StepDecoder

ALPHA = 0.6
SOURCES = np.array([[4, 5, 6, 7, 3], [8, 3, 0, 0, 0], [9, 10, 3, 0, 0]], np.int32)


@pytest.fixture(scope="module", params=[False, True], ids=["sinusoids", "learned_positions"])
def model(request, tiny_model):
    return tiny_model(learned_positions=request.param)


@pytest.mark.parametrize("limits", [[1, 1, 1], [14, 3, 5], [40, 40, 37]])
def test_it_finds_the_sequences_of_the_cached_search(model, limits):
    limits = np.array(limits, np.int32)
    step, cache = StepDecoder(model).start(tf.constant(SOURCES))
    expected = greedy_search(step, cache, tf.constant(limits), ALPHA)
    found = CompiledGreedySearch(model, 14, 40, ALPHA)(SOURCES, limits)
    assert np.all(found.lengths[:, 0] <= limits)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


def test_a_sentence_does_not_depend_on_its_batch(model):
    search = CompiledGreedySearch(model, 14, 40, ALPHA)
    limits = np.array([20, 30, 40], np.int32)
    together = search(SOURCES, limits)
    for i, source in enumerate(SOURCES):
        alone = search(source[np.newaxis, source != PAD_ID], limits[i : i + 1])
        length = alone.lengths[0, 0]
        np.testing.assert_array_equal(alone.ids[0, 0], together.ids[i, 0, :length])
        np.testing.assert_allclose(alone.scores[0], together.scores[i], rtol=1e-5)


def test_the_weights_are_those_of_now(model):
    search = CompiledGreedySearch(model, 14, 40, ALPHA)
    limits = np.array([3, 3, 3], np.int32)
    before = search(SOURCES, limits).scores
    weight = model.get_layer("embedding").embeddings
    own = weight.numpy()
    weight.assign(0.5 * own)
    after = search(SOURCES, limits).scores
    weight.assign(own)
    assert not np.allclose(before, after)

"""Facts about masks: True = attend, and no row is ever empty."""

import numpy as np
import pytest
from keras import ops

from keras_transformer import masks

IDS = np.array([[5, 6, 7, 0, 0], [0, 0, 0, 0, 0], [2, 4, 4, 4, 3], [0, 5, 0, 6, 0]])


def values(mask):
    array = ops.convert_to_numpy(mask)
    assert array.dtype == bool
    return array


def test_padding_mask_is_true_at_real_tokens():
    expected = [[token != 0 for token in row] for row in IDS.tolist()]
    assert values(masks.padding_mask(IDS)).tolist() == expected


@pytest.mark.parametrize("length", [1, 2, 5])
def test_causal_mask_allows_the_present_and_the_past(length):
    expected = [[[key <= query for key in range(length)] for query in range(length)]]
    assert values(masks.causal_mask(length)).tolist() == expected


def test_source_mask_allows_real_tokens_and_the_first_of_an_all_padding_source():
    mask = values(masks.source_attention_mask(IDS))
    assert mask.shape == (4, 1, 5)
    for row, ids in zip(mask[:, 0].tolist(), IDS.tolist(), strict=True):
        seen = [key for key, token in enumerate(ids) if token] or [0]
        assert row == [key in seen for key in range(5)]


def test_target_mask_allows_real_tokens_of_the_past_and_else_the_first():
    mask = values(masks.target_attention_mask(IDS))
    assert mask.shape == (4, 5, 5)
    for square, ids in zip(mask.tolist(), IDS.tolist(), strict=True):
        for query, row in enumerate(square):
            seen = [key for key in range(query + 1) if ids[key]] or [0]
            assert row == [key in seen for key in range(5)]


@pytest.mark.parametrize(
    ("layer_class", "function"),
    [
        (masks.SourceMask, masks.source_attention_mask),
        (masks.TargetMask, masks.target_attention_mask),
    ],
)
def test_mask_layers_compute_the_functions_and_survive_their_config(layer_class, function):
    layer = layer_class(name="some_mask")
    restored = layer_class.from_config(layer.get_config())
    assert restored.name == "some_mask"
    for each in (layer, restored):
        np.testing.assert_array_equal(values(each(IDS)), values(function(IDS)))

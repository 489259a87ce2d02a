"""The model's logits equal those of the NumPy implementation (reference.py) on the same weights."""

import numpy as np
import pytest
import reference
from keras import ops

SOURCE_LENGTHS, TARGET_LENGTHS = [6, 3, 1, 5, 4, 2, 6, 1], [2, 4, 3, 1, 4, 2, 3, 4]


def draw_ids(lengths):
    ids = np.random.default_rng(1).integers(1, 18, (len(lengths), max(lengths)), "int32")
    return np.where(np.arange(max(lengths)) < np.array(lengths)[:, np.newaxis], ids, 0)


SOURCE_IDS, TARGET_IDS = draw_ids(SOURCE_LENGTHS), draw_ids(TARGET_LENGTHS)


def array(weight):
    return ops.convert_to_numpy(weight).astype("float64")


def attention_weights(layer):
    def projection(dense):  # (d_model, heads, d_k) to a matrix a head
        return np.moveaxis(array(dense.kernel), 1, 0), array(dense.bias)

    kernel = array(layer.output_dense.kernel)  # (heads, d_k, d_model)
    return {
        "query": projection(layer.query_dense),
        "key": projection(layer.key_dense),
        "value": projection(layer.value_dense),
        "output": (kernel.reshape(-1, kernel.shape[-1]), array(layer.output_dense.bias)),
    }


def norm_weights(layer):
    return array(layer.gamma), array(layer.beta)


def layer_weights(layer, with_cross):
    inner, outer = layer.feed_forward.inner, layer.feed_forward.outer
    weights = {
        "self": attention_weights(layer.self_attention),
        "self_norm": norm_weights(layer.self_attention_residual.norm),
        "ffn": tuple(map(array, (inner.kernel, inner.bias, outer.kernel, outer.bias))),
        "ffn_norm": norm_weights(layer.feed_forward_residual.norm),
    }
    if with_cross:
        weights["cross"] = attention_weights(layer.cross_attention)
        weights["cross_norm"] = norm_weights(layer.cross_attention_residual.norm)
    return weights


def model_weights(model, config):
    if config.source_vocab_size is None:
        source_embedding = target_embedding = model.get_layer("embedding")
    else:
        source_embedding = model.get_layer("source_embedding")
        target_embedding = model.get_layer("target_embedding")
    encoder, decoder = model.get_layer("encoder"), model.get_layer("decoder")
    if config.tie_weights:
        output = array(target_embedding.embeddings).T
    else:
        output = array(target_embedding.reverse_embeddings)
    return {
        "source_embedding": array(source_embedding.embeddings),
        "target_embedding": array(target_embedding.embeddings),
        "output": output,
        "source_positions": array(encoder.positions.table) if config.learned_positions else None,
        "target_positions": array(decoder.positions.table) if config.learned_positions else None,
        "encoder": [layer_weights(layer, with_cross=False) for layer in encoder.layers],
        "decoder": [layer_weights(layer, with_cross=True) for layer in decoder.layers],
        "encoder_norm": norm_weights(encoder.norm) if config.pre_norm else None,
        "decoder_norm": norm_weights(decoder.norm) if config.pre_norm else None,
    }


CASES = [
    {"activation": "relu"},
    {"activation": "gelu", "learned_positions": True},
    {"activation": "silu", "source_vocab_size": 18},
    {"pre_norm": True, "activation": "relu", "learned_positions": True},
    {"pre_norm": True, "activation": "gelu", "source_vocab_size": 18, "tie_weights": False},
    {"pre_norm": True, "activation": "silu"},
    {"tie_weights": False, "dropout": 0.1, "attention_dropout": 0.1},
    {"num_encoder_layers": 1, "num_decoder_layers": 3},
]


@pytest.mark.parametrize("case", CASES, ids=lambda c: ",".join(f"{k}={v}" for k, v in c.items()))
def test_logits_equal_the_numpy_implementation(tiny_config, tiny_model, case):
    config, model = tiny_config(**case), tiny_model(**case)
    logits = ops.convert_to_numpy(model({"source_ids": SOURCE_IDS, "target_ids": TARGET_IDS}))
    expected = reference.transformer(
        SOURCE_IDS,
        TARGET_IDS,
        model_weights(model, config),
        config.activation,
        config.pre_norm,
    )
    assert [len(rows) for rows in expected] == TARGET_LENGTHS
    for rows, expected_rows in zip(logits, expected, strict=True):
        assert expected_rows.std() > 0.1
        np.testing.assert_allclose(rows[: len(expected_rows)], expected_rows, atol=2e-5)

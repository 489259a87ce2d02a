"""Facts about encoder and decoder as layers (paper 3.1); their values: test_numpy_reference.py."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.decoder import Decoder, DecoderLayer
from keras_transformer.encoder import Encoder, EncoderLayer

BATCH, SOURCE, TARGET, D_MODEL = 2, 4, 3, 8
SOURCE_MASK = np.array([[[1, 1, 1, 1]], [[1, 1, 0, 0]]], dtype=bool)
CAUSAL_MASK = np.tril(np.ones((BATCH, TARGET, TARGET), bool))
OPTIONS = {"num_heads": 2, "d_ff": 12}


def values(x):
    return ops.convert_to_numpy(x)


def draw(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype("float32")


SOURCE_VECTORS, TARGET_VECTORS = draw(BATCH, SOURCE, D_MODEL), draw(BATCH, TARGET, D_MODEL)


def make(layer_class, **options):
    if issubclass(layer_class, Encoder | Decoder):
        options = {"num_layers": 2, "max_length": 9, **options}
    layer = layer_class(**OPTIONS, **options)
    if is_encoder(layer):
        layer.build((None, None, D_MODEL))
    else:
        layer.build((None, None, D_MODEL), (None, None, D_MODEL))
    for weight in layer.trainable_weights:
        weight.assign(weight + 0.2 * draw(*weight.shape))
    return layer


def is_encoder(layer):
    return isinstance(layer, Encoder | EncoderLayer)


def arguments(layer, dtype="float32"):
    source, target = (ops.cast(x, dtype) for x in (SOURCE_VECTORS, TARGET_VECTORS))
    return (
        (source, SOURCE_MASK) if is_encoder(layer) else (target, source, CAUSAL_MASK, SOURCE_MASK)
    )


ALL = pytest.mark.parametrize("layer_class", [EncoderLayer, DecoderLayer, Encoder, Decoder])
STACKS = pytest.mark.parametrize("layer_class", [Encoder, Decoder])
NORM = pytest.mark.parametrize("pre_norm", [False, True], ids=["post_norm", "pre_norm"])


@ALL
@NORM
@pytest.mark.parametrize("attention_dropout", [0.0, 0.1])
def test_scores_do_not_change_the_output(layer_class, pre_norm, attention_dropout):
    layer = make(layer_class, pre_norm=pre_norm, attention_dropout=attention_dropout)
    inputs = arguments(layer)
    output = layer.call_with_scores(*inputs)[0]
    np.testing.assert_allclose(values(output), values(layer(*inputs)), atol=1e-5)


@ALL
def test_scores_are_distributions_over_the_allowed_keys(layer_class):
    layer = make(layer_class)
    _, *all_scores = layer.call_with_scores(*arguments(layer))
    masks = [SOURCE_MASK] if is_encoder(layer) else [CAUSAL_MASK, SOURCE_MASK]
    layers = (2,) if isinstance(layer, Encoder | Decoder) else ()
    queries = SOURCE if is_encoder(layer) else TARGET
    for scores, mask in zip(all_scores, masks, strict=True):
        scores = values(scores)
        assert scores.shape == (BATCH, *layers, 2, queries, mask.shape[-1])
        np.testing.assert_allclose(scores.sum(axis=-1), 1.0, atol=1e-6)
        mask = mask.reshape(BATCH, *[1] * (1 + len(layers)), *mask.shape[1:])
        mask = np.broadcast_to(mask, scores.shape)
        assert (scores[~mask] == 0).all()
        assert (scores[mask] > 0).all()


def test_scores_of_a_stack_are_those_of_its_layers_in_order():
    encoder = make(Encoder)
    x, scores = encoder.call_with_scores(SOURCE_VECTORS, SOURCE_MASK)
    h = encoder.enter(SOURCE_VECTORS)
    for i, layer in enumerate(encoder.layers):
        h, layer_scores = layer.call_with_scores(h, SOURCE_MASK)
        np.testing.assert_allclose(values(scores)[:, i], values(layer_scores), atol=1e-6)
    assert not np.allclose(values(scores)[:, 0], values(scores)[:, 1], atol=1e-3)


@STACKS
def test_only_a_pre_norm_stack_normalises_its_output_once_more(layer_class):
    post, pre = (make(layer_class, pre_norm=pre_norm) for pre_norm in (False, True))
    assert len(pre.weights) == len(post.weights) + 2
    gamma, beta = (values(weight) for weight in pre.weights[-2:])
    normalised = (values(pre(*arguments(pre))) - beta) / gamma
    np.testing.assert_allclose(normalised.mean(axis=-1), 0.0, atol=1e-4)
    np.testing.assert_allclose(normalised.std(axis=-1), 1.0, atol=1e-3)


@STACKS
def test_a_stack_has_as_many_layers_as_asked_each_with_its_own_weights(layer_class):
    stack = make(layer_class, num_layers=3)
    assert len(stack.layers) == 3
    kernels = [values(layer.self_attention.query_dense.kernel) for layer in stack.layers]
    assert not np.allclose(kernels[0], kernels[1])
    assert not np.allclose(kernels[1], kernels[2])


@STACKS
def test_dropout_acts_on_the_sum_of_embeddings_and_positions_in_training_only(layer_class):
    stack = make(layer_class, dropout=0.5)
    x = draw(8, 20, D_MODEL)
    summed = values(stack.positions(x))
    np.testing.assert_allclose(values(stack.enter(x, training=False)), summed, atol=1e-6)
    entered = values(stack.enter(x, training=True))
    dropped = entered == 0
    assert 0.45 < dropped.mean() < 0.55
    np.testing.assert_allclose(entered[~dropped], 2 * summed[~dropped], rtol=1e-4, atol=1e-5)


@ALL
@pytest.mark.parametrize("dropouts", [(0.1, 0.0), (0.0, 0.1)])
def test_either_dropout_changes_the_output_in_training_only(layer_class, dropouts):
    layer = make(layer_class, dropout=dropouts[0], attention_dropout=dropouts[1])
    inputs = arguments(layer)
    np.testing.assert_array_equal(
        values(layer(*inputs, training=False)), values(layer(*inputs, training=False))
    )
    assert not np.allclose(
        values(layer(*inputs, training=True)), values(layer(*inputs, training=False)), atol=1e-3
    )


@NORM
@pytest.mark.parametrize("beams", [1, 3])
def test_decoder_steps_equal_the_positions_of_the_whole(pre_norm, beams):
    decoder = make(Decoder, pre_norm=pre_norm, learned_positions=True)
    x = draw(BATCH, beams, TARGET, D_MODEL)
    whole = decoder(
        x.reshape(BATCH * beams, TARGET, D_MODEL),
        np.repeat(SOURCE_VECTORS, beams, axis=0),
        np.repeat(CAUSAL_MASK, beams, axis=0),
        np.repeat(SOURCE_MASK, beams, axis=0),
    )
    whole = values(whole).reshape(x.shape)
    cache, weights = decoder.start(SOURCE_VECTORS, SOURCE_MASK, beams), decoder.prepare_step()
    each_its_own = np.tile(np.arange(beams, dtype="int32"), (BATCH, 1))
    for position in range(TARGET):
        y, cache = decoder.step(x[:, :, position], each_its_own, position, weights, cache)
        y = values(y).reshape(BATCH, beams, D_MODEL)
        np.testing.assert_allclose(y, whole[:, :, position], atol=1e-5)


@ALL
@NORM
def test_layers_survive_their_config(layer_class, pre_norm):
    options = {
        "dropout": 0.25,
        "attention_dropout": 0.125,
        "activation": "silu",
        "pre_norm": pre_norm,
        "name": "some",
    }
    if layer_class in (Encoder, Decoder):
        options |= {"num_layers": 1, "learned_positions": True, "max_length": 6}
    layer = make(layer_class, **options)
    config = layer.get_config()
    assert config == {**config, **OPTIONS, **options}
    restored = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layer))
    assert type(restored) is layer_class
    assert restored.get_config() == config
    inputs = arguments(layer)
    restored(*inputs)
    restored.set_weights(layer.get_weights())
    np.testing.assert_array_equal(values(restored(*inputs)), values(layer(*inputs)))


@ALL
@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_every_part_of_a_layer_follows_its_dtype_policy(layer_class, policy):
    layer = make(layer_class, dtype=policy)
    parts = layer._flatten_layers(include_self=True, recursive=True)
    assert {part.compute_dtype for part in parts} == {policy.removeprefix("mixed_")}
    assert {weight.dtype for weight in layer.trainable_weights} == {"float32"}
    output = layer(*arguments(layer, layer.compute_dtype))
    assert keras.backend.standardize_dtype(output.dtype) == layer.compute_dtype

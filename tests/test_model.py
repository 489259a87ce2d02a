"""Facts about the whole model: causality, padding, scores, caching, precision, size."""

import contextlib
import logging
import warnings

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import ModelConfig, build_attention_model, build_transformer
from keras_transformer.decoder import DecoderLayer
from keras_transformer.embedding import PositionalEncoding, TokenEmbedding
from keras_transformer.encoder import EncoderLayer
from keras_transformer.masks import SourceMask, TargetMask
from keras_transformer.model import StepDecoder

# Different lengths of source and target, with padding in the second of each.
SOURCE_IDS = np.array([[4, 9, 5, 17, 8, 3], [6, 6, 3, 0, 0, 0]], "int32")
TARGET_IDS = np.array([[2, 8, 19, 4], [2, 11, 0, 0]], "int32")
NOTHING = np.zeros_like(SOURCE_IDS)
SHORT = {"num_encoder_layers": 1, "num_decoder_layers": 1}

NORM = pytest.mark.parametrize("pre_norm", [False, True], ids=["post_norm", "pre_norm"])
POLICY = pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])


def values(x):
    return ops.convert_to_numpy(x)


def logits_of(model, source_ids, target_ids):
    outputs = model({"source_ids": source_ids, "target_ids": target_ids})
    return values(outputs["logits"] if isinstance(outputs, dict) else outputs)


def logits_of_eight(model, source_ids, target_ids):
    """Computes one sentence or a few, always in a batch of eight: JAX compiles by shape."""
    count = max(len(source_ids), len(target_ids))
    eight = (np.resize(ids, (8, ids.shape[1])) for ids in (source_ids, target_ids))  # repeats
    return logits_of(model, *eight)[:count]


def assert_equal_where_real(logits, expected):
    """Compares at the real positions of TARGET_IDS."""
    for row, expected_row, ids in zip(logits, expected, TARGET_IDS, strict=True):
        length = np.count_nonzero(ids)
        np.testing.assert_allclose(row[:length], expected_row[:length], atol=1e-5)


def pad(ids, count):
    return np.pad(ids, ((0, 0), (0, count)))


def with_each_changed(ids, new_ids):
    """Returns `ids` (length,) with one position changed, for each position."""
    return np.where(np.eye(len(ids), dtype=bool), new_ids, ids)


@pytest.fixture(
    scope="module",
    params=[
        (dropout, attention_dropout, with_scores, pre_norm)
        for pre_norm in (False, True)
        for dropout in (0.0, 0.1)
        for attention_dropout in (0.0, 0.1)
        for with_scores in (False, True)
    ],
    ids=lambda p: (
        f"dropout={p[0]}-attention_dropout={p[1]}"
        f"-{'scores' if p[2] else 'model'}-{'pre_norm' if p[3] else 'post_norm'}"
    ),
)
def each_model(request, tiny_model):
    """Every way through the attention and around it, at inference."""
    dropout, attention_dropout, with_scores, pre_norm = request.param
    model = tiny_model(
        dropout=dropout, attention_dropout=attention_dropout, pre_norm=pre_norm, **SHORT
    )
    return build_attention_model(model) if with_scores else model


def test_future_tokens_do_not_change_past_logits(each_model):
    target_ids = TARGET_IDS[0]
    changed = np.stack([np.where(np.arange(4) < start, target_ids, 7) for start in (1, 2, 3, 4)])
    logits = logits_of_eight(each_model, SOURCE_IDS[:1], changed)
    for start, row in zip((1, 2, 3), logits, strict=False):
        np.testing.assert_allclose(row[:start], logits[-1][:start], atol=1e-5)
        assert (np.abs(row - logits[-1]).max(axis=-1)[start:] > 1e-3).all()


def test_each_past_token_changes_the_logits(each_model):
    changed = np.vstack([TARGET_IDS[:1], with_each_changed(TARGET_IDS[0], 7)])
    before, *after = logits_of_eight(each_model, SOURCE_IDS[:1], changed)
    for position, row in enumerate(after):
        assert (np.abs(row - before).max(axis=-1)[position:] > 1e-3).all()


def test_each_source_token_changes_the_logits(each_model):
    changed = np.vstack([SOURCE_IDS[:1], with_each_changed(SOURCE_IDS[0], 7)])
    before, *after = logits_of_eight(each_model, changed, TARGET_IDS[:1])
    for row in after:
        assert (np.abs(row - before).max(axis=-1) > 1e-3).all()


def test_longer_padding_of_the_source_does_not_change_the_logits(each_model):
    before = logits_of_eight(each_model, SOURCE_IDS, TARGET_IDS)
    after = logits_of_eight(each_model, pad(SOURCE_IDS, 3), TARGET_IDS)
    assert_equal_where_real(after, before)


def test_longer_padding_of_the_target_does_not_change_the_logits(each_model):
    before = logits_of_eight(each_model, SOURCE_IDS, TARGET_IDS)
    after = logits_of_eight(each_model, SOURCE_IDS, pad(TARGET_IDS, 3))
    assert after.shape[1] == before.shape[1] + 3
    assert_equal_where_real(after, before)


def test_an_all_padding_source_is_finite_whatever_its_length_and_leaves_others_alone(each_model):
    before = logits_of_eight(each_model, SOURCE_IDS, TARGET_IDS)
    shorter = logits_of_eight(each_model, np.stack([SOURCE_IDS[0], NOTHING[0]]), TARGET_IDS[:1])
    longer = logits_of_eight(each_model, pad(NOTHING, 3), TARGET_IDS[:1])
    assert np.isfinite(shorter).all()
    np.testing.assert_allclose(longer[0], shorter[1], atol=1e-5)
    np.testing.assert_allclose(shorter[0], before[0], atol=1e-5)


def test_an_all_padding_target_is_finite(each_model):
    assert np.isfinite(logits_of_eight(each_model, SOURCE_IDS, np.zeros((2, 4), "int32"))).all()


@NORM
def test_an_all_padding_source_of_one_token_equals_a_longer_one(tiny_model, pre_norm):
    model = tiny_model(pre_norm=pre_norm, **SHORT)
    np.testing.assert_allclose(
        logits_of(model, NOTHING[:, :1], TARGET_IDS),
        logits_of(model, NOTHING, TARGET_IDS),
        atol=1e-5,
    )


@NORM
@pytest.mark.parametrize("attention_dropout", [0.0, 0.1])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_scores_do_not_change_the_logits(tiny_model, dropout, attention_dropout, pre_norm):
    model = tiny_model(
        dropout=dropout, attention_dropout=attention_dropout, pre_norm=pre_norm, **SHORT
    )
    source_ids = np.vstack([SOURCE_IDS, SOURCE_IDS, NOTHING, NOTHING])  # with and without padding
    target_ids = np.vstack([TARGET_IDS, np.zeros((2, 4), "int32")] * 2)
    np.testing.assert_allclose(
        logits_of(build_attention_model(model), source_ids, target_ids),
        logits_of(model, source_ids, target_ids),
        atol=1e-5,
    )


def test_scores_are_those_of_inference_whatever_training_says(tiny_model):
    attention_model = build_attention_model(tiny_model(dropout=0.1, attention_dropout=0.1, **SHORT))
    inputs = {"source_ids": SOURCE_IDS, "target_ids": TARGET_IDS}
    inference, training = (attention_model(inputs, training=training) for training in (False, True))
    for name in ("logits", "encoder", "decoder", "cross"):
        np.testing.assert_array_equal(values(training[name]), values(inference[name]))


def test_scores_sum_to_one_and_are_zero_at_padding_and_future(tiny_model):
    outputs = build_attention_model(tiny_model())(
        {"source_ids": SOURCE_IDS, "target_ids": TARGET_IDS}
    )
    batch, source, target = 2, SOURCE_IDS.shape[1], TARGET_IDS.shape[1]
    assert set(outputs) == {"logits", "encoder", "decoder", "cross"}
    real_source = (SOURCE_IDS != 0)[:, np.newaxis]
    real_past = (TARGET_IDS != 0)[:, np.newaxis] & np.tril(np.ones((target, target), bool))
    for name, allowed, queries in (
        ("encoder", real_source, source),
        ("decoder", real_past, target),
        ("cross", real_source, target),
    ):
        scores = values(outputs[name])
        assert scores.shape == (batch, 2, 3, queries, allowed.shape[-1]), name
        np.testing.assert_allclose(scores.sum(axis=-1), 1.0, atol=1e-6)
        allowed = np.broadcast_to(allowed[:, np.newaxis, np.newaxis], scores.shape)
        assert (scores[~allowed] == 0).all(), name
        assert (scores[allowed] > 0).all(), name


def test_the_attention_model_shares_all_weights_and_adds_none(tiny_model):
    model = tiny_model()
    attention_model = build_attention_model(model)
    assert {id(weight) for weight in attention_model.weights} == {
        id(weight) for weight in model.weights
    }


@contextlib.contextmanager
def same_dropout(model):
    """Lets the model draw, inside, what it drew the last time."""
    states = [weight for weight in model.non_trainable_variables if "seed" in weight.path]
    before = [values(state) for state in states]
    yield len(states)
    for state, value in zip(states, before, strict=True):
        state.assign(value)


@NORM
def test_future_tokens_do_not_change_past_logits_in_training(tiny_model, pre_norm):
    model = tiny_model(dropout=0.1, attention_dropout=0.1, pre_norm=pre_norm, **SHORT)
    changed = TARGET_IDS.copy()
    changed[:, 2:] = 7
    logits = []
    for target_ids in (TARGET_IDS, changed, TARGET_IDS):
        with same_dropout(model) as states:
            assert states
            inputs = {"source_ids": SOURCE_IDS, "target_ids": target_ids}
            logits.append(values(model(inputs, training=True)))
    np.testing.assert_array_equal(logits[0], logits[2])
    np.testing.assert_allclose(logits[0][:, :2], logits[1][:, :2], atol=1e-5)
    assert not np.allclose(logits[0][:, 2:], logits[1][:, 2:], atol=1e-2)
    assert not np.allclose(logits[0], logits_of(model, SOURCE_IDS, TARGET_IDS), atol=1e-2)


@NORM
@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize(
    "options",
    [SHORT, {"learned_positions": True, "source_vocab_size": 18}],
    ids=["sinusoids", "learned_positions"],
)
def test_steps_with_a_cache_equal_the_whole_at_every_position(
    tiny_model, options, num_beams, pre_norm
):
    model = tiny_model(pre_norm=pre_norm, **options)
    length = 4
    ids = np.random.default_rng(1).integers(4, 20, (2, num_beams, length)).astype("int32")
    ids[:, :, 0] = 2
    whole = logits_of(model, np.repeat(SOURCE_IDS, num_beams, 0), ids.reshape(-1, length))
    whole = whole.reshape(2, num_beams, length, 20)
    step, cache = StepDecoder(model).start(SOURCE_IDS, num_beams)
    each_its_own = np.tile(np.arange(num_beams, dtype="int32"), (2, 1))
    for position in range(length):
        logits, cache = step(ids[:, :, position], each_its_own, position, cache)
        assert keras.backend.standardize_dtype(logits.dtype) == "float32"
        np.testing.assert_allclose(values(logits), whole[:, :, position], atol=1e-5)


def test_a_beam_sees_what_its_ancestors_saw(tiny_model):
    model = tiny_model()
    step, cache = StepDecoder(model).start(SOURCE_IDS, num_beams=3)
    ids = [np.full((2, 3), 2), [[4, 5, 6], [7, 8, 9]], [[4, 4, 10], [11, 12, 13]], [[4] * 3] * 2]
    # A beam may be dropped, and another continued twice; differently in each sentence.
    parents = [[[0, 0, 0]] * 2, [[0, 1, 2]] * 2, [[2, 0, 0], [1, 2, 0]], [[1, 1, 2], [2, 0, 1]]]
    histories = np.zeros((2, 3, 0), "int32")
    for position in range(4):
        newest, chosen = np.array(ids[position]), np.array(parents[position])
        logits, cache = step(newest, chosen, position, cache)
        histories = np.take_along_axis(histories, chosen[:, :, np.newaxis], axis=1)
        histories = np.concatenate([histories, newest[:, :, np.newaxis]], axis=2)
        whole = logits_of(model, np.repeat(SOURCE_IDS, 3, 0), histories.reshape(6, -1))[:, -1]
        np.testing.assert_allclose(values(logits), whole.reshape(2, 3, 20), atol=1e-5)


def test_every_leaf_of_the_cache_is_by_sentence(tiny_model):
    step, cache = StepDecoder(tiny_model()).start(SOURCE_IDS, num_beams=3, with_coverage=True)
    zeros = np.zeros((2, 3), "int32")
    for position in range(2):
        assert {leaf.shape[0] for leaf in keras.tree.flatten(cache)} == {2}
        _, cache = step(zeros, zeros, position, cache)


def test_coverage_is_the_log_of_what_the_source_tokens_were_given(tiny_model):
    model = tiny_model(**SHORT)
    ids = np.array([[2, 5, 6, 7], [2, 8, 9, 4]])
    step, cache = StepDecoder(model).start(SOURCE_IDS, 1, with_coverage=True)
    for position in range(4):
        _, cache = step(ids[:, position : position + 1], np.zeros((2, 1), "int32"), position, cache)
    scores = build_attention_model(model)({"source_ids": SOURCE_IDS, "target_ids": ids})["cross"]
    given = values(scores)[:, -1].mean(axis=1).sum(axis=1)  # last layer, heads, target positions
    logs = np.log(np.minimum(given, 1.0), where=SOURCE_IDS != 0, out=np.zeros_like(given))
    coverage = values(StepDecoder.log_coverage(cache))
    np.testing.assert_allclose(coverage[:, 0], logs.sum(axis=1), atol=1e-5)
    assert coverage[0] < -1 and coverage[1] == 0  # six tokens for four looks, and two


def test_steps_after_an_all_padding_source_equal_the_whole(tiny_model):
    model = tiny_model()
    nothing = np.zeros((2, 3), "int32")
    whole = logits_of(model, nothing, TARGET_IDS)
    step, cache = StepDecoder(model).start(nothing)
    for position in range(2):
        ids = TARGET_IDS[:, position : position + 1]
        logits, cache = step(ids, np.zeros((2, 1), "int32"), position, cache)
        np.testing.assert_allclose(values(logits)[:, 0], whole[:, position], atol=1e-5)


@pytest.mark.parametrize(("pre_norm", "learned_positions"), [(False, False), (True, True)])
def test_the_model_equals_the_same_layers_called_one_by_one(
    tiny_model, pre_norm, learned_positions
):
    nested = tiny_model(pre_norm=pre_norm, learned_positions=learned_positions)
    stacks = {side: nested.get_layer(side) for side in ("encoder", "decoder")}
    copies = []  # (new layer, layer with its weights)

    def copy(new, old):
        copies.append((new, old))
        return new

    def norm(x, side):
        if not pre_norm:
            return x
        layer = keras.layers.LayerNormalization(epsilon=1e-6)
        return copy(layer, stacks[side].norm)(x)

    source_ids = keras.Input((None,), dtype="int32", name="source_ids")
    target_ids = keras.Input((None,), dtype="int32", name="target_ids")
    source_mask, target_mask = SourceMask()(source_ids), TargetMask()(target_ids)
    embedding = copy(TokenEmbedding(20, 12), nested.get_layer("embedding"))
    options = {"num_heads": 3, "d_ff": 10, "pre_norm": pre_norm}

    def positions(side, max_length):
        return copy(PositionalEncoding(learned_positions, max_length), stacks[side].positions)

    x = positions("encoder", 14)(embedding(source_ids))
    for layer in stacks["encoder"].layers:
        x = copy(EncoderLayer(**options), layer)(x, attention_mask=source_mask)
    encoder_output = norm(x, "encoder")
    x = positions("decoder", 64)(embedding(target_ids))
    for layer in stacks["decoder"].layers:
        x = copy(DecoderLayer(**options), layer)(
            x,
            encoder_output,
            self_attention_mask=target_mask,
            cross_attention_mask=source_mask,
        )
    logits = embedding(norm(x, "decoder"), reverse=True)
    flat = keras.Model({"source_ids": source_ids, "target_ids": target_ids}, logits)
    assert flat.count_params() == nested.count_params()
    for new, old in copies:
        new.set_weights(old.get_weights())
    np.testing.assert_allclose(
        logits_of(flat, SOURCE_IDS, TARGET_IDS),
        logits_of(nested, SOURCE_IDS, TARGET_IDS),
        atol=1e-6,
    )


def test_the_compiled_model_equals_the_eager_one(tiny_model):
    model = tiny_model()
    inputs = {"source_ids": SOURCE_IDS, "target_ids": TARGET_IDS}
    np.testing.assert_allclose(
        model.predict(inputs, verbose=0), values(model(inputs, training=False)), atol=1e-5
    )


@contextlib.contextmanager
def dtype_policy(policy):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def scale(weight, factor):
    weight.assign(weight * factor)


@POLICY
@NORM
def test_extreme_logits_stay_finite_and_float32_in_mixed_precision(tiny_config, policy, pre_norm):
    with dtype_policy(policy):
        model = build_transformer(tiny_config(pre_norm=pre_norm, tie_weights=False, **SHORT))
    assert model.get_layer("encoder").compute_dtype == policy.removeprefix("mixed_")
    assert {weight.dtype for weight in model.trainable_variables} == {"float32"}
    scale(model.get_layer("embedding").reverse_embeddings, 1e6)
    logits = model({"source_ids": SOURCE_IDS, "target_ids": TARGET_IDS})
    assert keras.backend.standardize_dtype(logits.dtype) == "float32"
    assert model.output.dtype == "float32"
    assert np.isfinite(values(logits)).all()
    assert np.abs(values(logits)).max() > 65504  # beyond float16


@POLICY
@NORM
def test_huge_embeddings_stay_finite_in_mixed_precision(tiny_config, policy, pre_norm):
    with dtype_policy(policy):
        model = build_transformer(tiny_config(pre_norm=pre_norm, **SHORT))
        attention_model = build_attention_model(model)
    scale(model.get_layer("embedding").embeddings, 1e3)
    assert np.isfinite(logits_of(model, SOURCE_IDS, TARGET_IDS)).all()
    assert np.isfinite(logits_of(attention_model, SOURCE_IDS, TARGET_IDS)).all()
    step, cache = StepDecoder(model).start(SOURCE_IDS)
    logits, _ = step(TARGET_IDS[:, :1], np.zeros((2, 1), "int32"), 0, cache)
    assert np.isfinite(values(logits)).all()


@POLICY
def test_mixed_precision_is_close_to_float32(tiny_model, tiny_config, policy):
    exact = tiny_model(**SHORT)
    with dtype_policy(policy):
        mixed = build_transformer(tiny_config(**SHORT))
    mixed.set_weights(exact.get_weights())
    np.testing.assert_allclose(
        logits_of(mixed, SOURCE_IDS, TARGET_IDS)[0],
        logits_of(exact, SOURCE_IDS, TARGET_IDS)[0],
        atol=0.02 if policy == "mixed_float16" else 0.2,
    )


@contextlib.contextmanager
def no_warnings():
    """Fails on any warning: of Python, and in the logs of Keras and TensorFlow."""
    records = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = records.append
    loggers = [logging.getLogger(name) for name in (None, "absl", "tensorflow", "keras", "jax")]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Raised inside Keras, by NumPy 2 (keras.ops.convert_to_numpy of a variable).
        warnings.filterwarnings("ignore", message="__array__", category=DeprecationWarning)
        for logger in loggers:
            logger.addHandler(handler)
        try:
            yield
        finally:
            for logger in loggers:
                logger.removeHandler(handler)
    messages = [record.getMessage() for record in records]
    # TensorFlow counts the fits of the whole process for this one, those of other tests too.
    assert [m for m in messages if "triggered tf.function retracing" not in m] == []


def test_nothing_warns_from_building_to_loading(tiny_config, tmp_path):
    inputs = {"source_ids": SOURCE_IDS, "target_ids": TARGET_IDS}
    config = tiny_config(attention_dropout=0.1, pre_norm=True, learned_positions=True, **SHORT)
    with no_warnings():
        model = build_transformer(config)
        attention_model = build_attention_model(model)
        for length in (1, 2, 4):  # Keras's softmax, for one, warns where there is one key
            shorter = {name: ids[:, :length] for name, ids in inputs.items()}
            model(shorter)
            attention_model(shorter)
        step, cache = StepDecoder(model).start(SOURCE_IDS, num_beams=2)
        for position in range(2):
            _, cache = step(TARGET_IDS[:, :2], np.zeros((2, 2), "int32"), position, cache)
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        model.fit(inputs, TARGET_IDS, verbose=0)
        model.save(tmp_path / "model.keras")
        model.save_weights(tmp_path / "model.weights.h5")
        loaded = keras.models.load_model(tmp_path / "model.keras")
        loaded(inputs)
        loaded.load_weights(tmp_path / "model.weights.h5")


def test_warnings_of_python_and_of_the_logs_are_noticed():
    with pytest.raises(UserWarning, match="of Python"), no_warnings():
        warnings.warn("of Python", stacklevel=1)
    with pytest.raises(AssertionError, match="of TensorFlow"), no_warnings():
        logging.getLogger("tensorflow").warning("of TensorFlow")


def expected_count(config):
    """The number of weights, from the matrices and vectors that the paper names."""
    d, inner = config.d_model, config.d_ff
    attention = 4 * (d * d + d)  # h heads of d / h columns: one square matrix each for Q, K, V, O
    feed_forward = (d * inner + inner) + (inner * d + d)
    norm = 2 * d
    encoder = config.num_encoder_layers * (attention + feed_forward + 2 * norm)
    decoder = config.num_decoder_layers * (2 * attention + feed_forward + 3 * norm)
    rows = config.vocab_size + (config.source_vocab_size or 0)
    if not config.tie_weights:
        rows += config.vocab_size
    positions = config.max_length + config.max_length + 50 if config.learned_positions else 0
    return encoder + decoder + (rows + positions) * d + (2 * norm if config.pre_norm else 0)


@pytest.mark.parametrize(
    "options",
    [
        {"num_encoder_layers": 1},
        {"num_decoder_layers": 1, "pre_norm": True},
        {"learned_positions": True},
        {"source_vocab_size": 13},
        {"tie_weights": False},
        {"source_vocab_size": 13, "tie_weights": False},
    ],
    ids=str,
)
def test_the_number_of_weights_follows_from_the_config(tiny_config, options):
    config = tiny_config(**options)
    with keras.StatelessScope():  # shapes only: no memory, no draws
        count = build_transformer(config).count_params()
    assert count == expected_count(config)


# Table 3, in millions, rounded there; 4.5M pairs with about 37,000 shared tokens (5.1).
@pytest.mark.parametrize(("preset", "millions"), [("base", 65), ("big", 213)])
def test_the_papers_models_have_the_papers_size(preset, millions):
    config = ModelConfig.preset(preset, vocab_size=37000)
    with keras.StatelessScope():
        count = build_transformer(config).count_params()
    assert count == expected_count(config)
    assert abs(count / (millions * 1e6) - 1) < 0.04

"""Muon, the moving average against its formula, accumulation against one large batch."""

import random

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer import ModelConfig, build_transformer
from training.averaging import swapped_weights
from training.config import TrainingConfig
from training.data import Batches, Sequences, TokenizedCorpus
from training.optimizer import AveragedAdam, AveragedMuon, Muon
from training.run import compile_model
from training.schedule import WarmupInverseSqrt


def values(variable):
    return np.array(keras.ops.convert_to_numpy(variable))


def make(**options):
    """Return an optimizer of one weight, and that weight."""
    weight = keras.Variable([1.0, -2.0])
    optimizer = AveragedAdam(0.1, **options)
    optimizer.build([weight])
    return optimizer, weight


def train(optimizer, weight, steps, seed=1):
    """Apply random gradients; return the weight after each."""
    draws = np.random.default_rng(seed)
    history = []
    for _ in range(steps):
        gradient = draws.standard_normal(weight.shape, "f")
        optimizer.apply([keras.ops.convert_to_tensor(gradient)], [weight])
        history.append(values(weight))
    return history


# The moving average


def average_of(history, decay):
    """Return the average after all updates, by the formula."""
    average = np.zeros(history[0].shape)
    for update, value in enumerate(history, start=1):
        kept = min(decay, (update - 1) / (update + 9))
        average = kept * average + (1 - kept) * value
    return average


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.9, 0.999])
def test_the_average_follows_its_formula(decay):
    optimizer, weight = make(average_decay=decay)
    history = train(optimizer, weight, 40)
    np.testing.assert_allclose(optimizer.average()[0], average_of(history, decay), rtol=1e-5)


def test_after_the_first_update_the_average_is_the_weights():
    optimizer, weight = make(average_decay=0.999)
    (first,) = train(optimizer, weight, 1)
    np.testing.assert_array_equal(optimizer.average()[0], first)


def test_the_updates_are_those_of_adam():
    optimizer, weight = make()
    other = keras.Variable([1.0, -2.0])
    adam = keras.optimizers.Adam(0.1, beta_1=0.9, beta_2=0.98, epsilon=1e-9)
    adam.build([other])
    np.testing.assert_array_equal(train(optimizer, weight, 10), train(adam, other, 10))


def test_accumulated_batches_count_as_one_update():
    optimizer, weight = make(average_decay=0.9, gradient_accumulation_steps=3)
    updates = train(optimizer, weight, 30)[2::3]
    np.testing.assert_allclose(optimizer.average()[0], average_of(updates, 0.9), rtol=1e-5)


def test_in_a_graph_it_is_the_same():
    optimizer, weight = make(average_decay=0.9)
    step = tf.function(lambda gradient: optimizer.apply([gradient], [weight]), autograph=False)
    eager, eager_weight = make(average_decay=0.9)
    draws = np.random.default_rng(1)
    for _ in range(5):
        gradient = tf.constant(draws.standard_normal(2, "f"))
        step(gradient)
        eager.apply([gradient], [eager_weight])
    np.testing.assert_allclose(optimizer.average()[0], eager.average()[0], rtol=1e-6)


def test_averages_are_variables_of_the_optimizer_and_the_weights_are_not():
    optimizer, weight = make()
    variables = {id(variable) for variable in optimizer.variables}
    assert {id(average) for average in optimizer.averages} < variables
    assert id(weight) not in variables


def test_it_survives_its_config():
    optimizer = AveragedAdam(WarmupInverseSqrt(64, 20), average_decay=0.25, beta_1=0.8)
    restored = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert isinstance(restored, AveragedAdam)
    assert restored.get_config() == optimizer.get_config()
    assert (restored.average_decay, restored.beta_1, restored.beta_2) == (0.25, 0.8, 0.98)


def test_a_saved_model_has_its_averages_when_it_is_loaded(tmp_path):
    inputs = keras.Input((3,))
    model = keras.Model(inputs, keras.layers.Dense(2)(inputs))
    model.compile(AveragedAdam(0.1, average_decay=0.9), loss="mse")
    draws = np.random.default_rng(1)
    x, y = draws.standard_normal((8, 3)), draws.standard_normal((8, 2))
    model.fit(x, y, epochs=3, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    for one, other in zip(loaded.optimizer.average(), model.optimizer.average(), strict=True):
        np.testing.assert_array_equal(one, other)
    for each in (model, loaded):
        each.fit(x, y, epochs=2, shuffle=False, verbose=0)
    for one, other in zip(loaded.optimizer.average(), model.optimizer.average(), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("decay", [-0.1, 1.0, float("nan")])
def test_a_decay_outside_its_range_is_an_error(decay):
    with pytest.raises(ValueError, match=rf"^average_decay must .*, received {decay}$"):
        AveragedAdam(0.1, average_decay=decay)


# Muon


def updates_of(optimizer, name, shape, steps=3):
    """Return what random gradients, the same for all shapes of a size, make of a zero weight."""
    weight = keras.Variable(np.zeros(shape, "f"), name=name)
    optimizer.build([weight])
    return train(optimizer, weight, steps)[-1]


@pytest.mark.parametrize(
    ("shape", "matrix"),
    [
        ((8, 12), (8, 12)),  # the feed-forward network's inner layer
        ((12, 8), (12, 8)),
        ((8, 2, 4), (8, 8)),  # attention's queries, keys and values
        ((2, 4, 8), (8, 8)),  # attention's output
        ((8, 1, 8), (8, 8)),  # one head
        ((1, 8, 8), (8, 8)),
    ],
)
def test_a_kernel_is_updated_as_keras_updates_its_matrix(shape, matrix):
    keras_own = keras.optimizers.Muon(0.1, weight_decay=None, ns_steps=3)
    expected = updates_of(keras_own, "kernel", matrix)
    update = updates_of(Muon(0.1), "kernel", shape)
    np.testing.assert_allclose(update.reshape(matrix), expected, rtol=1e-4, atol=1e-6)


def test_the_update_of_a_kernel_has_singular_values_of_about_one():
    update = updates_of(Muon(1.0, ns_steps=5), "kernel", (8, 2, 4), steps=1).reshape(8, 8)
    gradient = np.random.default_rng(1).standard_normal((8, 8), "f")
    left, singular, right = np.linalg.svd(gradient)
    in_its_directions = left.T @ -update @ right.T / (0.2 * 8**0.5)
    ones = np.diag(in_its_directions)[singular > 0.05 * singular[0]]
    assert len(ones) >= 6 and 0.6 < ones.min() and ones.max() < 1.3
    off_diagonal = in_its_directions - np.diag(np.diag(in_its_directions))
    np.testing.assert_allclose(off_diagonal, 0, atol=1e-3)


@pytest.mark.parametrize(
    ("name", "shape"), [("embeddings", (8, 4)), ("bias", (2, 4)), ("bias", (8,)), ("gamma", (8,))]
)
def test_any_other_weight_is_updated_by_adam(name, shape):
    adam = keras.optimizers.Adam(0.1, beta_1=0.9, beta_2=0.98, epsilon=1e-9)
    expected = updates_of(adam, name, shape)
    np.testing.assert_allclose(updates_of(Muon(0.1), name, shape), expected, rtol=1e-4)


def test_muon_keeps_averages_too_and_survives_its_config():
    optimizer = AveragedMuon(WarmupInverseSqrt(64, 20), average_decay=0.25, momentum=0.9)
    restored = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert isinstance(restored, AveragedMuon)
    assert restored.get_config() == optimizer.get_config()
    assert (restored.average_decay, restored.momentum, restored.ns_steps) == (0.25, 0.9, 3)
    weight = keras.Variable(np.ones((4, 4), "f"), name="kernel")
    restored.build([weight])
    history = train(restored, weight, 20)
    np.testing.assert_allclose(restored.average()[0], average_of(history, 0.25), rtol=1e-5)


@pytest.mark.parametrize("average_decay", [0.0, 0.9])
def test_the_options_choose_the_optimizer(average_decay):
    """Of one encoder and one decoder layer: 4 + 8 kernels of attention, 2 + 2 of feed-forward."""
    optimizer = make_model(optimizer="muon", average_decay=average_decay).optimizer
    assert isinstance(optimizer, Muon)
    assert isinstance(optimizer, AveragedMuon) == bool(average_decay)
    velocities = optimizer.adam_velocities
    assert sum(velocity is None for velocity in velocities) == 16 < len(velocities)
    adam = make_model(average_decay=average_decay).optimizer
    assert isinstance(adam, AveragedAdam) == bool(average_decay)
    assert isinstance(adam, keras.optimizers.Adam) and adam.beta_2 == 0.98


# Weight decay


@pytest.mark.parametrize("average_decay", [0.0, 0.9])
@pytest.mark.parametrize("optimizer", ["adam", "muon"])
def test_weight_decay_takes_its_share_of_the_kernels_and_of_nothing_else(optimizer, average_decay):
    inputs, labels = next(iter(Batches(corpus_of([3, 5]), batch_tokens=16, seed=1).one_pass()))
    ends = []
    for weight_decay in (0.0, 0.5):
        model = make_model(
            optimizer=optimizer, average_decay=average_decay, weight_decay=weight_decay
        )
        before, learning_rate = weights_of(model), float(model.optimizer.learning_rate)
        model.train_on_batch(inputs, labels)
        ends.append(weights_of(model))
    assert sum(path.endswith("kernel") for path in before) == 16 < len(before)
    for path, weight in before.items():
        taken = 0.5 * learning_rate * weight if path.endswith("kernel") else 0.0
        np.testing.assert_allclose(ends[0][path] - ends[1][path], taken, atol=1e-7, err_msg=path)


# Gradient accumulation


def corpus_of(lengths, seed=1):
    draws = np.random.default_rng(seed)
    sides = []
    for _ in range(2):
        ids = [[*draws.integers(4, 20, length - 1), 3] for length in lengths]
        sides.append(
            Sequences(
                np.concatenate(ids).astype(np.int32), np.cumsum([0, *lengths], dtype=np.int64)
            )
        )
    return TokenizedCorpus(*sides, 0)


def make_model(**options):
    random.seed(1)  # Keras draws the seeds of layers from it
    np.random.seed(1)
    sizes = {"num_encoder_layers": 1, "num_decoder_layers": 1, "d_model": 8, "num_heads": 2}
    config = ModelConfig(vocab_size=20, d_ff=8, dropout=0.0, max_length=20, **sizes)
    model = build_transformer(config)
    compile_model(model, config, TrainingConfig(warmup_steps=4, **options))
    model.run_eagerly = True  # a graph would take longer to make than the few steps here
    return model


def weights_of(model):
    """Return the weights but for the biases of keys.

    They change no softmax, so that their gradients are rounding errors, which Adam makes large.
    """
    return {v.path: values(v) for v in model.trainable_variables if not v.path.endswith("key/bias")}


@pytest.mark.parametrize(
    ("optimizer", "weight_decay"), [("adam", 0.0), ("adam", 0.5), ("muon", 0.5)]
)
def test_accumulated_batches_of_unequal_size_are_one_large_batch_to_rounding(
    optimizer, weight_decay
):
    """8 batches of 2 to 12 target tokens, 4 to a step; weights and averages."""
    batches = Batches(corpus_of([2, 3, 4, 5, 7, 9, 11, 12]), batch_tokens=1, seed=1)
    assert batches.steps_per_pass == 8
    options = {"optimizer": optimizer, "average_decay": 0.9, "weight_decay": weight_decay}
    accumulating = make_model(gradient_accumulation_steps=4, **options)
    before = weights_of(accumulating)
    accumulating.fit(batches.dataset(0, 4), steps_per_epoch=8, shuffle=False, verbose=0)
    whole = make_model(**options)
    parts = list(batches.dataset().take(8).as_numpy_iterator())
    for step in range(2):
        inputs, labels = zip(*parts[4 * step : 4 * step + 4], strict=True)
        width = max(rows.shape[1] for rows in labels)

        def pad(rows, width=width):
            return np.concatenate(
                [np.pad(row, [(0, 0), (0, width - row.shape[1])]) for row in rows]
            )

        whole.train_on_batch(
            {name: pad([part[name] for part in inputs]) for name in inputs[0]}, pad(labels)
        )
    assert int(accumulating.optimizer.iterations) == int(whole.optimizer.iterations) == 2
    after = weights_of(whole)
    for path, weight in weights_of(accumulating).items():
        assert not np.allclose(weight, before[path], atol=1e-3), path
        np.testing.assert_allclose(weight, after[path], atol=2e-5, err_msg=path)
    with (
        swapped_weights(whole, whole.optimizer.average()),
        swapped_weights(accumulating, accumulating.optimizer.average()),
    ):
        averages = weights_of(whole)
        for path, weight in weights_of(accumulating).items():
            assert not np.array_equal(averages[path], after[path])
            np.testing.assert_allclose(weight, averages[path], atol=2e-5, err_msg=path)


def test_without_the_weights_of_the_batches_it_would_not_be_so():
    batches = Batches(corpus_of([2, 5, 7, 12]), batch_tokens=1, seed=1)
    models = [make_model(gradient_accumulation_steps=4) for _ in range(2)]
    models[0].fit(batches.dataset(0, 4), steps_per_epoch=4, shuffle=False, verbose=0)
    models[1].fit(batches.dataset(), steps_per_epoch=4, shuffle=False, verbose=0)
    one, other = map(weights_of, models)
    assert max(np.abs(one[path] - other[path]).max() for path in one) > 1e-3


# Swapping


def test_swapped_weights_are_there_for_a_while_and_then_the_own_ones_bit_for_bit():
    model = make_model(average_decay=0.9)
    batches = Batches(corpus_of([5, 6, 7]), 100, seed=1)
    model.fit(batches.dataset(), steps_per_epoch=2, shuffle=False, verbose=0)
    own, average = model.get_weights(), model.optimizer.average()
    with pytest.raises(RuntimeError), swapped_weights(model, average):
        for variable, value in zip(model.trainable_variables, average, strict=True):
            np.testing.assert_array_equal(values(variable), value)
        raise RuntimeError
    assert all(map(np.array_equal, model.get_weights(), own))

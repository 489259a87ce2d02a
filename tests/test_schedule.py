"""The learning rate against equation 3 of the paper."""

import keras
import numpy as np
import pytest

from training.schedule import WarmupInverseSqrt


def paper_rate(step, d_model, warmup_steps):
    """Return equation 3 at `step`, counted from 1 as in the paper."""
    return d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5)


@pytest.mark.parametrize("d_model, warmup_steps", [(512, 4000), (256, 1000), (16, 1), (8, 10)])
def test_step_s_of_keras_has_the_rate_of_the_papers_step_s_plus_1(d_model, warmup_steps):
    schedule = WarmupInverseSqrt(d_model, warmup_steps)
    steps = [0, 1, 2, warmup_steps - 1, warmup_steps, 3 * warmup_steps, 100_000]
    expected = [paper_rate(step + 1, d_model, warmup_steps) for step in steps]
    np.testing.assert_allclose([float(schedule(step)) for step in steps], expected, rtol=1e-5)


def test_the_warm_up_is_4000_steps_as_in_the_paper():
    assert float(WarmupInverseSqrt(512)(99)) == pytest.approx(paper_rate(100, 512, 4000), rel=1e-5)


def test_the_rate_is_above_0_at_the_first_step():
    assert float(WarmupInverseSqrt(512, 4000)(0)) > 0


def test_the_rate_grows_by_equal_steps_to_its_peak_at_the_end_of_the_warm_up_and_falls_after():
    schedule = WarmupInverseSqrt(64, warmup_steps=20)
    rates = np.array([float(schedule(step)) for step in range(100)])
    assert np.argmax(rates) == 19  # Keras's step 19 is the paper's step 20
    np.testing.assert_allclose(np.diff(rates[:20]), rates[0], rtol=1e-4)
    assert np.all(np.diff(rates[19:]) < 0)


def test_scale_multiplies_the_whole_curve():
    whole, part = WarmupInverseSqrt(64, 20), WarmupInverseSqrt(64, 20, scale=0.25)
    for step in (0, 19, 500):
        assert float(part(step)) == pytest.approx(0.25 * float(whole(step)), rel=1e-6)


def test_the_batches_of_one_step_have_the_rate_of_that_step():
    schedule = WarmupInverseSqrt(64, 20, gradient_accumulation_steps=3)
    rates = [float(schedule(batch)) for batch in range(60)]
    expected = [paper_rate(step + 1, 64, 20) for step in range(20) for _ in range(3)]
    np.testing.assert_allclose(rates, expected, rtol=1e-5)


def test_the_rate_is_a_float32_scalar_for_the_integer_step_of_an_optimizer():
    rate = WarmupInverseSqrt(64)(keras.ops.convert_to_tensor(3, "int64"))
    assert keras.ops.shape(rate) == () and keras.backend.standardize_dtype(rate.dtype) == "float32"


def test_an_optimizer_takes_its_rate_from_the_schedule():
    optimizer = keras.optimizers.Adam(WarmupInverseSqrt(64, 20))
    weight = keras.Variable([1.0])
    optimizer.build([weight])
    for step in range(3):
        rate = float(keras.ops.convert_to_numpy(optimizer.learning_rate))
        assert rate == pytest.approx(paper_rate(step + 1, 64, 20), rel=1e-5)
        optimizer.apply([keras.ops.ones((1,))], [weight])


def test_a_schedule_survives_serialization():
    schedule = WarmupInverseSqrt(64, 20, scale=0.7, gradient_accumulation_steps=3)
    config = keras.optimizers.schedules.serialize(schedule)
    restored = keras.optimizers.schedules.deserialize(config)
    assert isinstance(restored, WarmupInverseSqrt)
    assert restored.get_config() == {
        "d_model": 64,
        "warmup_steps": 20,
        "scale": 0.7,
        "gradient_accumulation_steps": 3,
    }
    assert float(restored(7)) == float(schedule(7))


@pytest.mark.parametrize("value", [0, -1, float("nan")])
@pytest.mark.parametrize(
    "name", ["d_model", "warmup_steps", "scale", "gradient_accumulation_steps"]
)
def test_a_value_that_is_not_positive_is_an_error_that_names_the_argument(name, value):
    arguments = {"d_model": 64, "warmup_steps": 20, "scale": 1.0, name: value}
    with pytest.raises(ValueError, match=rf"^{name} must be above 0, received {value}$"):
        WarmupInverseSqrt(**arguments)

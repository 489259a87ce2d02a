"""The learning rate of paper 5.3: linear warm-up, then the inverse square root of the step."""

import keras
from keras import ops


@keras.saving.register_keras_serializable("keras_transformer")
class WarmupInverseSqrt(keras.optimizers.schedules.LearningRateSchedule):
    """scale * d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5) (paper, equation 3).

    Steps count from 1 here and from 0 in Keras, so Keras's step s has the rate of s + 1 and the
    first one is above 0.

    Args:
        d_model: Width of the model.
        warmup_steps: Steps of linear growth; 4000 in the paper.
        scale: Factor on the whole curve; 1.0 in the paper.
        gradient_accumulation_steps: As in the optimizer: batches of one step. Keras counts batches.

    Raises:
        ValueError: An argument is not positive.
    """

    def __init__(self, d_model, warmup_steps=4000, scale=1.0, gradient_accumulation_steps=1):
        for name, value in (
            ("d_model", d_model),
            ("warmup_steps", warmup_steps),
            ("scale", scale),
            ("gradient_accumulation_steps", gradient_accumulation_steps),
        ):
            if not value > 0:
                raise ValueError(f"{name} must be above 0, received {value!r}")
        self.d_model = d_model
        self.warmup_steps = warmup_steps
        self.scale = scale
        self.gradient_accumulation_steps = gradient_accumulation_steps

    def __call__(self, step):
        """Return the learning rate at `step` (from 0), float32 scalar."""
        step = ops.floor_divide(step, self.gradient_accumulation_steps)
        step = ops.cast(step, "float32") + 1.0
        factor = ops.minimum(step**-0.5, step * self.warmup_steps**-1.5)
        return self.scale * self.d_model**-0.5 * factor

    def get_config(self):
        """Return the constructor arguments."""
        return {
            "d_model": self.d_model,
            "warmup_steps": self.warmup_steps,
            "scale": self.scale,
            "gradient_accumulation_steps": self.gradient_accumulation_steps,
        }

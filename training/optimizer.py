"""The paper's optimizer (5.3), which can keep an exponential moving average of the weights."""

import keras
import numpy as np
from keras import ops

from training.variables import to_numpy


@keras.saving.register_keras_serializable("keras_transformer")
class AveragedAdam(keras.optimizers.Adam):
    """Adam that keeps an exponential moving average of the weights beside them.

    After update t, counted from 1, average = d * average + (1 - d) * weights, where
    d = min(average_decay, (t - 1) / (t + 9)): the average begins as the first weights, and soon
    forgets them. The averages are variables of the optimizer: saved, loaded and resumed with it.

    Keras's own `use_ema` has no such beginning, counts the batches of gradient accumulation as
    updates, and puts the averages in the place of the weights at the end of each `fit`, which
    another `fit` can't go on from.

    Args:
        learning_rate: As in `keras.optimizers.Adam`, and so all others.
        average_decay: Share of the average that an update keeps, in [0, 1).
        beta_1: 0.9 in the paper.
        beta_2: 0.98 in the paper.
        epsilon: 1e-9 in the paper.
        name: Name of the optimizer.
        **kwargs: Further arguments of `keras.optimizers.Adam`.

    Raises:
        ValueError: `average_decay` is not in [0, 1).

    Example:
        >>> optimizer = AveragedAdam(WarmupInverseSqrt(256), average_decay=0.999)
        >>> model.compile(optimizer, loss=MaskedCrossentropy(0.1))
        >>> model.fit(batches.dataset(), steps_per_epoch=1000)
        >>> with swapped_weights(model, optimizer.average()):
        ...     model.save_weights("averaged.weights.h5")
    """

    def __init__(
        self,
        learning_rate=0.001,
        average_decay=0.999,
        beta_1=0.9,
        beta_2=0.98,
        epsilon=1e-9,
        name="adam",
        **kwargs,
    ):
        if not 0 <= average_decay < 1:
            raise ValueError(f"average_decay must be in [0, 1), received {average_decay!r}")
        super().__init__(
            learning_rate, beta_1=beta_1, beta_2=beta_2, epsilon=epsilon, name=name, **kwargs
        )
        self.average_decay = average_decay

    def build(self, variables):
        """Make the averages of `variables`, and what Adam needs."""
        if self.built:
            return
        super().build(variables)
        self.averages = self.add_optimizer_variables(variables, "average")
        pairs = list(zip(variables, self.averages, strict=True))
        # In a function: Keras would take a list of weights for the optimizer's own variables.
        self._averaged_pairs = lambda: pairs

    def apply(self, grads, trainable_variables=None):
        """Update the weights, then the averages."""
        before = ops.cast(self.iterations, "float32")
        super().apply(grads, trainable_variables)
        updates = ops.cast(self.iterations, "float32")
        decay = ops.minimum(self.average_decay, (updates - 1.0) / (updates + 9.0))
        # Not after a batch whose gradients were only accumulated.
        rate = ops.where(updates > before, 1.0 - decay, 0.0)
        for weight, average in self._averaged_pairs():
            self.assign_add(average, ops.cast(rate, average.dtype) * (weight - average))

    def average(self):
        """Return the averages as NumPy arrays, in the order of the model's trainable variables."""
        return [np.array(to_numpy(average)) for average in self.averages]

    def get_config(self):
        """Return the constructor arguments."""
        return {**super().get_config(), "average_decay": self.average_decay}

"""The paper's optimizer (5.3), Muon beside it, and a moving average of the weights for either."""

import keras
import numpy as np
from keras import ops

from training.variables import to_numpy


def is_kernel(weight):
    """Return whether a weight is a matrix of a layer: no embedding, bias or normalisation."""
    return weight.name == "kernel"


class _Averaging(keras.optimizers.Optimizer):
    """Before a Keras optimizer among the base classes: keeps an average of the weights.

    After update t, counted from 1, average = d * average + (1 - d) * weights, where
    d = min(average_decay, (t - 1) / (t + 9)): the average begins as the first weights, and soon
    forgets them. The averages are variables of the optimizer: saved, loaded and resumed with it.

    Keras's own `use_ema` has no such beginning, counts the batches of gradient accumulation as
    updates, and puts the averages in the place of the weights at the end of each `fit`, which
    another `fit` can't go on from.
    """

    def __init__(self, learning_rate=0.001, average_decay=0.999, **kwargs):
        if not 0 <= average_decay < 1:
            raise ValueError(f"average_decay must be in [0, 1), received {average_decay!r}")
        super().__init__(learning_rate, **kwargs)
        self.average_decay = average_decay

    def build(self, variables):
        """Make the averages of `variables`, and what the optimizer needs."""
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


@keras.saving.register_keras_serializable("keras_transformer")
class AveragedAdam(_Averaging, keras.optimizers.Adam):
    """Adam that keeps an exponential moving average of the weights beside them.

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
        super().__init__(
            learning_rate,
            average_decay,
            beta_1=beta_1,
            beta_2=beta_2,
            epsilon=epsilon,
            name=name,
            **kwargs,
        )


@keras.saving.register_keras_serializable("keras_transformer")
class Muon(keras.optimizers.Muon):
    """Muon (Jordan et al. 2024) for the matrices of the layers, Adam for all other weights.

    The update of a matrix is its momentum, turned by Newton-Schulz iterations into a matrix whose
    singular values are all about 1, times 0.2 sqrt(longer side): about as large as one of Adam's,
    so that the same learning rates suit (Liu et al. 2025). It learns faster than Adam at first; its
    iterations cost the same for batches of any size, so batches should not be small.

    Keras's own takes only weights of two axes for matrices, so not attention's kernels, but
    attention's biases (heads, key_dim). Here a matrix is what is named "kernel", and attention's
    (d_model, heads, key_dim) and (heads, key_dim, d_model) stand for the square ones of 3.2.2.

    Args:
        learning_rate: As in `keras.optimizers.Muon`, and so all others.
        adam_beta_2: 0.98 in the paper.
        epsilon: 1e-9 in the paper.
        weight_decay: None as in the paper, unlike in Keras; `adam_weight_decay` likewise.
        adam_weight_decay: Of the weights that Adam updates.
        ns_steps: Newton-Schulz iterations; 5 in Keras; in small models 3 do as well.
        name: Name of the optimizer.
        **kwargs: Further arguments of `keras.optimizers.Muon`.
    """

    def __init__(
        self,
        learning_rate=0.001,
        adam_beta_2=0.98,
        epsilon=1e-9,
        weight_decay=None,
        adam_weight_decay=None,
        ns_steps=3,
        name="muon",
        **kwargs,
    ):
        super().__init__(
            learning_rate,
            adam_beta_2=adam_beta_2,
            epsilon=epsilon,
            weight_decay=weight_decay,
            adam_weight_decay=adam_weight_decay,
            ns_steps=ns_steps,
            name=name,
            **kwargs,
        )

    def _should_use_adamw(self, variable):  # Keras has no public way to say it.
        return not is_kernel(variable)

    def zeropower_via_newtonschulz5(self, x, steps):
        """Return `x`, of the shape of a kernel, with singular values of about 1."""
        return ops.reshape(super().zeropower_via_newtonschulz5(_as_matrix(x), steps), x.shape)

    def lr_adjust(self, x):
        """Return the update `x` of a kernel times 0.2 sqrt(longer side of its matrix)."""
        return ops.reshape(super().lr_adjust(_as_matrix(x)), x.shape)


@keras.saving.register_keras_serializable("keras_transformer")
class AveragedMuon(_Averaging, Muon):
    """`Muon` that keeps an exponential moving average of the weights, as `AveragedAdam` does.

    Args:
        learning_rate: As in `Muon`.
        average_decay: Share of the average that an update keeps, in [0, 1).
        **kwargs: Further arguments of `Muon`.

    Raises:
        ValueError: `average_decay` is not in [0, 1).
    """


def _as_matrix(kernel):
    """Join the axes of heads and key_dim, neither of which is longer than d_model."""
    if len(kernel.shape) == 2:
        return kernel
    first, _, last = kernel.shape
    return ops.reshape(kernel, (first, -1) if first >= last else (-1, last))

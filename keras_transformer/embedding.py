"""From ids to vectors and back: scaled tokens and tied logits (paper 3.4), positions (3.5)."""

import keras
import numpy as np
from keras import ops


@keras.saving.register_keras_serializable("keras_transformer")
class TokenEmbedding(keras.layers.ReversibleEmbedding):
    """Token embedding times sqrt(d_model); called with `reverse=True` it gives the logits (3.4).

    Args:
        input_dim: Vocabulary size.
        output_dim: d_model.
        tie_weights: Whether the logits use the embedding matrix itself (the paper) or a matrix
            of their own.
        reverse_dtype: Of the product that gives the logits; by default that of the policy, or
            float32 where it is float16.
        **kwargs: Base-layer arguments. The initial values are N(0, 1/d_model), so that the scaled
            vectors start with unit variance and the logits with a small one.
    """

    def __init__(self, input_dim, output_dim, tie_weights=True, reverse_dtype=None, **kwargs):
        kwargs.setdefault(
            "embeddings_initializer", keras.initializers.RandomNormal(stddev=output_dim**-0.5)
        )
        super().__init__(input_dim, output_dim, tie_weights=tie_weights, **kwargs)
        # Logits may exceed the range of float16. The loss gets float32 in any case.
        is_narrow = self.compute_dtype == "float16"
        self.reverse_dtype = reverse_dtype or ("float32" if is_narrow else self.compute_dtype)

    def call(self, inputs, reverse=False):
        """Embed, or project back.

        Args:
            inputs: Ids int32 (batch, length); with `reverse`, vectors (..., d_model).
            reverse: Whether to compute logits.

        Returns:
            Vectors (batch, length, d_model), or logits float32 (..., vocabulary).
        """
        outputs = super().call(inputs, reverse=reverse)
        return ops.cast(outputs, "float32") if reverse else outputs * self.output_dim**0.5

    def output_kernel(self):
        """Return the matrix that `reverse` multiplies with, float32 (d_model, vocabulary)."""
        kernel = ops.transpose(self.embeddings) if self.tie_weights else self.reverse_embeddings
        return ops.cast(kernel, "float32")

    def compute_output_spec(self, inputs, reverse=False):
        """Return the shape, and the dtype, which is float32 for logits under any policy."""
        spec = super().compute_output_spec(inputs, reverse=reverse)
        return keras.KerasTensor(spec.shape, dtype="float32" if reverse else self.compute_dtype)


def sinusoid(positions, d_model):
    """Return the position vectors of paper 3.5.

    Args:
        positions: Integer positions (length,).
        d_model: Even width.

    Returns:
        float32 (length, d_model): PE(pos, 2i) = sin(pos / 10000^(2i/d_model)), and
        PE(pos, 2i+1) the cosine of the same angle.
    """
    rates = (10000.0 ** (-np.arange(0, d_model, 2) / d_model)).astype("float32")
    angles = ops.expand_dims(ops.cast(positions, "float32"), 1) * rates  # (length, d_model/2)
    pairs = ops.stack([ops.sin(angles), ops.cos(angles)], axis=-1)  # (length, d_model/2, 2)
    return ops.reshape(pairs, (-1, d_model))


@keras.saving.register_keras_serializable("keras_transformer")
class PositionalEncoding(keras.layers.Layer):
    """Adds position vectors: sinusoids, or a learned table (paper 3.5 and table 3, row E).

    Args:
        learned: Whether the vectors are weights; sinusoids work at any length.
        max_length: Rows of the learned table; longer sequences are an error with it.
        **kwargs: Base-layer arguments.
    """

    def __init__(self, learned=False, max_length=256, **kwargs):
        super().__init__(**kwargs)
        self.learned = learned
        self.max_length = max_length

    def build(self, input_shape):
        """Make the table, if learned."""
        if self.learned:
            d_model = input_shape[-1]
            self.table = self.add_weight(
                shape=(self.max_length, d_model),
                initializer=keras.initializers.RandomNormal(stddev=d_model**-0.5),
                name="table",
            )

    def call(self, x):
        """Add the vectors of positions 0.. to `x` (batch, length, d_model); same shape."""
        return x + self.vectors(ops.arange(ops.shape(x)[1]), x.shape[-1], x.dtype)

    def vectors(self, positions, d_model, dtype):
        """Return the vectors of `positions` int (length,) as (length, d_model) of `dtype`."""
        if self.learned:
            # The gather also turns a position beyond the table into an error (TensorFlow).
            rows = ops.take(self.table, positions, axis=0)
        else:
            rows = sinusoid(positions, d_model)
        return ops.cast(rows, dtype)

    def get_config(self):
        """Return the constructor arguments."""
        config = super().get_config()
        config.update({"learned": self.learned, "max_length": self.max_length})
        return config

"""Times parts of a training step, each against other ways to compute it, taking turns in one run.

Run: `PYTHONPATH=. .venv/bin/python benchmarks/kernels.py`. It prints a table, the ratio being to
the first of each kind.
"""

import statistics
import time

import keras
import tensorflow as tf
from keras import ops

from keras_transformer.attention import MultiHeadAttention
from training.loss import token_crossentropy

TOKENS, VOCABULARY = 2560, 8000
BATCH, LENGTH, HEADS, KEY_DIM = 256, 10, 4, 64
PIECES = 5
ROUNDS = 7


def main() -> None:
    """Time each, forward and backward."""
    keras.utils.set_random_seed(1)
    compare_losses()
    compare_output_projections()
    compare_attentions()


def compare_losses():
    """Our loss, with its gradient written out, against the framework's parts."""
    logits = tf.random.normal((1, TOKENS, VOCABULARY))
    labels = tf.random.uniform((1, TOKENS), 1, VOCABULARY, tf.int32)

    def keras_loss(logits):
        nll = ops.sparse_categorical_crossentropy(labels, logits, from_logits=True)
        label_logits = ops.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
        return nll + 0.1 * (label_logits - ops.mean(logits, axis=-1))

    compare(
        "label-smoothed loss",
        {
            "ours": lambda x: token_crossentropy(labels, x, label_smoothing=0.1)[0],
            "Keras": keras_loss,
        },
        logits,
    )


def compare_output_projections():
    """All logits at once, as we do, against a few tokens' at a time, which stay in the cache."""
    x = tf.random.normal((1, TOKENS, HEADS * KEY_DIM))
    labels = tf.random.uniform((1, TOKENS), 1, VOCABULARY, tf.int32)
    kernel = tf.Variable(tf.random.normal((HEADS * KEY_DIM, VOCABULARY), stddev=0.05))

    def at_once(x):
        return token_crossentropy(labels, x @ kernel, label_smoothing=0.1)[0]

    def in_pieces(x):
        @tf.custom_gradient
        def total(x, kernel):
            losses, x_gradients, kernel_gradients = [], [], []
            for piece, piece_labels in zip(
                tf.split(x, PIECES, axis=1), tf.split(labels, PIECES, axis=1), strict=True
            ):
                with tf.GradientTape() as tape:
                    tape.watch((piece, kernel))
                    loss = tf.reduce_sum(token_crossentropy(piece_labels, piece @ kernel, 0.1)[0])
                x_gradient, kernel_gradient = tape.gradient(loss, (piece, kernel))
                losses.append(loss)
                x_gradients.append(x_gradient)
                kernel_gradients.append(kernel_gradient)

            def gradient(upstream):
                return (
                    upstream * tf.concat(x_gradients, axis=1),
                    upstream * tf.add_n(kernel_gradients),
                )

            return tf.add_n(losses), gradient

        return total(x, kernel.value())

    compare(
        "output projection and loss",
        {"at once": at_once, f"in {PIECES} pieces": in_pieces},
        x,
        kernel,
    )


def compare_attentions():
    """Our attention against Keras's, and against one product for queries, keys and values."""
    x = tf.random.normal((BATCH, LENGTH, HEADS * KEY_DIM))
    mask = tf.ones((BATCH, 1, LENGTH), tf.bool)
    layers = [MultiHeadAttention(HEADS, KEY_DIM), keras.layers.MultiHeadAttention(HEADS, KEY_DIM)]
    for layer in layers:
        layer.build(x.shape, x.shape)
    ours, theirs = layers

    def fused(x):
        kernel, bias = ours.self_projection()
        projected = ops.reshape(x, (-1, HEADS * KEY_DIM)) @ kernel + bias
        query, key, value = ops.unstack(
            ops.reshape(projected, (BATCH, LENGTH, 3, HEADS, KEY_DIM)), axis=2
        )
        heads = ops.dot_product_attention(query, key, value, mask=mask[:, None], scale=1.0)
        return ours.output_dense(ops.reshape(heads, (1, -1, HEADS, KEY_DIM)))

    compare(
        "self-attention",
        {
            "ours": lambda x: ours(x, x, attention_mask=mask),
            "Keras": lambda x: theirs(x, x, attention_mask=mask),
            "ours, one product for all projections": fused,
        },
        x,
        *(variable.value for layer in layers for variable in layer.trainable_variables),
    )


def compare(name, ways, x, *watched) -> None:
    """Print the median times of value and gradients of each of `ways`, functions of `x`."""

    def compiled(function):
        @tf.function
        def value_and_gradients():
            with tf.GradientTape() as tape:
                tape.watch(x)
                total = tf.reduce_sum(function(x))
            return total, tape.gradient(total, [x, *watched])

        value_and_gradients()
        return value_and_gradients

    functions = {way: compiled(function) for way, function in ways.items()}
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(ROUNDS):
        for way, function in functions.items():
            start = time.perf_counter()
            function()[0].numpy()
            seconds[way].append(time.perf_counter() - start)
    medians = {way: 1e3 * statistics.median(times) for way, times in seconds.items()}
    first = next(iter(medians.values()))
    for way, median in medians.items():
        print(f"| {name} | {way} | {median:.0f} ms | {median / first:.2f} |")


if __name__ == "__main__":
    main()

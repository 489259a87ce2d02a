"""Times two of our training kernels against Keras's own, both in one run, alternating.

Run: `PYTHONPATH=. .venv/bin/python benchmarks/kernels.py`. It prints one line a kernel.
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
ROUNDS = 7


def main() -> None:
    """Time both kernels, forward and backward."""
    keras.utils.set_random_seed(1)
    logits = tf.random.normal((1, TOKENS, VOCABULARY))
    labels = tf.random.uniform((1, TOKENS), 1, VOCABULARY, tf.int32)

    def keras_loss(logits):
        nll = ops.sparse_categorical_crossentropy(labels, logits, from_logits=True)
        label_logits = ops.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
        return nll + 0.1 * (label_logits - ops.mean(logits, axis=-1))

    compare(
        "label-smoothed loss",
        lambda x: token_crossentropy(labels, x, label_smoothing=0.1)[0],
        keras_loss,
        logits,
        [],
    )
    x = tf.random.normal((BATCH, LENGTH, HEADS * KEY_DIM))
    mask = tf.ones((BATCH, 1, LENGTH), tf.bool)
    ours = MultiHeadAttention(HEADS, KEY_DIM)
    theirs = keras.layers.MultiHeadAttention(HEADS, KEY_DIM)
    for layer in (ours, theirs):
        layer.build(x.shape, x.shape)
    compare(
        "self-attention",
        lambda x: ours(x, x, attention_mask=mask),
        lambda x: theirs(x, x, attention_mask=mask),
        x,
        [ours, theirs],
    )


def compare(name, ours, theirs, x, layers) -> None:
    """Print the median times of both functions' value and gradients, and the ratio."""
    variables = [[v.value for v in layer.trainable_variables] for layer in layers] or [[], []]

    def timed(function, watched):
        @tf.function
        def value_and_gradients():
            with tf.GradientTape() as tape:
                tape.watch(x)
                total = tf.reduce_sum(function(x))
            return total, tape.gradient(total, [x, *watched])

        value_and_gradients()
        return value_and_gradients

    functions = [timed(ours, variables[0]), timed(theirs, variables[1])]
    seconds: list[list[float]] = [[], []]
    for _ in range(ROUNDS):
        for function, times in zip(functions, seconds, strict=True):
            start = time.perf_counter()
            function()[0].numpy()
            times.append(time.perf_counter() - start)
    ours_ms, theirs_ms = (1e3 * statistics.median(times) for times in seconds)
    print(f"{name}: ours {ours_ms:.0f} ms, Keras {theirs_ms:.0f} ms, {theirs_ms / ours_ms:.1f} x")


if __name__ == "__main__":
    main()

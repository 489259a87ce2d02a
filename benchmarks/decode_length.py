"""Decoding time by output length: with the cache and without, at a fixed source length.

    python benchmarks/decode_length.py

A model of preset `small` with random weights translates 8 sentences of 32 tokens greedily; the end
token is forbidden, so that the output has exactly the length of the limit. It also times one batch
of sentences of different lengths in several orders.
"""

import statistics
import time

import keras
import tensorflow as tf

from keras_transformer import ModelConfig, build_transformer
from keras_transformer.config import END_ID
from keras_transformer.decoding import greedy_search
from keras_transformer.model import StepDecoder

VOCABULARY, SENTENCES, SOURCE_LENGTH = 8000, 8, 32
LENGTHS = (8, 16, 32, 64, 128, 256)
TURNS = 5


def main():
    """Print the two tables."""
    keras.utils.set_random_seed(1)
    config = ModelConfig.preset("small", VOCABULARY, max_length=512)
    model = build_transformer(config)
    cached, uncached = search_with_cache(model), search_without_cache(model)
    sources = tf.random.uniform((SENTENCES, SOURCE_LENGTH), 4, VOCABULARY, tf.int32, seed=1)

    print("| output tokens | cached, ms | ms a token | uncached, ms | ms a token |")
    print("| ---: | ---: | ---: | ---: | ---: |")
    for length in LENGTHS:
        limits = tf.fill([SENTENCES], length)
        times = [
            1000 * measure(search, sources, limits, turns)
            for search, turns in ((cached, TURNS), (uncached, 1))
        ]
        cells = [f"{total:.0f} | {total / length:.2f}" for total in times]
        print(f"| {length} | {cells[0]} | {cells[1]} |", flush=True)

    lengths = tf.constant([4, 8, 12, 16, 24, 32, 48, 64] * 4)
    sources = tf.where(
        tf.range(64) < lengths[:, tf.newaxis],
        tf.random.uniform((32, 64), 4, VOCABULARY, tf.int32, seed=2),
        0,
    )
    orders = {
        "as it comes": tf.range(32),
        "shortest first": tf.argsort(lengths),
        "longest first": tf.argsort(-lengths),
        "shuffled": tf.random.shuffle(tf.range(32), seed=3),
    }
    print("\n| order of 32 sentences | ms |\n| --- | ---: |")
    for name, order in orders.items():
        seconds = measure(cached, tf.gather(sources, order), tf.gather(lengths, order))
        print(f"| {name} | {1000 * seconds:.0f} |", flush=True)


def search_with_cache(model):
    """Return the greedy search of the project, which never ends before the limit."""
    decoder = StepDecoder(model)

    def search(source_ids, limits):
        step, cache = decoder.start(source_ids)

        def endless(*arguments):
            logits, cache = step(*arguments)
            return logits - 1e9 * tf.one_hot(END_ID, VOCABULARY), cache

        return greedy_search(endless, cache, limits).ids

    return tf.function(search, autograph=False, reduce_retracing=True)


def search_without_cache(model):
    """Return the same, running the whole decoder again on all tokens for each new one."""

    def search(source_ids, limits):
        def step(ids, parents, position, cache):
            history = tf.concat([cache["history"], ids], axis=1)
            logits = model({"source_ids": cache["source"], "target_ids": history})[:, -1:]
            logits -= 1e9 * tf.one_hot(END_ID, VOCABULARY)
            return logits, {**cache, "history": history}

        cache = {"source": source_ids, "history": source_ids[:, :0]}
        return greedy_search(step, cache, limits).ids

    return tf.function(search, autograph=False, reduce_retracing=True)


def measure(search, source_ids, limits, turns=TURNS):
    """Return the median seconds of a search, after one that is not counted."""
    seconds = []
    for _ in range(turns + 1):
        start = time.perf_counter()
        search(source_ids, limits).numpy()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:])


if __name__ == "__main__":
    main()

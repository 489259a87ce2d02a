"""Speed of a training step: ours against torch.nn.Transformer, and against the machine's limit.

    python benchmarks/train_step.py            ours, PyTorch, and the input pipeline
    python benchmarks/train_step.py --tried    ours, with what could make it faster

All that stands in one table takes turns in one process, so that a change in the machine's speed
meets them all. A batch has no padding: every token counts.
"""

import argparse
import math
import os
import statistics
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before TensorFlow is loaded

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.config import END_ID, PAD_ID, PRESETS, ModelConfig
from keras_transformer.model import build_transformer
from training.config import TrainingConfig
from training.data import Batches, Sequences, TokenizedCorpus
from training.run import compile_model

SEED = 1
SIDE_OF_LIMIT = 2048  # of the square float32 product whose speed is the limit
PAIRS_OF_CORPUS = 1000
LENGTHS = (4, 48)  # of the pairs of that corpus


def main():
    """Measure, and print the tables."""
    options = parse()
    config = ModelConfig.preset(options.preset, options.vocab_size)
    print(
        f"{config.num_encoder_layers} + {config.num_decoder_layers} layers, {config.d_model} wide"
    )
    if options.tried:
        variants = {
            "as it is": {},
            "XLA": {"jit_compile": True},
            "4 steps per execution": {"steps_per_execution": 4},
            "half the batch": {"batch": options.batch // 2},
            "twice the batch": {"batch": options.batch * 2},
            "four times the batch": {"batch": options.batch * 4},
            "mixed_bfloat16": {"policy": "mixed_bfloat16"},
        }
    else:
        variants = {"ours": {}, "ours, mixed_bfloat16": {"policy": "mixed_bfloat16"}}
    steps = {
        name: keras_step(config, **{"batch": options.batch, "length": options.length} | variant)
        for name, variant in variants.items()
    }
    if not options.tried:
        steps["PyTorch"] = torch_step(config, options.batch, options.length)
        steps["PyTorch, bfloat16 autocast"] = torch_step(
            config, options.batch, options.length, autocast=True
        )
    report(steps, options.turns)
    if not options.tried:
        report_pipeline(config, options)


def keras_step(config, batch, length, policy="float32", jit_compile=False, steps_per_execution=1):
    """Return a function that trains on one batch, the tokens in it, and its matrix products."""
    model = compiled_model(config, policy)
    model.jit_compile = jit_compile
    model.steps_per_execution = steps_per_execution
    sources, targets, labels = random_ids(config.vocab_size, (3, batch, length))
    batches = tf.data.Dataset.from_tensors(
        ({"source_ids": sources, "target_ids": targets}, labels)
    ).repeat()
    iterator = iter(batches)
    model.make_train_function()

    def step():
        return float(model.train_function(iterator)["loss"])

    # With tied weights the embedding is counted once: as the output projection.
    tokens = batch * length * steps_per_execution
    return step, tokens, 3 * 2 * model.count_params() * tokens


def compiled_model(config, policy="float32"):
    """Return our model as the training command compiles it."""
    keras.utils.set_random_seed(SEED)
    keras.config.set_dtype_policy(policy)
    model = build_transformer(config)
    compile_model(model, config, TrainingConfig())
    return model


def torch_step(config, batch, length, autocast=False):
    """Return the same for a PyTorch model of the same shape, loss and optimizer."""
    import torch

    torch.manual_seed(SEED)
    torch.set_num_threads(os.cpu_count())

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Embedding(config.vocab_size, config.d_model)
            self.dropout = torch.nn.Dropout(config.dropout)
            self.transformer = torch.nn.Transformer(
                config.d_model,
                config.num_heads,
                config.num_encoder_layers,
                config.num_decoder_layers,
                config.d_ff,
                config.dropout,
                batch_first=True,
                norm_first=config.pre_norm,
            )
            angles = torch.arange(length)[:, None] / 10000 ** (
                torch.arange(0, config.d_model, 2) / config.d_model
            )
            positions = torch.stack([angles.sin(), angles.cos()], -1).reshape(length, -1)
            self.register_buffer("positions", positions)
            self.register_buffer(
                "causal", torch.nn.Transformer.generate_square_subsequent_mask(length)
            )

        def embed(self, ids):
            vectors = self.embedding(ids) * math.sqrt(config.d_model) + self.positions
            return self.dropout(vectors)

        def forward(self, sources, targets):
            padding = torch.zeros(sources.shape).masked_fill(sources == PAD_ID, -math.inf)
            y = self.transformer(
                self.embed(sources),
                self.embed(targets),
                tgt_mask=self.causal,
                tgt_is_causal=True,
                src_key_padding_mask=padding,
                memory_key_padding_mask=padding,
            )
            return torch.nn.functional.linear(y, self.embedding.weight)

    model = Model().train()
    loss_of = torch.nn.CrossEntropyLoss(ignore_index=PAD_ID, label_smoothing=0.1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9)
    ids = torch.from_numpy(random_ids(config.vocab_size, (3, batch, length)).astype(np.int64))
    sources, targets, labels = ids

    def step():
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            logits = model(sources, targets)
        loss = loss_of(logits.float().flatten(0, 1), labels.flatten())
        loss.backward()
        optimizer.step()
        return loss.item()

    parameters = sum(parameter.numel() for parameter in model.parameters())
    return step, batch * length, 3 * 2 * parameters * batch * length


def report(steps, turns):
    """Print the speed of each step, as a ratio to the last, and as a share of the limit."""
    product = matrix_product()
    seconds = {name: [] for name in steps}
    of_product = []
    for turn in range(-2, turns):  # the first two warm up
        for name, (step, _, _) in steps.items():
            elapsed = timed(step)
            if turn >= 0:
                seconds[name].append(elapsed)
        of_product.append(timed(product))
    limit = 2 * SIDE_OF_LIMIT**3 / statistics.median(of_product)
    print(f"limit: {limit / 1e9:.0f} GFLOP/s in a float32 product of side {SIDE_OF_LIMIT}\n")
    print("| step | ms | spread | target tokens/s | ratio to the first | share of the limit |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    speeds = {
        name: tokens / statistics.median(seconds[name]) for name, (_, tokens, _) in steps.items()
    }
    first = next(iter(speeds.values()))
    for name, (_, _, products) in steps.items():
        times = seconds[name]
        print(
            f"| {name} | {1000 * statistics.median(times):.0f} "
            f"| {1000 * min(times):.0f}-{1000 * max(times):.0f} | {speeds[name]:,.0f} "
            f"| {speeds[name] / first:.2f} | {products / statistics.median(times) / limit:.2f} |"
        )


def matrix_product():
    """Return a function that multiplies two square float32 matrices."""
    matrix = tf.random.normal((SIDE_OF_LIMIT, SIDE_OF_LIMIT))
    product = tf.function(lambda: tf.reduce_max(matrix @ matrix))
    return lambda: product().numpy()


def report_pipeline(config, options):
    """Print the time of a step on batches from the pipeline, and on the same held in memory."""
    random = np.random.default_rng(SEED)
    lengths = random.integers(*LENGTHS, PAIRS_OF_CORPUS)
    splits = np.concatenate([[0], np.cumsum(lengths)])
    ids = random_ids(config.vocab_size, splits[-1:])
    ids[splits[1:] - 1] = END_ID
    sequences = Sequences(ids, splits)
    batches = Batches(
        TokenizedCorpus(sequences, sequences, 0), options.batch * options.length, SEED
    )
    dataset = batches.dataset().take(batches.steps_per_pass)
    in_memory = dataset.cache()
    model = compiled_model(config)
    model.make_train_function()

    def train(dataset):
        for _ in range(batches.steps_per_pass):
            model.train_function(dataset)

    print(f"\n{batches.steps_per_pass} batches of {options.batch * options.length:,} tokens")
    ways = {
        "trained on, from memory": lambda: train(iter(in_memory)),
        "trained on, from the pipeline": lambda: train(iter(dataset)),
        "the pipeline alone": lambda: sum(1 for _ in dataset),
    }
    seconds = {name: [] for name in ways}
    for turn in range(4):
        for name, way in ways.items():
            elapsed = timed(way)
            if turn:  # the first fills the cache
                seconds[name].append(elapsed / batches.steps_per_pass)
    print("| batches | ms a batch | spread |")
    print("| --- | ---: | ---: |")
    for name, times in seconds.items():
        print(
            f"| {name} | {1000 * statistics.median(times):.1f} "
            f"| {1000 * min(times):.1f}-{1000 * max(times):.1f} |"
        )


def random_ids(vocab_size, shape):
    """Return ids of real tokens, int32 of `shape`."""
    random = np.random.default_rng(SEED)
    return random.integers(END_ID + 1, vocab_size, shape).astype(np.int32)


def timed(function):
    """Return how many seconds `function` takes."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def parse():
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", choices=tuple(PRESETS), default="small", help="of the model")
    parser.add_argument("--batch", type=int, default=128, help="sentences (default 128)")
    parser.add_argument("--length", type=int, default=24, help="tokens of each (default 24)")
    parser.add_argument("--vocab-size", type=int, default=8000, help="pieces (default 8000)")
    parser.add_argument("--turns", type=int, default=10, help="measured turns (default 10)")
    parser.add_argument("--tried", action="store_true", help="ours alone, in variants")
    return parser.parse_args()


if __name__ == "__main__":
    main()

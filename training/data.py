"""From text pairs to batches: flat arrays of ids, length buckets, a token budget."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

import numpy as np
import tensorflow as tf
from tqdm import tqdm

from keras_transformer.config import END_ID, PAD_ID, START_ID
from keras_transformer.tokenizer import Tokenizer

PAIRS_PER_CHUNK = 8192


@dataclass(frozen=True)
class Sequences:
    """Many id sequences in one flat array.

    Attributes:
        ids: int32 (tokens,), each sequence with its end token.
        splits: int64 (sequences + 1,): sequence i is ids[splits[i]:splits[i + 1]].
    """

    ids: np.ndarray
    splits: np.ndarray

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each sequence, the end token included."""
        return np.diff(self.splits)


@dataclass(frozen=True)
class TokenizedCorpus:
    """A parallel corpus as ids.

    Attributes:
        source: Source sequences.
        target: Target sequences, pair by pair.
        num_too_long: Pairs left out, since a side has more tokens than the model takes.
    """

    source: Sequences
    target: Sequences
    num_too_long: int

    def __len__(self) -> int:
        """Return the number of pairs."""
        return len(self.source.splits) - 1


def tokenize_corpus(
    pairs: Iterable[tuple[str, str]],
    source_tokenizer: Tokenizer,
    target_tokenizer: Tokenizer,
    max_length: int,
    progress: bool = True,
) -> TokenizedCorpus:
    """Tokenize a stream of pairs; the text itself is not kept.

    Args:
        pairs: (source, target) texts.
        source_tokenizer: Of the sources.
        target_tokenizer: Of the targets.
        max_length: Longest side in tokens with the end token; longer pairs are left out.
        progress: Show a progress bar on stderr.
    """
    encode = [_end_encoder(source_tokenizer), _end_encoder(target_tokenizer)]
    chunks: list[list[np.ndarray]] = [[], []]  # source, target: ids of each chunk
    lengths: list[list[np.ndarray]] = [[], []]
    num_too_long = 0
    pairs = iter(tqdm(pairs, "tokenize", unit=" pairs", disable=not progress, leave=False))
    while chunk := list(islice(pairs, PAIRS_PER_CHUNK)):
        sides = [encode[side](tf.constant([pair[side] for pair in chunk])) for side in (0, 1)]
        fits = np.all([row_lengths.numpy() <= max_length for _, row_lengths in sides], axis=0)
        num_too_long += int(np.sum(~fits))
        for side, (ids, row_lengths) in enumerate(sides):
            chunks[side].append(ids.numpy()[np.repeat(fits, row_lengths.numpy())])
            lengths[side].append(row_lengths.numpy()[fits])
    source, target = (
        Sequences(
            np.concatenate([np.zeros(0, np.int32), *chunks[side]]),
            np.cumsum(np.concatenate([np.zeros(1, np.int64), *lengths[side]])),
        )
        for side in (0, 1)
    )
    return TokenizedCorpus(source, target, num_too_long)


class Batches:
    """The batches of a corpus: pairs of similar length, up to a budget of tokens.

    A pass over the corpus sorts the pairs by target and source length, in random order where both
    are equal, cuts them into batches, and shuffles the batches. So little is padding, and every
    pass has the same number of batches, made of other pairs. The order depends on seed and pass
    alone: a run that is resumed at some step goes on with the batch it would have seen.

    Args:
        corpus: The pairs.
        batch_tokens: Most tokens of a batch on its longer side, padding included. A single pair
            that is longer still makes a batch.
        seed: Of the order.

    Raises:
        ValueError: The corpus is empty.
    """

    def __init__(self, corpus: TokenizedCorpus, batch_tokens: int, seed: int):
        if len(corpus) == 0:
            raise ValueError("corpus has no pair that fits max_length")
        self.seed = seed
        self._sources, self._targets = corpus.source.lengths, corpus.target.lengths
        self._source_ids = _ragged(corpus.source)
        self._target_ids = _ragged(corpus.target)
        self._starts = self._cut(batch_tokens)

    @property
    def steps_per_pass(self) -> int:
        """Number of batches in one pass over the corpus."""
        return len(self._starts)

    def padding_share(self) -> tuple[float, float]:
        """Return the shares of source and of target positions that are padding, in one pass."""
        order = self._by_length(np.random.default_rng(self.seed))
        sizes = np.diff(np.append(self._starts, len(order)))
        shares = []
        for lengths in (self._sources[order], self._targets[order]):
            positions = np.sum(np.maximum.reduceat(lengths, self._starts) * sizes)
            shares.append(float(1 - np.sum(lengths) / positions))
        return shares[0], shares[1]

    def dataset(self, start_step: int = 0) -> tf.data.Dataset:
        """Return the endless training data from a step on.

        Returns:
            Elements ({"source_ids": int32 (batch, source), "target_ids": int32 (batch, target)},
            labels int32 (batch, target)); labels are the target one step ahead of `target_ids`.
        """
        first_pass, skipped = divmod(start_step, self.steps_per_pass)

        def rows_of_pass(number):
            order, starts, ends = tf.numpy_function(
                self._plan, [number], [tf.int64, tf.int64, tf.int64], stateful=False
            )
            for tensor in (order, starts, ends):
                tensor.set_shape([None])
            bounds = tf.data.Dataset.from_tensor_slices((starts, ends))
            return bounds.map(lambda start, end: order[start:end])

        rows = tf.data.Dataset.range(first_pass, np.iinfo(np.int64).max).flat_map(rows_of_pass)
        return self._gather(rows.skip(skipped))

    def one_pass(self) -> tf.data.Dataset:
        """Return the same elements once, shortest first: for evaluation."""
        order = self._by_length(np.random.default_rng(self.seed))
        ends = np.append(self._starts[1:], len(order))
        bounds = tf.data.Dataset.from_tensor_slices((self._starts, ends))
        return self._gather(bounds.map(lambda start, end: tf.constant(order)[start:end]))

    def _plan(self, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return pass `number`: pairs by length, and the bounds of its batches, shuffled."""
        random = np.random.default_rng([self.seed, number])
        order = self._by_length(random)
        shuffled = random.permutation(len(self._starts))
        ends = np.append(self._starts[1:], len(order))
        return order, self._starts[shuffled], ends[shuffled]

    def _by_length(self, random: np.random.Generator) -> np.ndarray:
        ties = random.permutation(len(self._sources))
        return np.lexsort((ties, self._sources, self._targets)).astype(np.int64)

    def _cut(self, batch_tokens: int) -> np.ndarray:
        """Return where batches start among the pairs by length; the same for every pass."""
        order = self._by_length(np.random.default_rng(self.seed))
        longer = np.maximum(self._sources, self._targets)[order]
        starts, start, width = [0], 0, 0
        for i, length in enumerate(longer.tolist()):
            width = max(width, length)
            if i > start and (i - start + 1) * width > batch_tokens:
                starts.append(i)
                start, width = i, length
        return np.asarray(starts, np.int64)

    def _gather(self, rows: tf.data.Dataset) -> tf.data.Dataset:
        def batch(rows):
            source_ids = tf.gather(self._source_ids, rows).to_tensor(PAD_ID)
            labels = tf.gather(self._target_ids, rows).to_tensor(PAD_ID)
            shifted = tf.where(labels == END_ID, PAD_ID, labels)[:, :-1]
            target_ids = tf.pad(shifted, [[0, 0], [1, 0]], constant_values=START_ID)
            return {"source_ids": source_ids, "target_ids": target_ids}, labels

        return rows.map(batch, num_parallel_calls=2, deterministic=True).prefetch(8)


def _end_encoder(tokenizer: Tokenizer):
    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def encode(text):
        tokens = tokenizer.tokenize(text)
        ends = tf.fill([tokens.nrows(out_type=tf.int32), 1], END_ID)
        tokens = tf.concat([tokens, ends], axis=1)
        return tokens.flat_values, tokens.row_lengths()

    return encode


def _ragged(sequences: Sequences) -> tf.RaggedTensor:
    return tf.RaggedTensor.from_row_splits(sequences.ids, sequences.splits, validate=False)

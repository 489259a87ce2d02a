"""From text pairs to batches: flat arrays of ids, length buckets, a token budget."""

import math
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

import numpy as np
import tensorflow as tf
from tqdm import tqdm

from keras_transformer.config import END_ID, PAD_ID, START_ID
from keras_transformer.tokenizer import Tokenizer

PAIRS_PER_CHUNK = 8192
# Of fixed shapes: 4, 8, ... 32, then four to each doubling.
WIDTHS = np.array([*range(4, 32, 4), *(n << k for k in range(3, 17) for n in (4, 5, 6, 7))])
ROWS_MULTIPLE = 8


@dataclass(frozen=True)
class Sequences:
    """Many id sequences in one flat array.

    Attributes:
        ids: Integers (tokens,), each sequence with its end token; 16 bits where the vocabulary
            allows.
        splits: int64 (sequences + 1,): sequence i is ids[splits[i]:splits[i + 1]].
    """

    ids: np.ndarray
    splits: np.ndarray

    def __len__(self) -> int:
        """Return the number of texts."""
        return len(self.splits) - 1

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each sequence, the end token included."""
        return np.diff(self.splits)

    def padded(self, rows: np.ndarray) -> np.ndarray:
        """Return some of the sequences, int32 (rows, longest)."""
        starts, lengths = self.splits[rows], self.splits[rows + 1] - self.splits[rows]
        positions = np.arange(lengths.max())
        is_token = positions < lengths[:, None]
        ids = np.full(is_token.shape, PAD_ID, np.int32)
        ids[is_token] = self.ids[(starts[:, None] + positions)[is_token]]
        return ids

    def draw(self, random: np.random.Generator) -> np.ndarray:
        """Return which sequence stands for each text in one pass over the corpus: its own."""
        return np.arange(len(self))


class GrowingSequences:
    """Sequences in the making: they grow in place, so that a corpus is never in memory twice.

    Args:
        vocab_size: Ids are below this.
    """

    def __init__(self, vocab_size: int):
        self._ids = array("H" if vocab_size <= 1 << 16 else "I")
        self._lengths = array("I")

    def extend(self, ids: np.ndarray, lengths: np.ndarray) -> None:
        """Append sequences, given as the ids of all in a row and the length of each."""
        self._ids.frombytes(ids.astype(self._ids.typecode).tobytes())
        self._lengths.frombytes(lengths.astype(self._lengths.typecode).tobytes())

    def finish(self) -> Sequences:
        """Return the sequences, which are not copied: nothing can be appended any more."""
        splits = np.zeros(len(self._lengths) + 1, np.int64)
        np.cumsum(self._lengths, out=splits[1:])
        return Sequences(np.asarray(self._ids), splits)


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
        return len(self.source)


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
    tokenizers = (source_tokenizer, target_tokenizer)
    encode = [_end_encoder(tokenizer) for tokenizer in tokenizers]
    source, target = kept = [GrowingSequences(tokenizer.vocab_size) for tokenizer in tokenizers]
    num_too_long = 0
    pairs = iter(tqdm(pairs, "tokenize", unit=" pairs", disable=not progress, leave=False))
    while chunk := list(islice(pairs, PAIRS_PER_CHUNK)):
        sides = [
            [tensor.numpy() for tensor in encode[side](tf.constant([pair[side] for pair in chunk]))]
            for side in (0, 1)
        ]
        fits = np.all([lengths <= max_length for _, lengths in sides], axis=0)
        num_too_long += int(np.sum(~fits))
        for sequences, (ids, lengths) in zip(kept, sides, strict=True):
            sequences.extend(ids[np.repeat(fits, lengths)], lengths[fits])
    return TokenizedCorpus(source.finish(), target.finish(), num_too_long)


@dataclass(frozen=True)
class Division:
    """How each batch is divided among devices, and among processes; by default not at all.

    A batch has the same pairs however it is divided. Rows of padding make it divisible.

    Attributes:
        num_parts: Devices, or groups of them, that take equal shares of the rows.
        weigh_parts: Give each part the weight of its real target tokens, where every device
            computes the mean over its own ones and the mean of these means is taken.
        fixed_shapes: Make few shapes of batches, for a backend that compiles each one anew: both
            sides padded to one of `WIDTHS`, and the number of rows that goes with it.
        process: The number of this process, whose share of the rows is all it reads.
        num_processes: Of all.
    """

    num_parts: int = 1
    weigh_parts: bool = False
    fixed_shapes: bool = False
    process: int = 0
    num_processes: int = 1

    def num_rows(self, batch_tokens: int, width: int) -> int:
        """Return how many pairs of this width, padding included, a batch has at the most."""
        rows = max(batch_tokens // width, 1)
        if not self.fixed_shapes:
            return rows
        # The same for 1, 2, 4 or 8 devices, so that they train on the same batches.
        multiple = math.lcm(ROWS_MULTIPLE, self.num_parts)
        return max(rows // multiple, 1) * multiple


class Batches:
    """The batches of a corpus: pairs of similar length, up to a budget of tokens.

    A pass over the corpus sorts the pairs by target and source length, in random order where both
    are equal, cuts them into batches, and shuffles the batches. So little is padding, and every
    pass has the same number of batches, made of other pairs. The order depends on seed and pass
    alone: a run that is resumed at some step goes on with the batch it would have seen.

    Args:
        corpus: The pairs.
        batch_tokens: Most tokens of a batch on its longer side, padding included. A single pair
            that is longer still makes a batch. With drawn segmentations the budget holds for one
            draw; others may exceed it, by two fifths where sentences are longest.
        seed: Of the order.
        division: How the rows of a batch are divided. With fixed shapes the pairs are sorted by
            their width first.

    Raises:
        ValueError: The corpus is empty.
    """

    def __init__(
        self,
        corpus: TokenizedCorpus,
        batch_tokens: int,
        seed: int,
        division: Division = Division(),
    ):
        if len(corpus) == 0:
            raise ValueError("corpus has no pair that fits max_length")
        self.seed = seed
        self.batch_tokens = batch_tokens
        self.division = division
        self._corpus = corpus
        # Of few bits, which are sorted faster.
        self._source_lengths, self._target_lengths = (
            lengths.astype(np.min_scalar_type(lengths.max()))
            for lengths in (corpus.source.lengths, corpus.target.lengths)
        )
        # None is wider than the longest sequence, which position vectors may end with.
        longest = max(np.max(self._source_lengths), np.max(self._target_lengths))
        self._widths = np.minimum(WIDTHS, longest)
        self._starts = self._cut()

    @property
    def steps_per_pass(self) -> int:
        """Number of batches in one pass over the corpus."""
        return len(self._starts)

    def padding_share(self) -> tuple[float, float]:
        """Return the shares of source and of target positions that are padding, in one pass."""
        source_rows, target_rows = self._by_length(np.random.default_rng(self.seed))
        sizes = np.diff(np.append(self._starts, len(source_rows)))
        sides = self._source_lengths[source_rows], self._target_lengths[target_rows]
        widths = [np.maximum.reduceat(lengths, self._starts) for lengths in sides]
        if self.division.fixed_shapes:
            both = self._fixed_width(np.maximum(*widths))
            widths = [both, both]
            sizes = np.maximum(sizes, [self._num_rows(width) for width in both])
        source, target = (
            float(1 - np.sum(lengths) / np.sum(width * sizes))
            for lengths, width in zip(sides, widths, strict=True)
        )
        return source, target

    def dataset(
        self, start_batch: int = 0, gradient_accumulation_steps: int = 1
    ) -> tf.data.Dataset:
        """Return the endless training data from a batch on.

        Args:
            start_batch: Batches trained on so far.
            gradient_accumulation_steps: Batches whose gradients an optimizer with this option
                averages. With more than one, elements have a third part, float32 (batch,): a sample
                weight, the batch's share of the real target tokens times the number of batches.
                So the mean over the batches of a step is the mean over its tokens.

        Returns:
            Elements ({"source_ids": int32 (batch, source), "target_ids": int32 (batch, target)},
            labels int32 (batch, target)); labels are the target one step ahead of `target_ids`.
        """
        start_step, skipped_batches = divmod(start_batch, gradient_accumulation_steps)
        first_pass, skipped = divmod(start_step * gradient_accumulation_steps, self.steps_per_pass)

        def rows_of_pass(number):
            *rows, starts, ends = tf.numpy_function(
                self._plan, [number], 4 * [tf.int64], stateful=False
            )
            for tensor in (*rows, starts, ends):
                tensor.set_shape([None])
            return _slices(tf.data.Dataset.from_tensor_slices((starts, ends)), *rows)

        rows = tf.data.Dataset.range(first_pass, np.iinfo(np.int64).max).flat_map(rows_of_pass)
        rows = rows.skip(skipped)
        if gradient_accumulation_steps > 1:
            rows = rows.ragged_batch(gradient_accumulation_steps).flat_map(self._weigh)
            rows = rows.skip(skipped_batches)
        return self._gather(rows)

    def one_pass(self) -> tf.data.Dataset:
        """Return the same elements once, shortest first: for evaluation."""
        rows = self._by_length(np.random.default_rng(self.seed))
        ends = np.append(self._starts[1:], len(rows[0]))
        bounds = tf.data.Dataset.from_tensor_slices((self._starts, ends))
        return self._gather(_slices(bounds, *map(tf.constant, rows)))

    def _plan(self, number: int) -> tuple[np.ndarray, ...]:
        """Return a pass: source and target rows by length, and bounds of its shuffled batches."""
        random = np.random.default_rng([self.seed, number])
        source_rows, target_rows = self._by_length(random)
        shuffled = random.permutation(len(self._starts))
        ends = np.append(self._starts[1:], len(source_rows))
        return source_rows, target_rows, self._starts[shuffled], ends[shuffled]

    def _by_length(self, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Return which sequences stand for the pairs in a pass, source and target, by length."""
        source_rows, target_rows = (
            self._corpus.source.draw(random),
            self._corpus.target.draw(random),
        )
        ties = random.permutation(len(source_rows))
        lengths = self._source_lengths[source_rows], self._target_lengths[target_rows]
        keys = [ties, *lengths]
        if self.division.fixed_shapes:
            keys.append(self._fixed_width(np.maximum(*lengths)))
        order = np.lexsort(keys)
        return source_rows[order].astype(np.int64), target_rows[order].astype(np.int64)

    def _cut(self) -> np.ndarray:
        """Return where batches start among the pairs by length; the same for every pass."""
        source_rows, target_rows = self._by_length(np.random.default_rng(self.seed))
        longer = np.maximum(self._source_lengths[source_rows], self._target_lengths[target_rows])
        fixed = self.division.fixed_shapes
        if fixed:
            longer = self._fixed_width(longer)
        starts, start, width = [0], 0, int(longer[0])
        for i, length in enumerate(longer.tolist()):
            is_wider = fixed and length > width
            width = max(width, length)
            if i > start and (is_wider or i - start >= self._num_rows(width)):
                starts.append(i)
                start, width = i, length
        return np.asarray(starts, np.int64)

    def _fixed_width(self, lengths):
        """Return the smallest of the fixed widths that each length fits into."""
        return self._widths[np.searchsorted(self._widths, lengths)]

    def _num_rows(self, width: int) -> int:
        return self.division.num_rows(self.batch_tokens, width)

    def _weigh(self, source_rows, target_rows) -> tf.data.Dataset:
        """Return the batches of one optimizer step, each with its weight in it."""
        lengths = tf.cast(tf.gather(self._target_lengths, target_rows), tf.float32)
        num_tokens = tf.reduce_sum(lengths, axis=1)
        weights = num_tokens / tf.reduce_mean(num_tokens)
        return tf.data.Dataset.from_tensor_slices((source_rows, target_rows, weights))

    def _padded(self, source_rows: np.ndarray, target_rows: np.ndarray) -> list[np.ndarray]:
        """Return what this process gets of a batch, padded: source and target."""
        division = self.division
        sides = [self._corpus.source.padded(source_rows), self._corpus.target.padded(target_rows)]
        num_rows, widths = len(source_rows), [ids.shape[1] for ids in sides]
        if division.fixed_shapes:
            width = int(self._fixed_width(max(widths)))
            num_rows, widths = max(num_rows, self._num_rows(width)), [width, width]
        num_rows = -(-num_rows // division.num_parts) * division.num_parts
        num_rows //= division.num_processes
        first = division.process * num_rows
        own = []
        for ids, width in zip(sides, widths, strict=True):
            ids = ids[first : first + num_rows]
            more = [(0, num_rows - len(ids)), (0, width - ids.shape[1])]
            own.append(np.pad(ids, more, constant_values=PAD_ID))
        return own

    def _gather(self, rows: tf.data.Dataset) -> tf.data.Dataset:
        def batch(source_rows, target_rows, weight=None):
            # In NumPy, since a tensor would be a copy of the corpus.
            source_ids, labels = tf.numpy_function(
                self._padded, [source_rows, target_rows], 2 * [tf.int32], stateful=False
            )
            for ids in (source_ids, labels):
                ids.set_shape([None, None])
            shifted = tf.where(labels == END_ID, PAD_ID, labels)[:, :-1]
            target_ids = tf.pad(shifted, [[0, 0], [1, 0]], constant_values=START_ID)
            inputs = {"source_ids": source_ids, "target_ids": target_ids}
            if self.division.weigh_parts:
                return inputs, labels, _part_weights(labels, self.division.num_parts)
            if weight is None:
                return inputs, labels
            return inputs, labels, tf.fill([tf.shape(labels)[0]], weight)

        return rows.map(batch, num_parallel_calls=2, deterministic=True).prefetch(8)


def _part_weights(labels, num_parts):
    """Return for each row the tokens of its part over the mean of all parts, float32 (batch,)."""
    num_tokens = tf.math.count_nonzero(
        tf.reshape(labels, [num_parts, -1]), axis=1, dtype=tf.float32
    )
    weights = num_tokens / tf.reduce_mean(num_tokens)
    return tf.repeat(weights, tf.shape(labels)[0] // num_parts)


def _slices(bounds: tf.data.Dataset, source_rows, target_rows) -> tf.data.Dataset:
    """Return the rows between each two bounds."""
    return bounds.map(lambda start, end: (source_rows[start:end], target_rows[start:end]))


def _end_encoder(tokenizer: Tokenizer):
    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def encode(text):
        tokens = tokenizer.tokenize(text)
        ends = tf.fill([tokens.nrows(out_type=tf.int32), 1], END_ID)
        tokens = tf.concat([tokens, ends], axis=1)
        return tokens.flat_values, tokens.row_lengths()

    return encode

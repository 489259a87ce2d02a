"""Subword regularization (Kudo 2018): each pass over the corpus draws its segmentations anew."""

from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain, islice

import numpy as np
import sentencepiece
from sentencepiece.sentencepiece_model_pb2 import ModelProto
from tqdm import tqdm

from keras_transformer.config import END_ID
from training.data import GrowingSequences, Sequences, TokenizedCorpus

TEXTS_PER_CHUNK = 4096


@dataclass(frozen=True)
class Segmentations(Sequences):
    """Several segmentations of each text, each with a probability.

    Segmented once, drawn from often: a draw is one binary search for each text.

    Attributes:
        bounds: float64 (sequences,), growing. The segmentations of text i divide the interval
            [i, i + 1) by their probabilities; these are their upper ends.
    """

    bounds: np.ndarray

    def __len__(self) -> int:
        """Return the number of texts."""
        return int(self.bounds[-1]) if len(self.bounds) else 0

    def draw(self, random: np.random.Generator) -> np.ndarray:
        """Return which sequence stands for each text, int64 (texts,)."""
        texts = np.arange(len(self))
        places = texts + random.random(len(self))  # the sum may be rounded up to the next text
        places = np.minimum(places, np.nextafter(texts + 1.0, 0.0))
        return np.searchsorted(self.bounds, places, side="right")


class Segmenter:
    """The best segmentations of texts under a unigram model.

    The `nbest_size` and `alpha` of sentencepiece's own sampling, which can't be seeded. A tag is
    never taken apart.

    Args:
        model: The bytes of a SentencePiece unigram model.
        nbest_size: Most segmentations of a text.
        alpha: Smoothing: the probability of a segmentation is proportional to its likelihood to
            the power of alpha.

    Raises:
        ValueError: An argument is outside its range.
    """

    def __init__(self, model: bytes, nbest_size: int = 16, alpha: float = 0.1):
        if nbest_size < 1:
            raise ValueError(f"nbest_size must be at least 1, received {nbest_size}")
        if alpha < 0:
            raise ValueError(f"alpha must not be negative, received {alpha}")
        self.nbest_size = nbest_size
        self.alpha = alpha
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        pieces = ModelProto.FromString(model).pieces
        self.vocab_size = len(pieces)
        self._scores = np.array([piece.score for piece in pieces])
        self._is_tag = np.array([piece.type == piece.USER_DEFINED for piece in pieces])

    def segment(self, texts: list[str]) -> "_Candidates":
        """Return the segmentations of each text, the best first, with end tokens."""
        nbest = [
            self._processor.nbest_encode(text, nbest_size=self.nbest_size, out_type=int)
            for text in texts
        ]
        text_numbers = np.repeat(np.arange(len(texts)), [len(of_text) for of_text in nbest])
        sequences = [[*ids, END_ID] for ids in chain.from_iterable(nbest)]
        lengths = np.array([len(ids) for ids in sequences], np.int64)
        ids = np.fromiter(chain.from_iterable(sequences), np.int32, int(lengths.sum()))
        starts = np.cumsum(lengths) - lengths
        best = np.searchsorted(text_numbers, text_numbers)  # the first of the same text
        scores = np.add.reduceat(self._scores[ids], starts)
        num_tags = np.add.reduceat(self._is_tag[ids].astype(int), starts)
        weights = np.exp(self.alpha * (scores - scores[best]))
        candidates = _Candidates(ids, lengths, text_numbers, weights)
        return candidates.where(num_tags == num_tags[best])


@dataclass(frozen=True)
class _Candidates:
    """Segmentations of some texts: of each its ids, text and unnormalised probability."""

    ids: np.ndarray  # int32 (tokens,), all segmentations in a row
    lengths: np.ndarray  # (segmentations,), and so the others
    text_numbers: np.ndarray
    weights: np.ndarray

    def where(self, is_kept: np.ndarray) -> "_Candidates":
        """Return those segmentations that are kept."""
        return _Candidates(
            self.ids[np.repeat(is_kept, self.lengths)],
            self.lengths[is_kept],
            self.text_numbers[is_kept],
            self.weights[is_kept],
        )

    def best_lengths(self) -> np.ndarray:
        """Return the length of each text's best segmentation."""
        return self.lengths[np.unique(self.text_numbers, return_index=True)[1]]

    def bounds(self) -> np.ndarray:
        """Return how the segmentations divide each text's interval, see Segmentations."""
        texts, firsts, numbers = np.unique(
            self.text_numbers, return_index=True, return_inverse=True
        )
        totals = np.add.reduceat(self.weights, firsts)
        bounds = np.cumsum(self.weights / totals[numbers])
        bounds[np.append(firsts[1:], len(bounds)) - 1] = np.arange(1, len(texts) + 1)
        return bounds


class _GrowingSegmentations(GrowingSequences):
    """Segmentations in the making, text by text."""

    def __init__(self, vocab_size: int):
        super().__init__(vocab_size)
        self._bounds = array("d")

    def add(self, candidates: _Candidates) -> None:
        """Append the segmentations of further texts."""
        self.extend(candidates.ids, candidates.lengths)
        num_texts = self._bounds[-1] if self._bounds else 0.0
        self._bounds.frombytes((num_texts + candidates.bounds()).tobytes())

    def finish(self) -> Segmentations:
        """Return the segmentations, see GrowingSequences."""
        sequences = super().finish()
        return Segmentations(sequences.ids, sequences.splits, np.asarray(self._bounds))


def segment_corpus(
    pairs: Iterable[tuple[str, str]],
    source_segmenter: Segmenter,
    target_segmenter: Segmenter,
    max_length: int,
    progress: bool = True,
) -> TokenizedCorpus:
    """Tokenize a stream of pairs as `tokenize_corpus` does, with several segmentations of each.

    Args:
        pairs: (source, target) texts.
        source_segmenter: Of the sources.
        target_segmenter: Of the targets.
        max_length: Longest side in tokens with the end token. Pairs whose best segmentation is
            longer are left out, and so are longer segmentations of the others.
        progress: Show a progress bar on stderr.
    """
    segmenters = (source_segmenter, target_segmenter)
    source, target = kept = [
        _GrowingSegmentations(segmenter.vocab_size) for segmenter in segmenters
    ]
    num_too_long = 0
    pairs = iter(tqdm(pairs, "segment", unit=" pairs", disable=not progress, leave=False))
    while chunk := list(islice(pairs, TEXTS_PER_CHUNK)):
        sides = [segmenters[side].segment([pair[side] for pair in chunk]) for side in (0, 1)]
        fits = np.all([side.best_lengths() <= max_length for side in sides], axis=0)
        num_too_long += int(np.sum(~fits))
        if not np.any(fits):
            continue
        for segmentations, side in zip(kept, sides, strict=True):
            segmentations.add(side.where(fits[side.text_numbers] & (side.lengths <= max_length)))
    return TokenizedCorpus(source.finish(), target.finish(), num_too_long)

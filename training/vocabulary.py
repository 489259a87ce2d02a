"""Trains and extends SentencePiece vocabularies with the `sentencepiece` library."""

import io
from collections.abc import Iterable, Sequence
from random import Random
from typing import TypeVar

import sentencepiece
from sentencepiece.sentencepiece_model_pb2 import ModelProto

from keras_transformer.config import END_ID, PAD_ID, START_ID, UNKNOWN_ID

# Enough for any vocabulary; a larger corpus is sampled down to this many pairs. The library takes
# about 27 bytes of memory for each character.
MAX_PAIRS = 200_000

T = TypeVar("T")


def train_vocabulary(
    texts: Iterable[str],
    vocab_size: int,
    character_coverage: float = 0.9995,
    tags: Sequence[str] = (),
) -> bytes:
    """Train a unigram vocabulary (Kudo 2018) with byte fallback and NFKC-based normalisation.

    Args:
        texts: Sentences; of both languages for a shared vocabulary.
        vocab_size: Pieces wanted, the special ones and 256 bytes included; a small corpus may
            give fewer.
        character_coverage: Share of the characters with pieces of their own.
        tags: Symbols that are always one piece, wherever they stand.

    Returns:
        The bytes of a SentencePiece model with the special ids of `keras_transformer.config`.

    Raises:
        ValueError: The vocabulary is too small for the corpus's characters, or there is no text.
    """
    model = io.BytesIO()
    texts = list(texts)  # an error in reading them must not pass through the library
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts),
            model_writer=model,
            model_type="unigram",
            vocab_size=vocab_size,
            hard_vocab_limit=False,
            character_coverage=character_coverage,
            byte_fallback=True,
            user_defined_symbols=list(tags),
            normalization_rule_name="nmt_nfkc",
            pad_id=PAD_ID,
            unk_id=UNKNOWN_ID,
            bos_id=START_ID,
            eos_id=END_ID,
            num_threads=1,  # the pieces depend on how many threads share the work
            minloglevel=2,
        )
    except (RuntimeError, OSError, ValueError) as error:
        reason = str(error).splitlines()[-1].strip()
        raise ValueError(f"vocab_size {vocab_size} does not fit the corpus: {reason}") from None
    return model.getvalue()


def extend_vocabulary(model: bytes, other: bytes) -> bytes:
    """Append the pieces that only another vocabulary has; those of the first keep their ids.

    Args:
        model: The bytes of the SentencePiece model to extend.
        other: The bytes of the model with more pieces.
    """
    extended, added = ModelProto.FromString(model), ModelProto.FromString(other)
    known = {piece.piece for piece in extended.pieces}
    extended.pieces.extend(piece for piece in added.pieces if piece.piece not in known)
    extended.trainer_spec.vocab_size = len(extended.pieces)
    return extended.SerializeToString()


def pieces_of(model: bytes) -> list[str]:
    """Return the pieces of a SentencePiece model in the order of their ids."""
    return [piece.piece for piece in ModelProto.FromString(model).pieces]


def sample(items: Iterable[T], count: int, seed: int) -> list[T]:
    """Return `count` of the items, or all if there are fewer, each as likely as any other.

    sentencepiece samples too, but from another seed in each process, whatever it is told.
    """
    random = Random(seed)
    kept: list[T] = []
    for number, item in enumerate(items):
        if number < count:
            kept.append(item)
        elif (place := random.randrange(number + 1)) < count:
            kept[place] = item
    return kept

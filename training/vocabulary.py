"""Trains a SentencePiece vocabulary with the `sentencepiece` library."""

import io
from collections.abc import Iterable
from random import Random

import sentencepiece

from keras_transformer.config import END_ID, PAD_ID, START_ID, UNKNOWN_ID

# Enough for any vocabulary; a larger corpus is sampled down to this many sentences.
MAX_SENTENCES = 2_000_000


def train_vocabulary(
    texts: Iterable[str], vocab_size: int, character_coverage: float = 0.9995, seed: int = 1
) -> bytes:
    """Train a unigram vocabulary (Kudo 2018) with byte fallback and NFKC-based normalisation.

    Args:
        texts: Sentences; of both languages for a shared vocabulary.
        vocab_size: Pieces wanted, the special ones and 256 bytes included; a small corpus may
            give fewer.
        character_coverage: Share of the characters with pieces of their own.
        seed: Of the sampling of a large corpus.

    Returns:
        The bytes of a SentencePiece model with the special ids of `keras_transformer.config`.

    Raises:
        ValueError: The vocabulary is too small for the corpus's characters, or there is no text.
    """
    model = io.BytesIO()
    sentences = _sample(texts, MAX_SENTENCES, seed)
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sentences),
            model_writer=model,
            model_type="unigram",
            vocab_size=vocab_size,
            hard_vocab_limit=False,
            character_coverage=character_coverage,
            byte_fallback=True,
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


def _sample(texts: Iterable[str], count: int, seed: int) -> list[str]:
    """Return `count` of the texts, or all if there are fewer, each as likely as any other.

    sentencepiece samples too, but from another seed in each process, whatever it is told.
    """
    random = Random(seed)
    kept: list[str] = []
    for number, text in enumerate(texts):
        if number < count:
            kept.append(text)
        elif (place := random.randrange(number + 1)) < count:
            kept[place] = text
    return kept

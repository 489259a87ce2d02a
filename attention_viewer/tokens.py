"""A sequence of tokens: pieces of words, which of them are text, and the words they spell.

Words are what spaces separate; a Chinese or Japanese character is a word of its own.
"""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_SPACE = "\u2581"  # SentencePiece's mark of a space
_BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")
# Scripts written without spaces: CJK ideographs and punctuation, kana, full-width forms.
_UNSPACED = re.compile(
    "[\u2e80-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff00-\uff65"
    "\U00020000-\U0003ffff]"
)


@dataclass(frozen=True)
class Tokens:
    """A sequence of tokens.

    Attributes:
        pieces: As the tokenizer has them; U+2581 is a space.
        special: Indices of those that are no text: start and end of sentence.
    """

    pieces: Sequence[str]
    special: Sequence[int] = ()

    def __len__(self) -> int:
        """Return the number of tokens."""
        return len(self.pieces)

    def is_special(self) -> np.ndarray:
        """Return which are no text; bool (length,)."""
        return np.isin(np.arange(len(self)), list(self.special))

    def is_punctuation(self) -> np.ndarray:
        """Return which hold punctuation and symbols alone; bool (length,)."""
        return np.array([self._is_punctuation(i) for i in range(len(self))], dtype=bool)

    def words(self) -> list[list[int]]:
        """Return the indices of the words that each token holds characters of; none if special."""
        words: list[list[int]] = []
        word = -1  # index of the newest word
        ends = True  # whether the next character begins another
        for i, piece in enumerate(self.pieces):
            held: list[int] = []
            byte = _BYTE_PIECE.fullmatch(piece)
            if i in self.special:
                ends = True
            elif byte:  # of a rare character, which is a word of its own
                word += int(byte[1], 16) & 0xC0 != 0x80
                held, ends = [word], True
            else:
                for character in piece:
                    if character in (_SPACE, " "):
                        ends = True
                        continue
                    is_unspaced = bool(_UNSPACED.match(character))
                    word += ends or is_unspaced
                    ends = is_unspaced
                    if word not in held:
                        held.append(word)
            words.append(held)
        return words

    def _is_punctuation(self, index: int) -> bool:
        text = self.pieces[index].lstrip(_SPACE)
        is_text = bool(text) and index not in self.special
        return is_text and all(unicodedata.category(character)[0] in "PS" for character in text)


def visible_piece(piece: str) -> str:
    """Return a piece for people: without the mark of a space, and with nothing that is unseen."""
    text = piece.replace(_SPACE, " ").strip() or piece.replace(_SPACE, "\u2423")
    unseen = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")
    return "".join(f"<{ord(c):04X}>" if unicodedata.category(c) in unseen else c for c in text)

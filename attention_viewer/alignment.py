"""Word alignments: gold links, the links of attention's maxima, and the alignment error rate.

Attention is not alignment: a head's maximum may lie elsewhere though the model has the word right.
"""

import re
from collections.abc import Collection
from typing import NamedTuple

import numpy as np

from attention_viewer.tokens import Tokens


class Link(NamedTuple):
    """A gold link between a word of the source and one of the target.

    Attributes:
        source: Index of the source word, from 0.
        target: Index of the target word, from 0.
        is_sure: Whether it must be found; else it may be.
    """

    source: int
    target: int
    is_sure: bool


def parse_links(text: str) -> list[Link]:
    """Read links as "0-0 1-2 2?3": i-j is sure, i?j possible.

    Raises:
        ValueError: A link is written otherwise.
    """
    links = []
    for word in text.split():
        match = re.fullmatch(r"(\d+)([-?])(\d+)", word)
        if not match:
            raise ValueError(f"{word!r} is no link: expected source-target, such as 0-0, or 0?0")
        links.append(Link(int(match[1]), int(match[3]), match[2] == "-"))
    return links


def strongest_links(weights: np.ndarray, source: Tokens, target: Tokens) -> set[tuple[int, int]]:
    """Return (source word, target word) for the largest weight of each target token on text.

    Args:
        weights: float (target, source), of one head.
        source: Tokens of the columns.
        target: Tokens of the rows.
    """
    columns = np.flatnonzero(~source.is_special())
    if not len(columns):
        return set()
    best = columns[weights[:, columns].argmax(axis=1)]
    source_words, target_words = source.words(), target.words()
    return {
        (source_word, target_word)
        for row, column in enumerate(best)
        for target_word in target_words[row]
        for source_word in source_words[column]
    }


def alignment_error_rate(found: Collection[tuple[int, int]], gold: Collection[Link]) -> float:
    """Return the rate of Och and Ney (2003); 0 is perfect, NaN where nothing is linked.

    Args:
        found: Links as (source word, target word).
        gold: All gold links; sure ones count as possible too.
    """
    found = set(found)
    sure = {(link.source, link.target) for link in gold if link.is_sure}
    possible = {(link.source, link.target) for link in gold}
    if not found and not sure:
        return float("nan")
    return 1 - (len(found & sure) + len(found & possible)) / (len(found) + len(sure))

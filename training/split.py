"""Divides a corpus into what to train on and what to hold out."""

from collections.abc import Sequence
from random import Random

Pair = tuple[str, str]


def hold_out(pairs: Sequence[Pair], count: int, seed: int = 1) -> tuple[list[Pair], list[Pair]]:
    """Hold out pairs, chosen at random, to validate or to test on.

    No sentence of theirs stands in the rest: pairs that share one with them are left out of both
    parts.

    Args:
        pairs: (source, target) texts.
        count: How many to hold out.
        seed: Of the choice.

    Returns:
        The rest, and what is held out, each source once.

    Raises:
        ValueError: The corpus is too small.
    """
    by_source = dict(reversed(pairs))  # of several translations, the first
    if not 1 <= count < len(by_source):
        raise ValueError(
            f"count must be from 1 to {len(by_source) - 1} for {len(by_source)} different sources, "
            f"received {count}"
        )
    sources = set(Random(seed).sample(sorted(by_source), count))
    targets = {by_source[source] for source in sources}
    rest = [pair for pair in pairs if pair[0] not in sources and pair[1] not in targets]
    if not rest:
        raise ValueError(f"count {count} leaves no pair: all share a sentence with those held out")
    return rest, [(source, by_source[source]) for source in sorted(sources)]

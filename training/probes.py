"""Probe sentences, whose attention and translation are watched over training."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from attention_viewer.summary import Link, Tokens, parse_links


class Probe(NamedTuple):
    """A pair to watch.

    Attributes:
        source: Source text.
        target: Its reference translation.
        links: Gold links between their words; None without.
    """

    source: str
    target: str
    links: list[Link] | None = None


def read_probes(path: str | Path) -> list[Probe]:
    """Read probes: on each line source TAB target, or source TAB target TAB links as "0-0 1-2 2?2".

    Links count words from 0; words are what spaces separate, and single Chinese or Japanese
    characters.

    Raises:
        ValueError: The file can't be read or a line is wrong; the message names it.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    probes = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            probes.append(_parse(line))
        except ValueError as error:
            raise ValueError(f"{path}:{number}: {error}") from None
    if not probes:
        raise ValueError(f"{path}: has no line with a probe")
    return probes


def choose_probes(pairs: Sequence[tuple[str, str]], count: int = 4) -> list[Probe]:
    """Choose pairs of different lengths, from short to rather long; always the same ones."""
    by_length = sorted(dict.fromkeys(pairs), key=lambda pair: (len(pair[0]), pair))
    # The longest and the shortest tell little: one is an exception, the other has few tokens.
    places = {round((0.2 + 0.75 * (i + 0.5) / count) * (len(by_length) - 1)) for i in range(count)}
    return [Probe(*by_length[place]) for place in sorted(places)]


def _parse(line: str) -> Probe:
    source, _, rest = line.partition("\t")
    target, tab, links = rest.partition("\t")
    if not source.strip() or not target.strip():
        raise ValueError("must be source TAB target, or source TAB target TAB links")
    if not tab:
        return Probe(source, target)
    probe = Probe(source, target, parse_links(links))
    for side, text in (("source", source), ("target", target)):
        words = Tokens([text]).words()[0]
        for link in probe.links or ():
            if getattr(link, side) >= len(words):
                raise ValueError(
                    f"link {link.source}-{link.target}: the {side} has {len(words)} words only"
                )
    return probe

r"""Reads parallel text: pairs of a source sentence and its translation.

A corpus is one of

* a TSV file, one pair a line, ``source<TAB>target``. There is no quoting and no escaping: a quote
  is a quote. Columns after the second are ignored (and counted).
* two line-aligned files, written ``SOURCE,TARGET``: line N of one goes with line N of the other.
  A tab in them is ordinary white space.

A name that ends in ``.gz`` is read through gzip. Lines are UTF-8 and end at ``\n`` only (a ``\r``
before it goes too): U+2028, U+0085 and the vertical tab are text, where ``str.splitlines`` would
break the line and with it the alignment. Files are read one line at a time.

Training text comes from the wild, so `read_pairs` skips what it cannot use and says so in a
`CorpusReport`. A test set must keep its lines, so `read_test_pairs` skips nothing.
"""

import gzip
import math
import os
import stat
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import BinaryIO

NO_TAB = "no tab"
EMPTY_SIDE = "empty side"
INVALID_UTF8 = "invalid UTF-8"
# UTF-16 without a byte order mark is valid UTF-8, full of NULs: it must not pass as text.
NUL_CHARACTER = "NUL character"
TOO_LONG = "too long"
LENGTH_RATIO = "length ratio"

RATIO_SLACK_BYTES = 20
EXAMPLES_PER_REASON = 5
EXCERPT_CHARACTERS = 60


class CorpusError(ValueError):
    """A user's mistake about a corpus; the message is one line and names the file."""


@dataclass(frozen=True)
class CorpusLimits:
    """How long and how unequal the two sides of a training pair may be; None sets no limit.

    Lengths are UTF-8 bytes without edge white space. In bytes one limit is fair to Chinese-English
    as to German-English: a Han character is 3 bytes and says about as much as 3 or 4 Latin letters.

    Attributes:
        max_bytes: A pair is "too long" when its longer side has more bytes than this.
        max_ratio: A pair has an absurd "length ratio" when
            ``longer > max_ratio * shorter + RATIO_SLACK_BYTES``. The slack of 20 bytes spares short
            sentences, where a greeting may well be five times as long in the other language.

    Raises:
        ValueError: If ``max_bytes`` is not a positive int, or ``max_ratio`` not a finite number of
            at least 1.
    """

    max_bytes: int | None = 4096
    max_ratio: float | None = 9.0

    def __post_init__(self) -> None:
        """Checks the two limits."""
        max_bytes, max_ratio = self.max_bytes, self.max_ratio
        # type(), not isinstance(): True is an int, but no length.
        if max_bytes is not None and (type(max_bytes) is not int or max_bytes < 1):
            raise ValueError(f"max_bytes must be a positive int or None, got {max_bytes!r}")
        if max_ratio is not None and (
            type(max_ratio) not in (int, float) or not 1 <= max_ratio < math.inf
        ):
            raise ValueError(
                f"max_ratio must be a finite number of at least 1, or None, got {max_ratio!r}"
            )


DEFAULT_LIMITS = CorpusLimits()


@dataclass
class CorpusReport:
    """What `read_pairs` kept and skipped; complete once its pairs have all been read.

    A report is for one reading: give each `read_pairs` a fresh one.

    Attributes:
        corpus: The corpus, as it was named to `read_pairs`.
        kept: Number of pairs yielded.
        skipped: Number of lines skipped, by reason.
        examples: The first few skipped lines by reason, each ``file:line: excerpt``. Excerpts are
            safe to print: what is not printable is escaped.
        extra_columns: Number of TSV lines with more than two columns, kept or not.
    """

    corpus: str = "corpus"
    kept: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)
    extra_columns: int = 0

    def add_skipped(self, reason: str, example: str) -> None:
        """Counts one skipped line, and keeps the example if it is one of the first."""
        self.skipped[reason] += 1
        examples = self.examples.setdefault(reason, [])
        if len(examples) < EXAMPLES_PER_REASON:
            examples.append(example)

    def lines(self) -> list[str]:
        r"""Tells the report to a person.

        Returns:
            Lines without line ends, such as::

                train.tsv: kept 29,003 pairs, skipped 2
                  empty side: 2
                    train.tsv:14: Good morning.\t
                    train.tsv:99: \tGood night.
        """
        kept = _count(self.kept, "pair")
        lines = [f"{_printable(self.corpus)}: kept {kept}, skipped {self.skipped.total():,}"]
        for reason, count in self.skipped.most_common():
            lines.append(f"  {reason}: {count:,}")
            lines.extend(f"    {example}" for example in self.examples[reason])
        if self.extra_columns:
            extra = _count(self.extra_columns, "line")
            lines.append(f"  more than two columns: {extra} (only the first two are read)")
        return lines


def read_pairs(
    corpus: str | Path,
    limits: CorpusLimits = DEFAULT_LIMITS,
    report: CorpusReport | None = None,
) -> Iterator[tuple[str, str]]:
    r"""Streams the pairs of a training or validation corpus, without those that are of no use.

    Skipped are lines without a tab, with an empty side, with invalid UTF-8 or a NUL, and pairs
    beyond the limits. White space and a byte order mark are stripped from the edges of each side.

    Args:
        corpus: A TSV file or ``SOURCE,TARGET``; see the module. An existing file whose own name
            has a comma is a TSV file.
        limits: Which pairs are too long or too unequal.
        report: Filled in while the pairs are read; None if nobody asks.

    Returns:
        An iterator over (source, target), in the order of the file.

    Raises:
        CorpusError: At once, if a file is missing, a directory, or may not be read. While
            iterating, if a file is damaged, if line-aligned files differ in length, or, at the
            end, if there was no usable pair.

    Example:
        >>> report = CorpusReport()
        >>> pairs = list(read_pairs("train.de,train.en", report=report))  # doctest: +SKIP
        >>> print(*report.lines(), sep="\n")  # doctest: +SKIP
    """
    files = _find_files(corpus)
    report = CorpusReport() if report is None else report
    report.corpus = str(corpus)
    return _usable_pairs(files, limits, report)


def read_test_pairs(corpus: str | Path) -> list[tuple[str, str]]:
    """Reads a test set whole: one pair for each line, in order, nothing skipped.

    A side may be empty or of any length. Edges are stripped, as in `read_pairs`.

    Args:
        corpus: A TSV file or ``SOURCE,TARGET``; see the module.

    Returns:
        A list of (source, target), as long as the file has lines.

    Raises:
        CorpusError: If a file cannot be read or has no lines, if line-aligned files differ in
            length, or if a line has no tab, invalid UTF-8 or a NUL; the message names the line.
    """
    files = _find_files(corpus)
    pairs = []
    for line_number, columns in _read_rows(files):
        try:
            pairs.append(_decode_pair(columns))
        except _UnusableLine as problem:
            location = _location(files, line_number, problem)
            raise CorpusError(f"{location}: {problem.reason}: {_excerpt(columns)}") from None
    if not pairs:
        raise CorpusError(f"{_printable(corpus)}: no pairs; it has no lines")
    return pairs


def check_can_be_read_again(corpus: str | Path) -> None:
    """Checks that no file of a corpus is a pipe, which gives its text only once.

    Raises:
        CorpusError: If one is; the message names it.
    """
    for file in _find_files(corpus):
        if not stat.S_ISREG(os.stat(file).st_mode):
            raise CorpusError(
                f"{_printable(file)}: is not a regular file; so large a corpus is read twice, "
                "for the vocabulary and for training: write it to a file"
            )


def _usable_pairs(
    files: list[str], limits: CorpusLimits, report: CorpusReport
) -> Iterator[tuple[str, str]]:
    for line_number, columns in _read_rows(files):
        report.extra_columns += len(columns) > 2
        try:
            pair = _decode_pair(columns)
            _check_lengths(pair, limits)
        except _UnusableLine as problem:
            location = _location(files, line_number, problem)
            report.add_skipped(problem.reason, f"{location}: {_excerpt(columns)}")
        else:
            report.kept += 1
            yield pair
    if not report.kept:
        raise CorpusError(_no_usable_pair(report))


class _UnusableLine(Exception):
    """Why a line gives no pair, and which side (0 source, 1 target) is to blame."""

    def __init__(self, reason: str, side: int) -> None:
        super().__init__(reason)
        self.reason = reason
        self.side = side


def _decode_pair(columns: list[bytes]) -> tuple[str, str]:
    if len(columns) < 2:
        raise _UnusableLine(NO_TAB, side=0)
    return _decode_side(columns, 0), _decode_side(columns, 1)


def _decode_side(columns: list[bytes], side: int) -> str:
    try:
        text = columns[side].decode("utf-8")
    except UnicodeDecodeError:
        raise _UnusableLine(INVALID_UTF8, side) from None
    if "\0" in text:
        raise _UnusableLine(NUL_CHARACTER, side)
    # On every line, not only the first: concatenated files have their marks in the middle.
    return text.strip().removeprefix("\ufeff").lstrip()


def _check_lengths(pair: tuple[str, str], limits: CorpusLimits) -> None:
    lengths = [len(text.encode("utf-8")) for text in pair]
    shorter, longer = sorted(lengths)
    if shorter == 0:
        raise _UnusableLine(EMPTY_SIDE, lengths.index(0))
    if limits.max_bytes is not None and longer > limits.max_bytes:
        raise _UnusableLine(TOO_LONG, lengths.index(longer))
    if limits.max_ratio is not None and longer > limits.max_ratio * shorter + RATIO_SLACK_BYTES:
        raise _UnusableLine(LENGTH_RATIO, lengths.index(shorter))


def _find_files(corpus: str | Path) -> list[str]:
    """Returns the one (TSV) or two (line-aligned) files of a corpus, checked to be readable."""
    name = str(corpus)
    files = [name] if os.path.exists(name) else name.split(",")
    if len(files) > 2:
        raise CorpusError(
            f"{_printable(name)}: no such file, and more than one comma; "
            "give one TSV file, or SOURCE,TARGET"
        )
    if not all(files):
        raise CorpusError(f"{name!r}: a file name is empty; give one TSV file, or SOURCE,TARGET")
    for file in files:
        _check_file(file)
    return files


def _check_file(file: str) -> None:
    # Without opening it: a pipe can be opened only once.
    try:
        mode = os.stat(file).st_mode
    except OSError as error:
        raise CorpusError(f"{_printable(file)}: {error.strerror}") from error
    except ValueError as error:  # a NUL in the name
        raise CorpusError(f"{_printable(file)}: {error}") from error
    if stat.S_ISDIR(mode):
        raise CorpusError(f"{_printable(file)}: is a directory, not a file")
    if not os.access(file, os.R_OK):
        raise CorpusError(f"{_printable(file)}: no permission to read it")


def _read_rows(files: list[str]) -> Iterator[tuple[int, list[bytes]]]:
    """Yields (line number from 1, columns) for both layouts; a TSV row has 1, 2 or 3 columns."""
    readers = [_read_lines(file) for file in files]
    for line_number, lines in enumerate(zip_longest(*readers), start=1):
        if None in lines:
            counts = [
                line_number - (line is None) + sum(1 for _ in reader)
                for line, reader in zip(lines, readers, strict=True)
            ]
            raise CorpusError(_different_lengths(files, counts))
        if len(files) == 1:
            yield line_number, lines[0].split(b"\t", maxsplit=2)
        else:
            yield line_number, [line.replace(b"\t", b" ") for line in lines]


def _read_lines(file: str) -> Iterator[bytes]:
    line_number = 1
    try:
        with _open(file) as stream:
            for line in stream:
                line_number += 1
                yield line.removesuffix(b"\n").removesuffix(b"\r")
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise CorpusError(
            f"{_printable(file)}: damaged gzip file, cannot read line {line_number} ({error})"
        ) from error
    except OSError as error:
        raise CorpusError(
            f"{_printable(file)}: cannot be read ({error.strerror or error})"
        ) from error


def _open(file: str) -> BinaryIO | gzip.GzipFile:
    if file.lower().endswith(".gz"):
        return gzip.open(file, "rb")
    return open(file, "rb")


def _location(files: list[str], line_number: int, problem: _UnusableLine) -> str:
    file = files[min(problem.side, len(files) - 1)]
    return f"{_printable(file)}:{line_number}"


def _excerpt(columns: list[bytes]) -> str:
    """Shows the beginning of both sides, so that an odd pair is seen to be odd."""
    sides = columns[:2]
    separator = "\\t"
    room = EXCERPT_CHARACTERS - len(separator) * (len(sides) - 1)
    return separator.join(_shorten(side, room // len(sides)) for side in sides)


def _shorten(text: bytes, width: int) -> str:
    # 4 bytes are at least one character, so that this is enough, and little.
    shown = _printable(text[: 4 * width + 4].decode("utf-8", "backslashreplace"))
    return shown if len(shown) <= width else shown[: width - 3] + "..."


def _printable(text: str | Path) -> str:
    """Escapes what could move a terminal's cursor, change its colours or reverse its text."""
    return "".join(
        character if character.isprintable() else repr(character)[1:-1] for character in str(text)
    )


def _no_usable_pair(report: CorpusReport) -> str:
    reasons = [
        f"{reason} {count:,} (first {report.examples[reason][0]})"
        for reason, count in report.skipped.most_common()
    ]
    skipped = _count(report.skipped.total(), "line")
    why = f"{skipped} skipped: {'; '.join(reasons)}" if reasons else "it has no lines"
    return f"{_printable(report.corpus)}: no usable pair; {why}"


def _different_lengths(files: list[str], counts: list[int]) -> str:
    sizes = [
        f"{_printable(file)} has {_count(count, 'line')}"
        for file, count in zip(files, counts, strict=True)
    ]
    return f"line-aligned files differ in length: {', '.join(sizes)}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"

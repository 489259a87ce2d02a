"""Facts about reading parallel text (training/corpus.py)."""

import gzip
import json
import os
import threading
from pathlib import Path

import pytest

from training.corpus import (
    CorpusError,
    CorpusLimits,
    CorpusReport,
    read_pairs,
    read_test_pairs,
)

DATA = Path(__file__).resolve().parents[1].parent / "shared" / "data"
needs_data = pytest.mark.skipif(
    not DATA.is_dir(), reason=f"the real corpora are not at {DATA} (not part of the repository)"
)

NO_LIMITS = CorpusLimits(max_bytes=None, max_ratio=None)


def write(path: Path, content: bytes | str) -> Path:
    content = content.encode("utf-8") if isinstance(content, str) else content
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def write_aligned(folder: Path, source: bytes | str, target: bytes | str) -> str:
    return f"{write(folder / 'a.de', source)},{write(folder / 'a.en', target)}"


def read(corpus: Path | str, limits: CorpusLimits = NO_LIMITS):
    """Returns the pairs and the report of a whole reading."""
    report = CorpusReport()
    return list(read_pairs(corpus, limits, report)), report


# Layouts


def test_a_tsv_line_is_a_source_a_tab_and_a_target(tmp_path):
    file = write(tmp_path / "a.tsv", "你好。\tHello.\n谢谢。\tThanks.\n")
    assert list(read_pairs(file)) == [("你好。", "Hello."), ("谢谢。", "Thanks.")]


def test_aligned_files_pair_line_by_line(tmp_path):
    corpus = write_aligned(tmp_path, "Hallo.\nDanke.\n", "Hello.\nThanks.\n")
    assert list(read_pairs(corpus)) == [("Hallo.", "Hello."), ("Danke.", "Thanks.")]


def test_gzip_is_known_by_the_name_in_both_layouts(tmp_path):
    tsv = write(tmp_path / "a.tsv.gz", "Hallo.\tHello.\n")
    source = write(tmp_path / "a.de.gz", "Hallo.\n")
    target = write(tmp_path / "a.en", "Hello.\n")
    assert list(read_pairs(tsv)) == [("Hallo.", "Hello.")]
    assert list(read_pairs(f"{source},{target}")) == [("Hallo.", "Hello.")]


def test_an_existing_file_with_a_comma_in_its_name_is_a_tsv(tmp_path):
    file = write(tmp_path / "de,en.tsv", "Hallo.\tHello.\n")
    assert list(read_pairs(str(file))) == [("Hallo.", "Hello.")]


def test_a_path_may_name_aligned_files(tmp_path):
    corpus = write_aligned(tmp_path, "Hallo.\n", "Hello.\n")
    assert list(read_pairs(Path(corpus))) == [("Hallo.", "Hello.")]


def test_a_tab_in_an_aligned_file_is_a_space(tmp_path):
    corpus = write_aligned(tmp_path, "Ein\tHund.\n", "A dog.\n")
    pairs, report = read(corpus)
    assert pairs == [("Ein Hund.", "A dog.")]
    assert report.extra_columns == 0


def test_extra_columns_are_ignored_and_counted(tmp_path):
    file = write(tmp_path / "a.tsv", "Hallo.\tHello.\tCC-BY\t7\nDanke.\tThanks.\n")
    pairs, report = read(file)
    assert pairs == [("Hallo.", "Hello."), ("Danke.", "Thanks.")]
    assert report.extra_columns == 1


def test_pairs_are_streamed(tmp_path):
    # The first pair is there before the second line has been looked at.
    file = write(tmp_path / "a.tsv", "Hallo.\tHello.\nno tab\n")
    report = CorpusReport()
    pairs = read_pairs(file, report=report)
    assert next(pairs) == ("Hallo.", "Hello.")
    assert report.skipped.total() == 0


def test_a_pipe_can_be_read(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    line = b"Hallo.\tHello.\n"
    threading.Thread(target=pipe.write_bytes, args=(line,), daemon=True).start()
    assert list(read_pairs(pipe)) == [("Hallo.", "Hello.")]


# Lines and text


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\u0085", "\v", "\f", "\x1c", "\r"])
def test_only_a_newline_ends_a_line(tmp_path, separator):
    file = write(tmp_path / "a.tsv", f"a{separator}b\tc{separator}d\n")
    assert list(read_pairs(file)) == [(f"a{separator}b", f"c{separator}d")]


def test_crlf_line_ends_are_stripped_in_both_layouts(tmp_path):
    tsv = write(tmp_path / "a.tsv", "Hallo.\tHello.\r\nDanke.\tThanks.\r\n")
    aligned = write_aligned(tmp_path, "Hallo.\r\nDanke.\r\n", "Hello.\nThanks.\n")
    expected = [("Hallo.", "Hello."), ("Danke.", "Thanks.")]
    assert list(read_pairs(tsv)) == expected
    assert list(read_pairs(aligned)) == expected


def test_the_last_line_needs_no_newline(tmp_path):
    corpus = write_aligned(tmp_path, "Hallo.\nDanke.", "Hello.\nThanks.\n")
    assert list(read_pairs(corpus)) == [("Hallo.", "Hello."), ("Danke.", "Thanks.")]


def test_a_byte_order_mark_is_stripped_in_both_layouts(tmp_path):
    tsv = write(tmp_path / "a.tsv", "\ufeffHallo.\tHello.\n")
    aligned = write_aligned(tmp_path, "\ufeffHallo.\n", "\ufeffHello.\n")
    assert list(read_pairs(tsv)) == [("Hallo.", "Hello.")]
    assert list(read_pairs(aligned)) == [("Hallo.", "Hello.")]


def test_white_space_is_stripped_from_the_edges_only(tmp_path):
    file = write(tmp_path / "a.tsv", " \u3000你 好。\u00a0\t  Good  day. \n")
    assert list(read_pairs(file)) == [("你 好。", "Good  day.")]


def test_quotes_and_backslashes_are_literal(tmp_path):
    file = write(tmp_path / "a.tsv", '"Hallo\t"Hello\\n ""\n"Ja."\t"Yes."\n')
    assert list(read_pairs(file)) == [('"Hallo', '"Hello\\n ""'), ('"Ja."', '"Yes."')]


# What is skipped, and the report


@pytest.mark.parametrize(
    ("reason", "line"),
    [
        ("no tab", b"no tab"),
        ("no tab", b""),
        ("empty side", b"source\t"),
        ("empty side", b"\ttarget"),
        ("empty side", b" \xe3\x80\x80\ttarget"),
        ("empty side", b"\xef\xbb\xbf\ttarget"),
        ("invalid UTF-8", b"caf\xe9\tcoffee"),
        ("invalid UTF-8", b"half a surrogate\t\xed\xa0\x80"),
        ("NUL character", "Hallo.\tHello.".encode("utf-16-le")),
        ("too long", b"a" * 4097 + b"\t" + b"b" * 4096),
        ("length ratio", b"@@\t" + b"b" * 39),
    ],
)
def test_a_line_of_no_use_is_skipped_for_its_reason(tmp_path, reason, line):
    file = write(tmp_path / "a.tsv", b"Hallo.\tHello.\n" + line + b"\nDanke.\tThanks.\n")
    pairs, report = read(file, CorpusLimits())
    assert pairs == [("Hallo.", "Hello."), ("Danke.", "Thanks.")]
    assert report.kept == 2
    assert report.skipped == {reason: 1}
    assert report.examples[reason][0].startswith(f"{file}:2: ")


def test_skipping_keeps_aligned_files_aligned(tmp_path):
    corpus = write_aligned(tmp_path, b"eins\n\xff\n\nvier\n", b"one\ntwo\nthree\nfour\n")
    assert list(read_pairs(corpus)) == [("eins", "one"), ("vier", "four")]


def test_an_example_names_the_file_at_fault(tmp_path):
    corpus = write_aligned(tmp_path, b"eins\nzwei\n\nvier\n", b"one\n\xff\nthree\n\n")
    report = read(corpus)[1]
    assert report.examples == {
        "invalid UTF-8": [f"{tmp_path}/a.en:2: zwei\\t\\xff"],
        "empty side": [f"{tmp_path}/a.de:3: \\tthree", f"{tmp_path}/a.en:4: vier\\t"],
    }


def test_a_length_example_names_the_long_side_or_the_far_too_short_one(tmp_path):
    corpus = write_aligned(tmp_path, f"eins\n{'b' * 40}\ngut\n", f"{'a' * 51}\nx\ngood\n")
    report = read(corpus, CorpusLimits(max_bytes=50, max_ratio=2))[1]
    assert report.examples["too long"][0].startswith(f"{tmp_path}/a.en:1: ")
    assert report.examples["length ratio"][0].startswith(f"{tmp_path}/a.en:2: ")


def test_the_report_keeps_the_first_five_examples(tmp_path):
    file = write(tmp_path / "a.tsv", "Hallo.\tHello.\n" + "no tab\n" * 7)
    report = read(file)[1]
    assert report.skipped["no tab"] == 7
    assert report.examples["no tab"] == [f"{file}:{line}: no tab" for line in range(2, 7)]


def test_an_excerpt_does_not_show_the_line_end(tmp_path):
    file = write(tmp_path / "a.tsv", "no tab\r\nHallo.\tHello.\r\n")
    assert read(file)[1].examples["no tab"] == [f"{file}:1: no tab"]


def test_an_excerpt_is_short_and_shows_both_sides(tmp_path):
    file = write(tmp_path / "a.tsv", "一" * 500 + "\t" + "two " * 50 + "\nHallo.\tHello.\n")
    report = read(file, CorpusLimits(max_bytes=100))[1]
    excerpt = report.examples["too long"][0].removeprefix(f"{file}:1: ")
    assert excerpt == "一" * 26 + "...\\t" + "two two two two two two tw..."
    assert len(excerpt) <= 60


@pytest.mark.parametrize("character", ["\x1b", "\b", "\r", "\u202e", "\u2066", "\u2028", "\ue000"])
def test_an_excerpt_is_safe_for_a_terminal(tmp_path, character):
    file = write(tmp_path / "a.tsv", f"a{character}b\nHallo.\tHello.\n")
    report = read(file)[1]
    assert report.examples["no tab"] == [f"{file}:1: a{repr(character)[1:-1]}b"]


def test_the_report_reads_well(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    good = "Hallo.\tHello.\n" * 1200
    write(Path("train.tsv"), good + "Ja.\t\nno tab\nNein.\tNo.\tx\n\tYes.\n")
    report = read("train.tsv")[1]
    assert report.lines() == [
        "train.tsv: kept 1,201 pairs, skipped 3",
        "  empty side: 2",
        "    train.tsv:1201: Ja.\\t",
        "    train.tsv:1204: \\tYes.",
        "  no tab: 1",
        "    train.tsv:1202: no tab",
        "  more than two columns: 1 line (only the first two are read)",
    ]


def test_the_report_of_a_clean_corpus_is_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(Path("a.tsv"), "Hallo.\tHello.\n")
    assert read("a.tsv")[1].lines() == ["a.tsv: kept 1 pair, skipped 0"]


# Limits


def test_max_bytes_limits_the_longer_side_in_utf8_bytes(tmp_path):
    file = write(tmp_path / "a.tsv", "好好\tfine\n好好好\tfine\nfine\tlengthy\n")
    pairs, report = read(file, CorpusLimits(max_bytes=6, max_ratio=None))
    assert pairs == [("好好", "fine")]
    assert report.skipped == {"too long": 2}


def test_max_ratio_allows_twenty_bytes_more_than_the_ratio(tmp_path):
    # longer > 2 * 10 + 20 is absurd, whichever side is longer.
    lengths = [(10, 40), (10, 41), (40, 10), (41, 10)]
    file = write(tmp_path / "a.tsv", "".join(f"{'a' * s}\t{'b' * t}\n" for s, t in lengths))
    pairs, report = read(file, CorpusLimits(max_ratio=2))
    assert [(len(source), len(target)) for source, target in pairs] == [(10, 40), (40, 10)]
    assert report.skipped == {"length ratio": 2}


def test_edge_white_space_does_not_count_towards_the_limits(tmp_path):
    file = write(tmp_path / "a.tsv", f"abc{' ' * 50}\tabc\n")
    assert read(file, CorpusLimits(max_bytes=3, max_ratio=1))[0] == [("abc", "abc")]


def test_none_switches_a_limit_off(tmp_path):
    file = write(tmp_path / "a.tsv", f"a\t{'b' * 10_000}\n")
    assert read(file, NO_LIMITS)[1].kept == 1


@pytest.mark.parametrize("max_bytes", [0, -1, 1.5, "9", True])
def test_max_bytes_must_be_a_positive_int(max_bytes):
    with pytest.raises(ValueError, match=f"max_bytes must be a positive int .*got {max_bytes!r}"):
        CorpusLimits(max_bytes=max_bytes)


@pytest.mark.parametrize("max_ratio", [0.5, float("nan"), float("inf"), "9", True])
def test_max_ratio_must_be_a_finite_number_of_at_least_one(max_ratio):
    with pytest.raises(ValueError, match=f"max_ratio must be a finite .*got {max_ratio!r}"):
        CorpusLimits(max_ratio=max_ratio)


# Test sets


def test_a_test_set_keeps_every_line_in_order(tmp_path):
    long = "b" * 10_000
    file = write(tmp_path / "a.tsv", f"\tleer\nHallo.\tHello.\na\t{long}\n\t\nJa.\t\textra\n")
    assert read_test_pairs(file) == [
        ("", "leer"),
        ("Hallo.", "Hello."),
        ("a", long),
        ("", ""),
        ("Ja.", ""),
    ]


def test_an_aligned_test_set_may_have_empty_lines(tmp_path):
    corpus = write_aligned(tmp_path, "eins\n\ndrei\n", "one\ntwo\n\n")
    assert read_test_pairs(corpus) == [("eins", "one"), ("", "two"), ("drei", "")]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"no tab here", "no tab: no tab here"),
        (b"", "no tab: "),
        (b"caf\xe9\tcoffee", "invalid UTF-8: caf\\xe9\\tcoffee"),
        (b"a\0b\tab", "NUL character: a\\x00b\\tab"),
    ],
)
def test_a_malformed_line_in_a_test_set_is_an_error(tmp_path, line, message):
    file = write(tmp_path / "a.tsv", b"Hallo.\tHello.\n" + line + b"\n")
    assert error_of(read_test_pairs, file) == f"{file}:2: {message}"


def test_an_empty_test_set_is_an_error(tmp_path):
    file = write(tmp_path / "a.tsv", "")
    assert error_of(read_test_pairs, file) == f"{file}: no pairs; it has no lines"


# A user's mistakes. Both readers share their files and lines, so each is told the same.

READERS = pytest.mark.parametrize(
    "reader", [lambda corpus: list(read_pairs(corpus)), read_test_pairs], ids=["pairs", "test"]
)


def error_of(function, corpus) -> str:
    with pytest.raises(CorpusError) as raised:
        function(corpus)
    message = str(raised.value)
    assert message.isprintable(), "one line, and safe for a terminal"
    return message


def test_a_corpus_error_is_a_value_error():
    assert issubclass(CorpusError, ValueError)


def test_a_missing_file_is_told_before_the_first_pair_is_asked_for(tmp_path):
    # read_pairs only: nothing is iterated.
    file = tmp_path / "missing.tsv"
    assert error_of(read_pairs, file) == f"{file}: No such file or directory"


@READERS
def test_a_missing_aligned_file_is_an_error(tmp_path, reader):
    source = write(tmp_path / "a.de", "Hallo.\n")
    missing = tmp_path / "a.en"
    assert error_of(reader, f"{source},{missing}") == f"{missing}: No such file or directory"


def test_a_directory_is_an_error(tmp_path):
    assert error_of(read_pairs, tmp_path) == f"{tmp_path}: is a directory, not a file"


def test_a_file_without_permission_is_an_error(tmp_path, monkeypatch):
    file = write(tmp_path / "a.tsv", "Hallo.\tHello.\n")
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may read everything
    assert error_of(read_pairs, file) == f"{file}: no permission to read it"


@READERS
def test_a_file_that_vanishes_is_an_error(tmp_path, monkeypatch, reader):
    file = tmp_path / "a.tsv"
    monkeypatch.setattr("training.corpus._check_file", lambda file: None)
    assert error_of(reader, file) == f"{file}: cannot be read (No such file or directory)"


def test_more_than_one_comma_is_an_error():
    assert error_of(read_pairs, "a.de,a.en,a.fr") == (
        "a.de,a.en,a.fr: no such file, and more than one comma; give one TSV file, or SOURCE,TARGET"
    )


@pytest.mark.parametrize("corpus", ["", "a.de,", ",a.en"])
def test_an_empty_file_name_is_an_error(corpus):
    assert error_of(read_pairs, corpus) == (
        f"{corpus!r}: a file name is empty; give one TSV file, or SOURCE,TARGET"
    )


@pytest.mark.parametrize("name", ["a\nb.tsv", "\x1b[31m.tsv", "\udcff.tsv", "a\0.tsv"])
def test_an_odd_file_name_is_escaped_in_the_message(name):
    assert error_of(read_pairs, name).startswith(f"{repr(name)[1:-1]}: ")


@READERS
@pytest.mark.parametrize(
    ("source", "target", "counts"),
    [("eins\nzwei\ndrei\n", "one", (3, 1)), ("eins\n", "one\ntwo\n\nfour\n", (1, 4))],
)
def test_aligned_files_of_different_lengths_are_an_error(tmp_path, reader, source, target, counts):
    corpus = write_aligned(tmp_path, source, target)
    sizes = [f"{count} line{'s' * (count > 1)}" for count in counts]
    assert error_of(reader, corpus) == (
        "line-aligned files differ in length: "
        f"{tmp_path}/a.de has {sizes[0]}, {tmp_path}/a.en has {sizes[1]}"
    )


@READERS
def test_a_truncated_gzip_file_is_an_error(tmp_path, reader):
    file = tmp_path / "a.tsv.gz"
    whole = gzip.compress(b"Hallo.\tHello.\n" * 9, compresslevel=0)
    file.write_bytes(whole[:-30])
    message = error_of(reader, file)
    assert message.startswith(f"{file}: damaged gzip file, cannot read line ")
    assert "ended before" in message


@READERS
@pytest.mark.parametrize(("position", "cause"), [(10, "block type"), (-8, "CRC check")])
def test_a_corrupt_gzip_file_is_an_error(tmp_path, reader, position, cause):
    damaged = bytearray(gzip.compress(b"Hallo.\tHello.\n" * 9))
    damaged[position] = 0xFF if damaged[position] != 0xFF else 0x00
    file = tmp_path / "a.tsv.gz"
    file.write_bytes(damaged)
    message = error_of(reader, file)
    assert message.startswith(f"{file}: damaged gzip file, cannot read line ")
    assert cause in message


@READERS
def test_a_plain_file_named_gz_is_an_error(tmp_path, reader):
    file = tmp_path / "a.tsv.gz"
    file.write_bytes(b"Hallo.\tHello.\n")
    assert error_of(reader, file).startswith(f"{file}: damaged gzip file, cannot read line 1 (")


def test_a_file_with_no_lines_is_an_error(tmp_path):
    file = write(tmp_path / "a.tsv", "")
    assert error_of(lambda corpus: list(read_pairs(corpus)), file) == (
        f"{file}: no usable pair; it has no lines"
    )


def test_a_file_with_no_usable_pair_is_an_error_that_says_why(tmp_path):
    file = write(tmp_path / "a.tsv", "one\ntwo\nJa.\t\n")
    assert error_of(lambda corpus: list(read_pairs(corpus)), file) == (
        f"{file}: no usable pair; 3 lines skipped: "
        f"no tab 2 (first {file}:1: one); empty side 1 (first {file}:3: Ja.\\t)"
    )


# The real corpora, against the counts of their READMEs


@needs_data
@pytest.mark.parametrize(
    ("name", "pairs"),
    [
        ("tatoeba-zh-en/train.tsv", 29_005),
        ("tatoeba-zh-en/valid.tsv", 1_024),
        ("tatoeba-zh-en/test.tsv", 999),
        ("python-docs-zh-en/train.tsv.gz", 29_197),
        ("python-docs-zh-en/valid.tsv", 1_076),
        ("python-docs-zh-en/test.tsv", 1_065),
        ("tatoeba-de-en/train.tsv.gz", 165_848),
    ],
)
def test_no_pair_of_a_clean_corpus_is_lost(name, pairs):
    report = read(DATA / name, CorpusLimits())[1]
    assert (report.kept, report.skipped.total(), report.extra_columns) == (pairs, 0, 0)


@needs_data
def test_multi30k_loses_only_its_two_untranslated_lines():
    folder = DATA / "multi30k-de-en"
    pairs, report = read(f"{folder}/train.de,{folder}/train.en", CorpusLimits())
    assert len(pairs) == 28_998
    assert report.examples == {
        "length ratio": [
            f"{folder}/train.de:16510: @@\\tFront stroke swimming race...",
            f"{folder}/train.de:16664: @@\\tYoung girls weave corn sta...",
        ]
    }
    assert "\t" not in pairs[7365][0]  # line 7366 of train.de has one


@needs_data
def test_naughty_strings_keep_their_lines():
    file = DATA / "naughty-strings" / "blns.txt"
    pairs = read_test_pairs(f"{file},{file}")
    assert len(pairs) == file.read_bytes().count(b"\n") == 742


@needs_data
def test_naughty_strings_survive_a_tsv(tmp_path):
    strings = json.loads((DATA / "naughty-strings" / "blns.json").read_text(encoding="utf-8"))
    strings = [text for text in strings if not set(text) & set("\t\n")]
    file = write(
        tmp_path / "a.tsv", "".join(f"{text}\t{number}\n" for number, text in enumerate(strings))
    )
    pairs = read_test_pairs(file)
    assert [int(target) for _, target in pairs] == list(range(len(strings)))
    assert [s for s, _ in pairs] == [
        text.strip().removeprefix("\ufeff").lstrip() for text in strings
    ]

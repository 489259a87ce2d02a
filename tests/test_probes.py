"""Probes: read from a file with gold links, or chosen from a corpus."""

import pytest

from attention_viewer.alignment import Link
from training.probes import Probe, choose_probes, read_probes


@pytest.fixture
def write(tmp_path):
    """Return a function that writes a file of probes and gives its path."""

    def write(text):
        path = tmp_path / "probes.tsv"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_probes_are_pairs_with_links_or_without(write):
    assert read_probes(write("你好。\tHello.\n\n我 想\tI want\t0-0 1?1\n茶\ttea\t\n")) == [
        Probe("你好。", "Hello.", None),
        Probe("我 想", "I want", [Link(0, 0, True), Link(1, 1, False)]),
        Probe("茶", "tea", []),
    ]


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "has no line with a probe"),
        ("a\tb\n你好\n", ":2: must be source TAB target"),
        ("\tb\n", ":1: must be source TAB target"),
        ("a\tb\t0:0\n", ":1: '0:0' is no link"),
        ("你好\thello\t2-0\n", ":1: link 2-0: the source has 2 words only"),
        ("你好\thello world\t0-2\n", ":1: link 0-2: the target has 2 words only"),
    ],
)
def test_a_mistake_is_named_with_file_and_line(write, text, message):
    path = write(text)
    with pytest.raises(ValueError) as error:
        read_probes(path)
    assert str(error.value).startswith(str(path)) and message in str(error.value)


def test_a_missing_file_and_one_that_is_no_text_are_named(tmp_path):
    with pytest.raises(ValueError, match="missing.tsv: No such file"):
        read_probes(tmp_path / "missing.tsv")
    (tmp_path / "binary.tsv").write_bytes(b"\xff\t\xfe")
    with pytest.raises(ValueError, match="binary.tsv: 'utf-8' codec can't decode"):
        read_probes(tmp_path / "binary.tsv")


def test_chosen_probes_grow_in_length_and_are_always_the_same():
    pairs = [("字" * n, f"{n}") for n in range(1, 101)]
    probes = choose_probes(pairs)
    lengths = [len(probe.source) for probe in probes]
    assert len(lengths) == 4
    assert lengths == sorted(lengths) and 20 < lengths[0] and lengths[-1] < 100
    assert choose_probes(pairs[::-1]) == probes


def test_a_small_corpus_gives_the_probes_it_has():
    assert choose_probes([("a", "b"), ("a", "b")]) == [Probe("a", "b")]
    assert len(choose_probes([("a", "b"), ("c", "d")])) == 2

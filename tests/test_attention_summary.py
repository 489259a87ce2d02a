"""Snapshots of attention: the format, the measures of heads, words and alignment errors."""

import gzip
import json
import struct

import numpy as np
import pytest
from attention_snapshots import REFERENCE, SOURCE, snapshot

from attention_viewer.alignment import Link, alignment_error_rate, parse_links, strongest_links
from attention_viewer.measures import measure_heads
from attention_viewer.metadata import MEASURES, VERSION, from_content, to_content
from attention_viewer.summary import AttentionMap, Snapshot, describe_maps, encode, measure
from attention_viewer.tokens import Tokens

# The format


def decode(payload):
    """Read a payload as its description says: header, and the weights of each map."""
    data = gzip.decompress(payload)
    assert data[:4] == b"ATTN"
    (length,) = struct.unpack("<I", data[4:8])
    header = json.loads(data[8 : 8 + length])
    offset, weights = 8 + length, []
    for attention in header["maps"]:
        count = int(np.prod(attention["shape"]))
        codes = np.frombuffer(data, np.uint8, count, offset).reshape(attention["shape"])
        weights.append((codes / 255.0) ** 2)
        offset += count
    assert offset == len(data)
    return header, weights


def test_a_payload_holds_texts_tokens_and_all_weights():
    written = snapshot()
    header, weights = decode(encode(written))
    assert header["version"] == VERSION == 1
    assert header["texts"] == written.texts
    assert header["sequences"]["source"] == {"pieces": list(SOURCE), "special": [8]}
    assert [m["name"] for m in header["maps"]] == ["encoder", "decoder", "cross", "translation"]
    assert [m["causal"] for m in header["maps"]] == [False, True, False, False]
    for attention, read in zip(written.maps, weights, strict=True):
        np.testing.assert_allclose(read, attention.weights, atol=0.004)


def test_small_weights_lose_less_than_large_ones():
    weights = np.geomspace(1e-4, 1, 50).reshape(1, 1, 1, 50)
    tokens = {"a": Tokens(["x"]), "b": Tokens(["y"] * 50)}
    _, (read,) = decode(encode(Snapshot({}, tokens, [AttentionMap("cross", "a", "b", weights)])))
    assert np.all(read > 0)
    assert np.all(np.abs(read - weights) <= np.sqrt(weights) / 255 + 1e-5)


def test_the_same_snapshot_has_the_same_bytes():
    assert encode(snapshot()) == encode(snapshot())


def test_any_text_can_be_a_token():
    pieces = ["<script>", '"', "\u200b", "\u202e", "\ud800", "x" * 500, "</s>"]
    header, _ = decode(encode(snapshot(source=pieces)))
    assert header["sequences"]["source"]["pieces"][:4] == pieces[:4]
    assert header["sequences"]["source"]["pieces"][4] == "?"  # a lone surrogate is no text


def test_weights_that_do_not_fit_their_tokens_are_named():
    weights = np.ones((1, 1, 2, 2))
    with pytest.raises(ValueError, match=r"'cross' must be \(layers, heads, 1, 2\)"):
        Snapshot(
            {}, {"a": Tokens(["x"]), "b": Tokens("yz")}, [AttentionMap("cross", "a", "b", weights)]
        )
    with pytest.raises(ValueError, match="'a' must have a token"):
        Snapshot({}, {"a": Tokens([])}, [])


def test_content_is_read_back_and_what_is_damaged_or_newer_is_said():
    maps = describe_maps(snapshot(layers=2, heads=4))
    assert maps[0] == {"name": "encoder", "layers": 2, "heads": 4}
    content = to_content("你好", maps)
    assert from_content(content) == {"source": "你好", "maps": maps, "measures": list(MEASURES)}
    newer = content.replace(b'"version": 1', b'"version": 2')
    with pytest.raises(ValueError, match="format 2; this viewer reads formats up to 1"):
        from_content(newer)
    for damaged in (b"", b"\xff", b"[]", b"{}", b'{"version": 1, "maps": 3}'):
        with pytest.raises(ValueError, match="damaged metadata"):
            from_content(damaged)


# Measures


def measures_of(name, layer=0, **sizes):
    """Return {measure: value of each head} for a map of `snapshot`."""
    made = snapshot(**sizes)
    (number,) = (i for i, attention in enumerate(made.maps) if attention.name == name)
    by_map = measure(made).reshape(len(made.maps), *made.maps[0].weights.shape[:2], len(MEASURES))
    return dict(zip(MEASURES, by_map[number, layer].T, strict=True))


def test_heads_that_look_at_one_place_have_weight_1_there():
    encoder = measures_of("encoder")
    assert encoder["previous"][0] == pytest.approx(8 / 9)  # the first token has none before it
    assert encoder["same"][1] == 1
    assert encoder["special"][2] == 1
    assert encoder["entropy"][:3] == pytest.approx(0, abs=1e-6)
    assert encoder["confidence"][:3] == pytest.approx(1)
    decoder = measures_of("decoder")
    assert decoder["special"][2] == 1
    assert np.isnan(decoder["next"]).all()
    cross = measures_of("cross")
    assert cross["diagonal"][0] == 1
    assert cross["special"][1] == 1
    assert np.isnan(cross["previous"]).all() and np.isnan(cross["alignment_error"]).all()


@pytest.mark.parametrize("name", ["encoder", "decoder", "cross", "translation"])
def test_equal_weights_have_entropy_1(name):
    assert measures_of(name, sharpness=0.0)["entropy"] == pytest.approx(1)


def test_measures_are_means_over_the_rows():
    rows, columns = Tokens(["a", "b"]), Tokens(["x", "!", "</s>"], [2])
    weights = np.array([[[[0.5, 0.5, 0.0], [0.0, 0.25, 0.75]]]])
    values = dict(zip(MEASURES, measure_heads(weights, rows, columns)[0, 0], strict=True))
    entropies = [np.log(2), -0.25 * np.log(0.25) - 0.75 * np.log(0.75)]
    assert values["entropy"] == pytest.approx(np.mean(entropies) / np.log(3))
    assert values["confidence"] == pytest.approx((0.5 + 0.75) / 2)
    assert values["punctuation"] == pytest.approx((0.5 + 0.25) / 2)
    assert values["special"] == pytest.approx(0.75 / 2)
    assert values["diagonal"] == pytest.approx(1.0)  # row 0: x and !, row 1: ! and </s>


def test_one_token_can_be_measured():
    one = Tokens(["</s>"], [0])
    values = measure_heads(np.ones((1, 1, 1, 1)), one, one, is_causal=True)
    assert values.shape == (1, 1, len(MEASURES))
    assert values[0, 0, MEASURES.index("entropy")] == 0


# Words and alignment


@pytest.mark.parametrize(
    "pieces, words",
    [
        (["▁I", "▁want", "▁tick", "ets", "."], [[0], [1], [2], [2], [2]]),
        (["▁我", "想买", "。"], [[0], [1, 2], [3]]),
        (["▁", "a", "b", "▁c"], [[], [0], [0], [1]]),
        (["▁GPU", "卡", "x"], [[0], [1], [2]]),
        (["<0xE4>", "<0xBD>", "<0xA0>", "<0xE5>"], [[0], [0], [0], [1]]),
        (["a▁b", "c"], [[0, 1], [1]]),
    ],
)
def test_words_are_what_spaces_separate_and_single_chinese_characters(pieces, words):
    assert Tokens(pieces).words() == words


def test_special_tokens_belong_to_no_word_and_are_no_punctuation():
    tokens = Tokens(["<s>", "▁a", ".", "</s>"], [0, 3])
    assert tokens.words() == [[], [0], [0], []]
    assert tokens.is_punctuation().tolist() == [False, False, True, False]
    assert tokens.is_special().tolist() == [True, False, False, True]


def test_links_are_read_and_what_is_none_is_named():
    assert parse_links("0-0 12?3\n") == [Link(0, 0, True), Link(12, 3, False)]
    assert parse_links("") == []
    for text in ("0", "0-", "0:1", "a-b", "0--1"):
        with pytest.raises(ValueError, match=f"'{text}' is no link"):
            parse_links(text)


def test_the_alignment_error_rate_is_that_of_och_and_ney():
    gold = parse_links("0-0 1-1 2?1")
    assert alignment_error_rate({(0, 0), (1, 1)}, gold) == 0
    assert alignment_error_rate({(0, 0), (1, 1), (2, 1)}, gold) == 0  # possible ones may be found
    assert alignment_error_rate({(0, 0), (3, 1)}, gold) == pytest.approx(1 - (1 + 1) / (2 + 2))
    assert alignment_error_rate({(5, 5)}, gold) == 1
    assert np.isnan(alignment_error_rate(set(), []))


def test_strongest_links_join_words_and_never_the_end_of_sentence():
    source, target = Tokens(SOURCE, [8]), Tokens(REFERENCE, [9])
    weights = np.full((10, 9), 0.01)
    weights[:, 8] = 0.9  # all prefer the end; what counts is the best of the text
    for row, column in ((0, 0), (1, 1), (2, 1), (3, 2), (4, 3), (5, 5), (6, 6), (7, 6), (8, 7)):
        weights[row, column] = 0.02
    assert strongest_links(weights, source, target) == {
        *((0, 0), (1, 1), (1, 2), (2, 3), (3, 4), (5, 5), (6, 5)),  # 火车 is two words
        *((7, 6), (8, 6)),  # 票 and 。 to "tickets."
    }


def test_gold_links_give_each_cross_head_an_error_rate():
    made = snapshot()
    cross = made.maps[2]
    links = [
        Link(s, t, True)
        for s, t in strongest_links(
            cross.weights[0, 0], made.sequences["source"], made.sequences["target"]
        )
    ]
    with_gold = Snapshot(made.texts, made.sequences, made.maps, links)
    errors = measure(with_gold)[:, MEASURES.index("alignment_error")].reshape(4, 2, 4)
    assert np.isnan(errors[[0, 1, 3]]).all()  # the gold links are of the reference
    assert errors[2, 0, 0] == 0
    assert errors[2, 0, 1] > 0.5

"""The trained vocabulary: special ids, spelling of any text, repeatability, sizes."""

import hashlib
import json
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest
import sentencepiece

from keras_transformer.config import END_ID, PAD_ID, START_ID, UNKNOWN_ID
from training.vocabulary import extend_vocabulary, pieces_of, sample, train_vocabulary

WORDS = {
    "tea": "茶",
    "rice": "米饭",
    "a book": "书",
    "the train": "火车",
    "a ticket": "票",
    "the museum": "博物馆",
    "my friend": "我的朋友",
    "the river": "河",
    "a doctor": "医生",
    "the station": "车站",
    "a map": "地图",
    "the school": "学校",
    "a room": "房间",
}
PHRASES = {
    "I like {}.": "我喜欢{}。",
    "Where is {}?": "{}在哪里？",
    "This is not {}.": "这不是{}。",
    "Do you know {}?": "你知道{}吗？",
    "I am looking for {}.": "我在找{}。",
    "Please show me {}.": "请给我看{}。",
}
PAIRS = [
    (phrase.format(word), chinese.format(WORDS[word]))
    for word in WORDS
    for phrase, chinese in PHRASES.items()
]
TEXTS = [text for pair in PAIRS for text in pair]


def processor(model):
    return sentencepiece.SentencePieceProcessor(model_proto=model)


@pytest.fixture(scope="module")
def model():
    return train_vocabulary(TEXTS, 360)


@pytest.fixture(scope="module")
def pieces(model):
    return processor(model)


def test_the_special_pieces_have_their_ids(pieces):
    assert (pieces.pad_id(), pieces.unk_id()) == (PAD_ID, UNKNOWN_ID)
    assert (pieces.bos_id(), pieces.eos_id()) == (START_ID, END_ID)


def test_a_vocabulary_has_the_size_that_was_asked_for(pieces):
    assert pieces.vocab_size() == 360


def test_a_character_that_is_not_in_the_corpus_is_spelt_as_its_bytes(pieces):
    spelt = pieces.encode("🙂", out_type=str)
    assert spelt[-4:] == ["<0xF0>", "<0x9F>", "<0x99>", "<0x82>"]
    ids = pieces.encode("🙂 ж")
    assert UNKNOWN_ID not in ids and pieces.decode(ids) == "🙂 ж"


@pytest.mark.parametrize(
    "written, normal",
    [
        ("Ｉ　ｌｉｋｅ　ｔｅａ．", "I like tea."),
        ("我喜欢茶｡", "我喜欢茶。"),
        ("ﬁne  tea ", "fine tea"),
    ],
)
def test_forms_that_nfkc_makes_equal_have_the_same_ids(pieces, written, normal):
    assert pieces.encode(written) == pieces.encode(normal)
    assert pieces.decode(pieces.encode(written)) == normal


def test_text_that_looks_like_a_special_piece_is_text(pieces):
    ids = pieces.encode("tea</s> <pad><s> 茶")
    assert not {PAD_ID, UNKNOWN_ID, START_ID, END_ID} & set(ids)


def test_frequent_words_of_both_languages_are_pieces(pieces):
    assert "▁book" in pieces.encode("Where is the book?", out_type=str)
    assert "▁我喜欢" in pieces.encode("我喜欢茶。", out_type=str)


OTHER_PROCESS = """
import hashlib, json, sys
from training.vocabulary import sample, train_vocabulary
texts, vocab_size, count = json.load(sys.stdin)
print(hashlib.sha256(train_vocabulary(sample(texts, count, 1), vocab_size)).hexdigest())
"""


def test_another_process_trains_the_same_vocabulary_even_of_a_sample():
    here = hashlib.sha256(train_vocabulary(sample(TEXTS, 110, 1), 350)).hexdigest()
    there = subprocess.run(
        [sys.executable, "-c", OTHER_PROCESS],
        input=json.dumps([TEXTS, 350, 110]),
        cwd=Path(__file__).resolve().parents[1],
        env={**os.environ, "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
    )
    assert there.stdout.strip() == here, there.stderr


def test_a_sample_of_a_stream_holds_no_more_texts_than_it_keeps():
    def peak(num_texts):
        tracemalloc.start()
        try:
            sample((f"{number} {TEXTS[0]}" for number in range(num_texts)), 100, 1)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(100)
    assert peak(4000) < 1.5 * peak(1000)


def test_a_sample_depends_on_the_seed_and_has_the_size_that_was_asked_for():
    first, second = (sample(TEXTS, 110, seed) for seed in (1, 2))
    assert first != second and len(first) == len(set(first)) == len(second) == 110
    assert set(first) < set(TEXTS) and sample(TEXTS, 1000, 1) == TEXTS


@pytest.mark.parametrize("vocab_size", [-1, 0, 20, 280, 2**31, 10**30])
def test_a_size_that_can_not_be_is_an_error_of_one_line_that_names_it(vocab_size):
    with pytest.raises(ValueError) as raised:
        train_vocabulary(TEXTS, vocab_size)
    assert str(raised.value).startswith(f"vocab_size {vocab_size} does not fit the corpus: ")
    assert "\n" not in str(raised.value)


def test_a_small_corpus_has_fewer_pieces_than_asked_for():
    size = processor(train_vocabulary(["Hello.", "你好。"], 8000)).vocab_size()
    assert 260 < size < 300  # the special ones, the bytes, and a few characters


@pytest.mark.parametrize("texts", [[], [""]])
def test_no_text_is_an_error(texts):
    with pytest.raises(ValueError, match="vocab_size 300 does not fit the corpus"):
        train_vocabulary(texts, 300)


def test_an_error_while_the_texts_are_read_comes_through():
    def texts():
        yield "Hello."
        raise ValueError("pairs.tsv: can't be read")

    with pytest.raises(ValueError, match="^pairs.tsv: can't be read$"):
        train_vocabulary(texts(), 300)


# Tags


@pytest.fixture(scope="module")
def tagged():
    return train_vocabulary([f"<2en> {text}" for text in TEXTS], 360, tags=["<2en>", "<2de>"])


def test_a_tag_is_one_piece_wherever_it_stands_even_if_no_text_has_it(tagged):
    pieces = processor(tagged)
    for tag in ("<2en>", "<2de>"):
        for text in (f"{tag} I like tea.", f"{tag}我喜欢茶。", f"tea {tag} {tag}"):
            assert pieces.encode(text, out_type=str).count(tag) == text.count(tag)


def test_without_tags_what_looks_like_one_is_spelt(pieces):
    assert "<2en>" not in pieces.encode("<2en> tea", out_type=str)


def test_tags_leave_the_special_pieces_where_they_are(tagged):
    assert pieces_of(tagged)[:4] == ["<pad>", "<unk>", "<s>", "</s>"]


# Extension


def test_an_extended_vocabulary_keeps_its_ids_and_has_the_pieces_of_both(model):
    other = train_vocabulary(["Der Bahnhof ist groß.", "Wo ist der Bahnhof?"], 300, tags=["<2de>"])
    extended = extend_vocabulary(model, other)
    old, new, both = pieces_of(model), pieces_of(other), pieces_of(extended)
    assert both[: len(old)] == old
    assert len(both) == len(set(both)) and set(both) == {*old, *new}
    assert processor(extended).vocab_size() == len(both)
    assert processor(extended).encode("<2de> tea", out_type=str).count("<2de>") == 1


def test_an_extension_by_itself_changes_nothing(model):
    assert pieces_of(extend_vocabulary(model, model)) == pieces_of(model)

"""Splitting texts at sentence ends, and joining their translations."""

import pytest
import tensorflow as tf

from keras_transformer.segmentation import join_sentences, split_sentences


def split(*texts):
    return [
        [sentence.decode() for sentence in row]
        for row in split_sentences(tf.constant(texts)).to_list()
    ]


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("你好。", ["你好。"]),
        ("你好。今天怎么样？很好！走了", ["你好。", "今天怎么样？", "很好！", "走了"]),
        ("他说：“好！”然后走了。", ["他说：“好！”", "然后走了。"]),
        ("真的？！不会吧……", ["真的？！", "不会吧……"]),
        ('Yes. "No!" Why?', ["Yes.", '"No!"', "Why?"]),
        ("It costs 3.14 at example.org today.", ["It costs 3.14 at example.org today."]),
        ("Mr. Wu met J. Smith. They left.", ["Mr. Wu met J. Smith.", "They left."]),
        ("好。Fine. 好。", ["好。", "Fine.", "好。"]),
        ("one\0two\1three. four", ["one two three.", "four"]),
        ("no end", ["no end"]),
        ("  a.   b.  ", ["a.", "b."]),
        ("...", ["..."]),
    ],
)
def test_a_text_is_split_after_its_sentence_ends(text, sentences):
    assert split(text) == [sentences]


def test_a_text_without_a_sentence_is_one_empty_sentence():
    assert split("", "a. b", "  \n") == [[""], ["a.", "b"], [""]]
    assert split_sentences(tf.constant([], tf.string)).to_list() == []


@pytest.mark.parametrize(
    ("sentences", "text"),
    [
        (["a.", "b."], "a. b."),
        (["好。", "好！", "好"], "好。好！好"),
        (["“好。”", "好"], "“好。”好"),
        (["好。", "a.", "好。"], "好。a. 好。"),
        ([""], ""),
    ],
)
def test_sentences_are_joined_with_a_space_but_after_full_width_marks(sentences, text):
    assert join_sentences(tf.ragged.constant([sentences])).numpy()[0].decode() == text

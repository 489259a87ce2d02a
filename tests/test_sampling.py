"""Subword sampling: which segmentations there are, how often each is drawn, and that it repeats."""

from itertools import islice

import numpy as np
import pytest
import sentencepiece
import tensorflow as tf

from keras_transformer.config import END_ID, PAD_ID
from keras_transformer.tokenizer import Tokenizer
from training import sampling
from training.data import Batches, tokenize_corpus
from training.sampling import Segmentations, Segmenter, segment_corpus
from training.vocabulary import train_vocabulary

PAIRS = [
    ("<2en> 你好。", "Hello."),
    ("<2en> 再见。", "Goodbye."),
    ("<2en> 我喜欢喝茶。", "I like to drink tea."),
    ("<2en> 他在学校学习中文。", "He studies Chinese at school."),
    ("<2en> 车站在哪里?", "Where is the station?"),
    (
        "<2en> 今天天气很好。我们一起去公园吧。",
        "The weather is good today, let us go to the park together.",
    ),
    ("<2en> 谢谢。🙂", "Thank you."),
]
TEXT = PAIRS[5][1]


@pytest.fixture(scope="module")
def model():
    return train_vocabulary((text for pair in PAIRS for text in pair), 420, tags=["<2en>"])


@pytest.fixture(scope="module")
def tokenizer(model):
    return Tokenizer(model)


def segment(model, nbest_size=8, alpha=0.5, pairs=PAIRS, max_length=256):
    segmenter = Segmenter(model, nbest_size, alpha)
    return segment_corpus(pairs, segmenter, segmenter, max_length, progress=False)


def sequence(segmentations, row):
    return segmentations.ids[segmentations.splits[row] : segmentations.splits[row + 1]].tolist()


def segmentations_of(sequences, number):
    """Return {ids: probability} of text `number`, the best first."""
    rows = np.flatnonzero(np.ceil(sequences.bounds) == number + 1)
    upper = sequences.bounds[rows] - number
    return {
        tuple(sequence(sequences, row)): probability
        for row, probability in zip(rows, np.diff(upper, prepend=0), strict=True)
    }


# Segmentations


def test_the_first_segmentation_is_the_tokenizers_and_all_spell_the_text(model, tokenizer):
    corpus = segment(model)
    plain = tokenize_corpus(PAIRS, tokenizer, tokenizer, 256, progress=False)
    for side, (sequences, best) in enumerate(
        ((corpus.source, plain.source), (corpus.target, plain.target))
    ):
        assert len(sequences) == len(PAIRS)
        for number, pair in enumerate(PAIRS):
            segmentations = list(segmentations_of(sequences, number))
            assert segmentations[0] == tuple(sequence(best, number))
            assert 1 < len(segmentations) <= 8 or side == 0
            assert all(ids[-1] == END_ID for ids in segmentations)
            texts = tokenizer.decode(tf.ragged.constant(segmentations, tf.int32).to_tensor(PAD_ID))
            assert {text.decode() for text in texts.numpy()} == {pair[side]}


@pytest.mark.parametrize("alpha", [0.0, 0.2, 1.0])
def test_probabilities_are_the_likelihoods_to_the_power_of_alpha(model, alpha):
    found = segmentations_of(segment(model, 16, alpha).target, 5)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    nbest = processor.nbest_encode(TEXT, nbest_size=16, return_type="proto").nbests
    likelihoods = np.exp([alpha * part.score for part in nbest])
    expected = {
        (*(piece.id for piece in part.pieces), END_ID): likelihood / likelihoods.sum()
        for part, likelihood in zip(nbest, likelihoods, strict=True)
    }
    assert len(found) == 16 and found.keys() == expected.keys()
    for ids, probability in found.items():
        assert probability == pytest.approx(expected[ids], rel=1e-4)


def test_a_tag_is_never_taken_apart(model):
    tag = Tokenizer(model).tokenize(tf.constant(["<2en>"])).flat_values.numpy().tolist()[-1]
    pairs = [(f"<2en> {text} <2en>", text) for _, text in PAIRS]
    corpus = segment(model, 64, pairs=pairs)
    rows = np.split(corpus.source.ids, corpus.source.splits[1:-1])
    assert len(rows) > 100 and all(np.sum(row == tag) == 2 for row in rows)


def test_a_single_segmentation_is_plain_tokenization(model, tokenizer):
    corpus = segment(model, nbest_size=1)
    plain = tokenize_corpus(PAIRS, tokenizer, tokenizer, 256, progress=False)
    np.testing.assert_array_equal(corpus.source.ids, plain.source.ids)
    np.testing.assert_array_equal(corpus.target.splits, plain.target.splits)
    rows = corpus.target.draw(np.random.default_rng(1))
    np.testing.assert_array_equal(rows, np.arange(len(PAIRS)))


def test_what_is_longer_than_max_length_is_left_out(model):
    lengths = [len(list(segmentations_of(segment(model).target, i))[0]) for i in range(len(PAIRS))]
    limit = sorted(lengths)[-2]
    corpus = segment(model, max_length=limit)
    assert (len(corpus), corpus.num_too_long) == (len(PAIRS) - 1, 1)
    assert corpus.source.lengths.max() <= limit and corpus.target.lengths.max() == limit
    assert len(segment(model, max_length=1)) == 0


def test_chunks_leave_no_trace(model, monkeypatch):
    whole = segment(model, max_length=12)
    monkeypatch.setattr(sampling, "TEXTS_PER_CHUNK", 2)
    parts = segment(model, max_length=12)
    for one, other in ((whole.source, parts.source), (whole.target, parts.target)):
        np.testing.assert_array_equal(one.ids, other.ids)
        np.testing.assert_array_equal(one.splits, other.splits)
        np.testing.assert_allclose(one.bounds, other.bounds, rtol=1e-12)


@pytest.mark.parametrize("arguments, name", [((0, 0.1), "nbest_size"), ((4, -1.0), "alpha")])
def test_a_value_outside_its_range_is_an_error_that_names_it(model, arguments, name):
    with pytest.raises(ValueError, match=f"^{name} must .* received"):
        Segmenter(model, *arguments)


# Draws


def test_segmentations_are_drawn_as_often_as_their_probabilities_say():
    sequences = Segmentations(
        np.zeros(6, np.int32), np.arange(7), np.array([0.1, 0.4, 1.0, 2.0, 2.75, 3.0])
    )
    assert len(sequences) == 3
    random = np.random.default_rng(1)
    rows = np.array([sequences.draw(random) for _ in range(20_000)])
    assert set(rows[:, 1]) == {3}
    for text, row, probability in ((0, 0, 0.1), (0, 1, 0.3), (0, 2, 0.6), (2, 4, 0.75)):
        assert np.mean(rows[:, text] == row) == pytest.approx(probability, abs=0.015)


def test_a_draw_stays_within_its_text():
    class Highest:
        def random(self, size):
            return np.full(size, np.nextafter(1.0, 0.0))

    sequences = Segmentations(np.zeros(9999, np.int32), np.arange(10_000), np.arange(1.0, 10_000.0))
    np.testing.assert_array_equal(sequences.draw(Highest()), np.arange(9999))


def rows_of(dataset, count):
    return [
        (row[row != PAD_ID].tolist(), label[label != PAD_ID].tolist())
        for inputs, labels in islice(dataset.as_numpy_iterator(), count)
        for row, label in zip(inputs["source_ids"], labels, strict=True)
    ]


def test_each_pass_draws_anew_and_has_every_pair_once(model, tokenizer):
    batches = Batches(segment(model), 60, seed=1)
    passes = [
        rows_of(batches.dataset(number * batches.steps_per_pass), batches.steps_per_pass)
        for number in range(3)
    ]
    for rows in passes:
        texts = tokenizer.decode(
            tf.ragged.constant([source for source, _ in rows], tf.int32).to_tensor(PAD_ID)
        )
        assert sorted(text.decode() for text in texts.numpy()) == sorted(
            source for source, _ in PAIRS
        )
    assert len({str(sorted(rows)) for rows in passes}) == 3


def test_a_resumed_run_sees_the_segmentations_it_would_have_seen(model):
    batches = Batches(segment(model), 60, seed=1)
    count = batches.steps_per_pass
    whole = [rows_of(batches.dataset(step), 1) for step in range(3 * count)]
    again = Batches(segment(model), 60, seed=1)
    for step in (0, 1, count - 1, count, 2 * count + 1):
        assert rows_of(again.dataset(step), 1) == whole[step]
    assert rows_of(Batches(segment(model), 60, seed=2).dataset(), count) != sum(whole[:count], [])

"""Batches: what is in them, in which order, how full they are, and where a resumed run goes on."""

import tracemalloc
from collections import Counter
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.config import END_ID, PAD_ID, START_ID
from keras_transformer.tokenizer import Tokenizer
from training import data
from training.corpus import read_pairs
from training.data import Batches, Division, Sequences, TokenizedCorpus, tokenize_corpus
from training.vocabulary import train_vocabulary

TATOEBA = Path(__file__).resolve().parents[2] / "shared/data/tatoeba-zh-en/train.tsv"
PAIRS = [
    ("你好。", "Hello."),
    ("再见。", "Goodbye."),
    ("我喜欢喝茶。", "I like to drink tea."),
    ("他在学校学习中文。", "He studies Chinese at school."),
    ("车站在哪里？", "Where is the station?"),
    (
        "今天天气很好，我们一起去公园吧。",
        "The weather is good today, let us go to the park together.",
    ),
    ("谢谢。", "Thank you."),
]


def sequences(lengths, first_id):
    """Return sequences of these lengths, end token included; no two have an id in common."""
    ids, next_id = [], first_id
    for length in lengths:
        ids += [*range(next_id, next_id + length - 1), END_ID]
        next_id += length - 1 or 1
    return Sequences(np.array(ids, np.int32), np.cumsum([0, *lengths], dtype=np.int64))


def corpus_of(source_lengths, target_lengths):
    return TokenizedCorpus(sequences(source_lengths, 1000), sequences(target_lengths, 50_000), 0)


@pytest.fixture
def corpus():
    """120 pairs, many of the same lengths; no source is empty, so that each is known by its ids."""
    random = np.random.default_rng(1)
    target = random.integers(1, 12, 120)
    return corpus_of(np.maximum(2, target + random.integers(-3, 4, 120)), target)


def rows(ids):
    """Return the rows of a padded batch as tuples, without padding."""
    return [tuple(row[row != PAD_ID].tolist()) for row in ids]


def pairs_of(corpus):
    """Return the corpus as (source ids, target ids) tuples."""
    return list(
        zip(
            *(
                [tuple(ids.tolist()) for ids in np.split(side.ids, side.splits[1:-1])]
                for side in (corpus.source, corpus.target)
            ),
            strict=True,
        )
    )


def as_pairs(batches):
    """Return each batch as a tuple of (source ids, label ids) tuples."""
    return [
        tuple(zip(rows(inputs["source_ids"]), rows(labels), strict=True))
        for inputs, labels in batches
    ]


def take(dataset, count):
    return list(islice(dataset.as_numpy_iterator(), count))


# One batch


def test_labels_are_the_target_ids_one_step_ahead(corpus):
    for inputs, labels in take(Batches(corpus, 40, seed=1).dataset(), 20):
        target_ids = inputs["target_ids"]
        assert target_ids.shape == labels.shape
        assert np.all(target_ids[:, 0] == START_ID)
        for row, label_row in zip(target_ids, labels, strict=True):
            length = np.count_nonzero(label_row)
            assert label_row[length - 1] == END_ID
            np.testing.assert_array_equal(row[1:length], label_row[: length - 1])
            assert not np.any(row[length:]) and not np.any(label_row[length:])


def test_there_is_no_end_token_in_the_target_ids_and_one_in_each_other_row(corpus):
    for inputs, labels in take(Batches(corpus, 40, seed=1).dataset(), 20):
        assert not np.any(inputs["target_ids"] == END_ID)
        assert np.all(np.sum(labels == END_ID, axis=1) == 1)
        assert np.all(np.sum(inputs["source_ids"] == END_ID, axis=1) == 1)


def test_all_ids_are_int32_and_the_signature_says_so(corpus):
    dataset = Batches(corpus, 40, seed=1).dataset()
    spec = tf.TensorSpec([None, None], tf.int32)
    assert dataset.element_spec == ({"source_ids": spec, "target_ids": spec}, spec)


def test_a_batch_is_as_wide_as_its_longest_row(corpus):
    for inputs, labels in take(Batches(corpus, 40, seed=1).dataset(), 20):
        assert np.any(labels[:, -1]) and np.any(inputs["source_ids"][:, -1])


def test_an_empty_target_is_a_start_token_whose_label_is_the_end_token():
    ((inputs, labels),) = take(Batches(corpus_of([3], [1]), 40, seed=1).one_pass(), 5)
    assert inputs["target_ids"].tolist() == [[START_ID]] and labels.tolist() == [[END_ID]]


# Passes over the corpus


def test_every_pair_occurs_exactly_once_in_each_pass(corpus):
    batches = Batches(corpus, 40, seed=1)
    seen = as_pairs(take(batches.dataset(), 3 * batches.steps_per_pass))
    for number in range(3):
        of_pass = seen[number * batches.steps_per_pass : (number + 1) * batches.steps_per_pass]
        assert Counter(sum(of_pass, ())) == Counter(pairs_of(corpus))


def test_passes_have_other_batches_in_another_order(corpus):
    batches = Batches(corpus, 40, seed=1)
    count = batches.steps_per_pass
    seen = as_pairs(take(batches.dataset(), 2 * count))
    first, second = ([frozenset(batch) for batch in half] for half in (seen[:count], seen[count:]))
    assert first != second
    assert set(first) != set(second)  # pairs of the same lengths change places

    def widths(half):
        return [max(len(target) for _, target in batch) for batch in half]

    assert sorted(widths(first)) == sorted(widths(second)) and widths(first) != widths(second)


def test_batches_are_not_in_order_of_length(corpus):
    batches = Batches(corpus, 40, seed=1)
    widths = [labels.shape[1] for _, labels in take(batches.dataset(), batches.steps_per_pass)]
    assert widths != sorted(widths) and widths != sorted(widths, reverse=True)


def test_the_same_seed_gives_the_same_order_and_another_seed_another(corpus):
    first, again, other = (
        as_pairs(take(Batches(corpus, 40, seed=seed).dataset(), 30)) for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


def test_iterating_again_starts_again(corpus):
    dataset = Batches(corpus, 40, seed=1).dataset()
    assert as_pairs(take(dataset, 10)) == as_pairs(take(dataset, 10))


def test_a_dataset_that_starts_at_a_step_goes_on_where_the_whole_one_would_be(corpus):
    count = Batches(corpus, 40, seed=1).steps_per_pass
    whole = as_pairs(take(Batches(corpus, 40, seed=1).dataset(), 3 * count))
    for step in (1, 2, count - 2, count - 1, count, count + 3, 2 * count + 1):
        resumed = Batches(corpus, 40, seed=1).dataset(start_batch=step)
        assert as_pairs(take(resumed, 6)) == whole[step : step + 6]


def test_one_pass_has_each_pair_once_and_ends(corpus):
    batches = Batches(corpus, 40, seed=1)
    seen = as_pairs(batches.one_pass().as_numpy_iterator())
    assert len(seen) == batches.steps_per_pass
    assert Counter(sum(seen, ())) == Counter(pairs_of(corpus))


# Gradient accumulation


def test_the_batches_of_a_step_are_weighed_by_their_share_of_its_target_tokens(corpus):
    batches = Batches(corpus, 40, seed=1)
    plain = take(batches.dataset(), 30)
    weighed = take(batches.dataset(gradient_accumulation_steps=3), 30)
    seen = set()
    for step in range(0, 30, 3):
        num_tokens = [np.sum(labels != PAD_ID) for _, labels in plain[step : step + 3]]
        seen.update(num_tokens)
        for i, (inputs, labels, weights) in enumerate(weighed[step : step + 3]):
            np.testing.assert_array_equal(inputs["source_ids"], plain[step + i][0]["source_ids"])
            np.testing.assert_array_equal(inputs["target_ids"], plain[step + i][0]["target_ids"])
            np.testing.assert_array_equal(labels, plain[step + i][1])
            assert weights.shape == (len(labels),) and weights.dtype == np.float32
            np.testing.assert_allclose(weights, 3 * num_tokens[i] / sum(num_tokens), rtol=1e-6)
    assert len(seen) > 5


def test_a_dataset_can_start_in_the_middle_of_a_step(corpus):
    batches = Batches(corpus, 40, seed=1)
    whole = take(batches.dataset(gradient_accumulation_steps=4), 3 * batches.steps_per_pass)
    for start in (1, 3, 4, 6, batches.steps_per_pass, 2 * batches.steps_per_pass + 1):
        resumed = take(Batches(corpus, 40, seed=1).dataset(start, 4), 6)
        assert as_pairs(part[:2] for part in resumed) == as_pairs(
            part[:2] for part in whole[start : start + 6]
        )
        for one, other in zip(resumed, whole[start:], strict=False):
            np.testing.assert_array_equal(one[2], other[2])


# Size and padding


@pytest.mark.parametrize("batch_tokens", [13, 40, 1000])
def test_no_batch_exceeds_the_budget_on_either_side(corpus, batch_tokens):
    assert max(corpus.source.lengths) > 13
    batches = Batches(corpus, batch_tokens, seed=1)
    for inputs, labels in take(batches.dataset(), 2 * batches.steps_per_pass):
        size, width = len(labels), max(labels.shape[1], inputs["source_ids"].shape[1])
        assert size * width <= batch_tokens or size == 1


def test_batches_are_filled(corpus):
    batches = Batches(corpus, 100, seed=1)
    longer = np.maximum(corpus.source.lengths, corpus.target.lengths)
    assert batches.steps_per_pass < 1.5 * np.sum(longer) / 100


def test_a_pair_beyond_the_budget_is_a_batch_of_its_own():
    batches = Batches(corpus_of([2, 2, 30, 2, 3], [2, 2, 3, 2, 40]), 10, seed=1)
    seen = as_pairs(batches.one_pass().as_numpy_iterator())
    sizes = {
        max(len(source), len(target)): len(batch) for batch in seen for source, target in batch
    }
    assert sizes == {2: 3, 30: 1, 40: 1}


def test_the_padding_share_is_that_of_the_batches(corpus):
    batches = Batches(corpus, 40, seed=1)
    seen = take(batches.dataset(), batches.steps_per_pass)
    sides = ([inputs["source_ids"] for inputs, _ in seen], [labels for _, labels in seen])
    shares = [
        sum(np.sum(ids == PAD_ID) for ids in side) / sum(ids.size for ids in side) for side in sides
    ]
    assert batches.padding_share() == pytest.approx(tuple(shares), abs=1e-12)
    assert shares[0] > 0


def test_a_corpus_of_one_pair_is_a_batch_in_each_pass():
    batches = Batches(corpus_of([3], [4]), 100, seed=1)
    assert batches.steps_per_pass == 1 and batches.padding_share() == (0, 0)
    assert len(set(as_pairs(take(batches.dataset(start_batch=5), 3)))) == 1


def test_an_empty_corpus_is_an_error():
    with pytest.raises(ValueError, match="^corpus has no pair that fits max_length"):
        Batches(corpus_of([], []), 100, seed=1)


# Division among devices and processes


def real_rows(batch):
    """Return the batch without rows of padding."""
    inputs, labels, *weights = batch
    is_real = np.any(labels != PAD_ID, axis=1)
    assert np.all(np.any(inputs["source_ids"] != PAD_ID, axis=1) == is_real)
    return {name: ids[is_real] for name, ids in inputs.items()}, labels[is_real]


def test_a_divided_batch_is_the_whole_one_with_rows_of_padding(corpus):
    whole = take(Batches(corpus, 40, seed=1).dataset(), 40)
    divided = take(Batches(corpus, 40, 1, Division(num_parts=3, weigh_parts=True)).dataset(), 40)
    assert as_pairs(map(real_rows, divided)) == as_pairs(whole)
    assert all(len(labels) % 3 == 0 for _, labels, _ in divided)
    assert any(len(labels) % 3 for _, labels in whole)
    for (inputs, labels), (other_inputs, other_labels, _) in zip(whole, divided, strict=True):
        assert inputs["source_ids"].shape[1] == other_inputs["source_ids"].shape[1]
        assert labels.shape[1] == other_labels.shape[1]


def test_parts_are_weighed_by_their_share_of_the_real_target_tokens(corpus):
    dataset = Batches(corpus, 40, 1, Division(num_parts=2, weigh_parts=True)).dataset()
    seen = set()
    for _, labels, weights in take(dataset, 40):
        num_tokens = [np.sum(part != PAD_ID) for part in np.split(labels, 2)]
        expected = [2 * count / sum(num_tokens) for count in num_tokens]
        np.testing.assert_allclose(weights, np.repeat(expected, len(labels) // 2), rtol=1e-6)
        seen.update(expected)
    assert len(seen) > 5


FIXED = Division(num_parts=2, fixed_shapes=True)


def test_fixed_shapes_are_few_and_hold_each_pair_once(corpus):
    batches = Batches(corpus, 100, 1, FIXED)
    for dataset in (batches.dataset(), batches.one_pass()):
        seen = take(dataset, batches.steps_per_pass)
        assert Counter(sum(as_pairs(map(real_rows, seen)), ())) == Counter(pairs_of(corpus))
        shapes = {(*labels.shape, inputs["source_ids"].shape[1]) for inputs, labels in seen}
        widths = {width for _, width, _ in shapes}
        assert len(shapes) == len(widths) > 1
        assert all(target == source and rows % 8 == 0 for rows, target, source in shapes)
        assert widths <= {4, 8, 12, 16, max(*corpus.source.lengths, *corpus.target.lengths)}


def test_fixed_shapes_stay_below_the_budget_but_for_eight_rows(corpus):
    for _, labels in take(Batches(corpus, 100, 1, FIXED).dataset(), 40):
        assert labels.size <= 100 or len(labels) == 8


def test_the_padding_share_counts_rows_of_padding(corpus):
    batches = Batches(corpus, 100, 1, FIXED)
    seen = take(batches.dataset(), batches.steps_per_pass)
    sides = ([inputs["source_ids"] for inputs, _ in seen], [labels for _, labels in seen])
    shares = [np.mean(np.concatenate([ids.ravel() for ids in side]) == PAD_ID) for side in sides]
    assert batches.padding_share() == pytest.approx(tuple(shares), abs=1e-12)


def test_the_shares_of_all_processes_are_the_batch(corpus):
    whole = take(Batches(corpus, 100, 1, FIXED).dataset(3), 30)
    shares = [
        take(
            Batches(corpus, 100, 1, replace(FIXED, process=i, num_processes=2)).dataset(3),
            30,
        )
        for i in (0, 1)
    ]
    for (inputs, labels), *parts in zip(whole, *shares, strict=True):
        np.testing.assert_array_equal(np.concatenate([part[1] for part in parts]), labels)
        for name, ids in inputs.items():
            np.testing.assert_array_equal(np.concatenate([part[0][name] for part in parts]), ids)


def test_fixed_shapes_are_the_same_for_1_2_4_and_8_devices(corpus):
    for num_parts in (1, 4, 8):
        other = replace(FIXED, num_parts=num_parts)
        for one, two in zip(
            take(Batches(corpus, 100, 1, FIXED).dataset(), 10),
            take(Batches(corpus, 100, 1, other).dataset(), 10),
            strict=True,
        ):
            np.testing.assert_array_equal(one[1], two[1])


# Text


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer(train_vocabulary((text for pair in PAIRS for text in pair), 8000))


def tokenize(pairs, tokenizer, max_length=256):
    return tokenize_corpus(pairs, tokenizer, tokenizer, max_length, progress=False)


def test_a_corpus_holds_the_ids_of_each_text_and_an_end_token(tokenizer):
    corpus = tokenize(PAIRS, tokenizer)
    assert len(corpus) == len(PAIRS) and corpus.num_too_long == 0
    expected = [
        tuple(
            (*tokenizer.tokenize(tf.constant([text]))[0].numpy().tolist(), END_ID) for text in pair
        )
        for pair in PAIRS
    ]
    assert pairs_of(corpus) == expected
    assert corpus.source.lengths.tolist() == [len(source) for source, _ in expected]


def test_each_side_has_its_tokenizer(tokenizer):
    other = Tokenizer(train_vocabulary([target for _, target in PAIRS], 8000))
    corpus = tokenize_corpus(PAIRS, other, tokenizer, 256, progress=False)
    (source, target), *_ = pairs_of(corpus)
    assert other.decode(tf.constant([source])).numpy()[0].decode() == PAIRS[0][0]
    assert tokenizer.decode(tf.constant([target])).numpy()[0].decode() == PAIRS[0][1]
    assert source != pairs_of(tokenize(PAIRS, tokenizer))[0][0]


def test_chunks_leave_no_trace(tokenizer, monkeypatch):
    whole = pairs_of(tokenize(PAIRS, tokenizer, max_length=12))
    monkeypatch.setattr(data, "PAIRS_PER_CHUNK", 3)
    assert pairs_of(tokenize(iter(PAIRS), tokenizer, max_length=12)) == whole


def test_a_corpus_streams_memory_grows_by_two_bytes_a_token_and_no_text(tokenizer, monkeypatch):
    monkeypatch.setattr(data, "PAIRS_PER_CHUNK", 64)

    def peak_and_tokens(num_pairs):
        # Each text is an object of its own, as it is when it is read from a file.
        pairs = (tuple(f"{text}{number}" for text in PAIRS[5]) for number in range(num_pairs))
        tracemalloc.start()
        try:
            corpus = tokenize(pairs, tokenizer)
            return tracemalloc.get_traced_memory()[1], len(corpus.source.ids) + len(
                corpus.target.ids
            )
        finally:
            tracemalloc.stop()

    peak_and_tokens(100)  # what is made once
    (small, few_tokens), (large, many_tokens) = peak_and_tokens(1000), peak_and_tokens(4000)
    places_in_corpus = 3000 * 2 * 12  # the length of each sequence, and where it ends
    assert large - small < 1.2 * (2 * (many_tokens - few_tokens) + places_in_corpus)


def test_ids_that_need_more_than_16_bits_have_them():
    sequences = data.GrowingSequences(vocab_size=1 << 20)
    sequences.extend(np.array([70_000, 3, 5, 3]), np.array([2, 2]))
    np.testing.assert_array_equal(
        sequences.finish().padded(np.array([1, 0])), [[5, 3], [70_000, 3]]
    )


def test_a_pair_with_a_side_longer_than_max_length_is_left_out_and_counted(tokenizer):
    everything = tokenize(PAIRS, tokenizer)
    for side, other in ((0, 1), (1, 0)):
        pairs = [tuple("好" if i == other else pair[i] for i in (0, 1)) for pair in PAIRS]
        lengths = (everything.source, everything.target)[side].lengths
        limit = int(np.sort(lengths)[-2])  # only the longest has more
        corpus = tokenize(pairs, tokenizer, max_length=limit)
        kept = [pair for pair, length in zip(pairs, lengths, strict=True) if length <= limit]
        assert corpus.num_too_long == len(pairs) - len(kept) > 0
        assert pairs_of(corpus) == pairs_of(tokenize(kept, tokenizer))
        assert max(limit, 2) == max((corpus.source, corpus.target)[side].lengths)


def test_when_all_pairs_are_too_long_the_corpus_is_empty(tokenizer):
    corpus = tokenize(PAIRS, tokenizer, max_length=1)
    assert len(corpus) == 0 and corpus.num_too_long == len(PAIRS)


@pytest.mark.skipif(not TATOEBA.is_file(), reason=f"{TATOEBA} is not there")
def test_less_than_a_tenth_of_the_target_positions_of_a_real_corpus_is_padding():
    pairs = list(read_pairs(TATOEBA))
    tokenizer = Tokenizer(train_vocabulary((text for pair in pairs for text in pair), 6000))
    corpus = tokenize(pairs, tokenizer)
    source_share, target_share = Batches(corpus, 2048, seed=1).padding_share()
    assert len(corpus) > 29_000
    assert 0 < target_share < 0.10
    assert 0 < source_share < 0.35

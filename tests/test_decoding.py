"""Search: exhaustive search on tiny vocabularies, a plain-Python beam search, and real models."""

import importlib.util
import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.config import END_ID, PAD_ID, START_ID
from keras_transformer.decoding import (
    Hypotheses,
    beam_search,
    greedy_search,
    length_penalty,
    sample,
)
from keras_transformer.model import StepDecoder

ON_TENSORFLOW = keras.backend.backend() == "tensorflow"
needs_graphs = pytest.mark.skipif(not ON_TENSORFLOW, reason="only TensorFlow makes graphs")

VOCABULARY = 6  # the special ids, and two more
STATES = 997
TABLE = np.random.default_rng(0).normal(scale=2.0, size=(STATES, VOCABULARY)).astype("float32")


def next_state(state, token, position):
    """Return what the whole history comes to, given what it came to before `token`."""
    return (state * 31 + token * 7 + position + 1) % STATES


def make_table_step(table=TABLE):
    """Return a step whose logits depend on sentence, tokens and positions so far; and its calls."""
    calls = []

    def step(ids, parents, position, cache):
        calls.append(int(ids.shape[0]) if ids.shape[0] is not None else None)
        state = ops.take_along_axis(cache["state"], parents, axis=1)
        state = next_state(state, ids, position)
        logits = ops.take(ops.convert_to_tensor(table), state, axis=0)
        # What a model's cache does: a dimension that starts empty and grows.
        newest = ops.ones_like(ops.expand_dims(ids, 2))
        history = ops.concatenate([cache["history"], newest], axis=2)
        return logits, {"state": state, "history": history}

    return step, calls


def start_cache(keys, num_beams=1):
    """Return the first cache of sentences that differ by `keys`, numbers below STATES."""
    keys = np.array(keys, "int32").reshape(-1, 1)
    return {
        "state": ops.convert_to_tensor(np.tile(keys, (1, num_beams))),
        "history": ops.zeros((len(keys), num_beams, 0), "int32"),
    }


def table_greedy(keys, limits, alpha=0.6, table=TABLE, no_repeat_ngram=0):
    limits = ops.convert_to_tensor(np.array(limits, "int32"))
    cache, step = start_cache(keys), make_table_step(table)[0]
    return to_numpy(greedy_search(step, cache, limits, alpha, no_repeat_ngram))


def table_beam(keys, limits, beam_size, alpha=0.6, table=TABLE, **options):
    """Return all `beam_size` hypotheses, unless `num_best` says otherwise."""
    limits = ops.convert_to_tensor(np.array(limits, "int32"))
    cache, step = start_cache(keys, beam_size), make_table_step(table)[0]
    options = {"num_best": beam_size, **options}
    return to_numpy(beam_search(step, cache, limits, beam_size, alpha, **options))


def to_numpy(hypotheses):
    assert [keras.backend.standardize_dtype(x.dtype) for x in hypotheses] == [
        "int32",
        "float32",
        "int32",
    ]
    return Hypotheses(*(ops.convert_to_numpy(part) for part in hypotheses))


def as_tuples(hypotheses, sentence):
    """Return the token tuples of one sentence's hypotheses; what follows a length is padding."""
    sequences = []
    for ids, length in zip(hypotheses.ids[sentence], hypotheses.lengths[sentence], strict=True):
        assert (ids[length:] == PAD_ID).all()
        sequences.append(tuple(int(token) for token in ids[:length]))
    return sequences


def log_softmax(logits):
    logits = np.asarray(logits, "float64")
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def table_log_probs(key, tokens, table=TABLE):
    """Return the log-probability of each of `tokens` after those before it."""
    state, log_probs = key, []
    for position, (token, following) in enumerate(zip((START_ID, *tokens), tokens, strict=False)):
        state = next_state(state, token, position)
        log_probs.append(log_softmax(table[state])[following])
    return log_probs


def penalty(length, alpha):
    return ((5 + length) / 6) ** alpha


def exhaustive_search(key, limit, alpha):
    """Return (score, tokens) of every sequence of at most `limit` tokens, best first."""
    inner = [token for token in range(VOCABULARY) if token not in (PAD_ID, END_ID)]
    sequences = [
        (*tokens, END_ID)
        for length in range(limit)
        for tokens in itertools.product(inner, repeat=length)
    ]
    scored = [
        (sum(table_log_probs(key, tokens)) / penalty(len(tokens), alpha), tokens)
        for tokens in sequences
    ]
    return sorted(scored, reverse=True)


def plain_beam_search(key, limit, beam_size, alpha, num_best):
    """Return (score, tokens) of beam search, written for one sentence over Python lists."""
    beam, ended = [(0.0, ())], []
    for length in range(1, limit + 1):
        candidates = []
        for log_prob, tokens in beam:
            for token in [END_ID] if length == limit else range(VOCABULARY):
                if token != PAD_ID:
                    gained = table_log_probs(key, (*tokens, token))[-1]
                    candidates.append((log_prob + gained, (*tokens, token)))
        candidates.sort(reverse=True)
        for log_prob, tokens in candidates[:beam_size]:
            if tokens[-1] == END_ID:
                ended.append((log_prob / penalty(length, alpha), tokens))
        beam = [(log_prob, tokens) for log_prob, tokens in candidates if tokens[-1] != END_ID]
        beam = beam[:beam_size]
        ended = sorted(ended, reverse=True)[:num_best]
        best_possible = beam[0][0] / penalty(limit, alpha) if beam else -np.inf
        if len(ended) == num_best and (beam_size == 1 or ended[-1][0] >= best_possible):
            break
    return ended


@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
def test_a_beam_as_wide_as_all_sequences_is_exhaustive_search(alpha):
    keys, limits = [5, 17, 400, 401, 996], [3, 3, 3, 2, 1]
    beam_size = 1 + 4 + 16
    found = table_beam(keys, limits, beam_size, alpha)
    for i, (key, limit) in enumerate(zip(keys, limits, strict=True)):
        expected = exhaustive_search(key, limit, alpha)
        count = len(expected)
        assert count == {3: 21, 2: 5, 1: 1}[limit]
        assert as_tuples(found, i)[:count] == [tokens for _, tokens in expected]
        np.testing.assert_allclose(
            found.scores[i, :count], [score for score, _ in expected], rtol=1e-5
        )


def test_hypotheses_that_do_not_exist_are_empty_and_score_minus_infinity():
    found = table_beam([7], [2], beam_size=8)
    assert np.isfinite(found.scores[0, :5]).all()
    assert (found.scores[0, 5:] == -np.inf).all()
    assert (found.lengths[0, 5:] == 0).all()
    assert (found.ids[0, 5:] == PAD_ID).all()


def test_the_length_penalty_decides_between_short_and_long():
    # Without a penalty the short ones win; a strong one prefers long ones.
    keys = np.random.randint(0, STATES, 20)
    mean_lengths = [
        table_beam(keys, [3] * 20, 21, alpha).lengths[:, 0].mean() for alpha in (0.0, 5.0)
    ]
    assert mean_lengths[0] < mean_lengths[1]


@pytest.mark.parametrize("num_best", [1, None])
@pytest.mark.parametrize(("beam_size", "alpha"), [(1, 0.6), (2, 0.0), (3, 0.6), (4, 2.0)])
def test_beam_search_equals_a_plain_one_over_python_lists(beam_size, alpha, num_best):
    keys = np.random.randint(0, STATES, 25)
    limits = np.random.randint(2, 8, 25)
    num_best = num_best or beam_size
    found = table_beam(keys, limits, beam_size, alpha, num_best=num_best)
    for i in range(25):
        expected = plain_beam_search(int(keys[i]), int(limits[i]), beam_size, alpha, num_best)
        assert as_tuples(found, i)[: len(expected)] == [tokens for _, tokens in expected]
        scores = [score for score, _ in expected]
        np.testing.assert_allclose(found.scores[i, : len(expected)], scores, rtol=1e-5)
        assert (found.scores[i, len(expected) :] == -np.inf).all()


def test_a_wider_beam_finds_no_worse_translations_on_average():
    keys = np.random.randint(0, STATES, 100)
    means = [table_beam(keys, [6] * 100, size).scores[:, 0].mean() for size in (1, 2, 4, 16)]
    assert means == sorted(means) and means[0] < means[-1]


def test_a_beam_of_one_is_greedy_search():
    keys = np.random.randint(0, STATES, 500)
    limits = np.random.randint(1, 12, 500)
    greedy, beam = table_greedy(keys, limits), table_beam(keys, limits, beam_size=1)
    np.testing.assert_array_equal(greedy.ids, beam.ids)
    np.testing.assert_array_equal(greedy.lengths, beam.lengths)
    np.testing.assert_allclose(greedy.scores, beam.scores, rtol=1e-5)
    assert len(set(greedy.lengths[:, 0])) > 5


def test_greedy_search_takes_the_most_probable_token_each_time():
    keys = np.random.randint(0, STATES, 50)
    found = table_greedy(keys, [8] * 50)
    for i, key in enumerate(keys):
        (tokens,) = as_tuples(found, i)
        state = int(key)
        for position, token in enumerate((START_ID, *tokens[:-1])):
            state = next_state(state, token, position)
            if position < 7:
                best = 1 + TABLE[state][1:].argmax()
                assert tokens[position] == best
    assert np.unique(found.ids).tolist() == [0, 1, 2, 3, 4, 5]


def test_padding_is_never_chosen_even_if_most_probable():
    table = TABLE.copy()
    table[:, PAD_ID] = 20.0
    keys, limits = np.random.randint(0, STATES, 20), np.random.randint(1, 7, 20)
    for found in (
        table_greedy(keys, limits, table=table),
        table_beam(keys, limits, 1, table=table),
        table_beam(keys, limits, 3, table=table),
    ):
        for i in range(20):
            for tokens in as_tuples(found, i):
                assert PAD_ID not in tokens
                assert not tokens or tokens[-1] == END_ID
        # The probability that padding takes is not given to the others.
        assert (found.scores[:, 0] < -10).all()


@pytest.mark.parametrize("beam_size", [1, 4])
def test_scores_are_log_softmax_sums_over_the_length_penalty(beam_size):
    keys = np.random.randint(0, STATES, 30)
    for alpha in (0.0, 0.6):
        found = (
            table_greedy(keys, [9] * 30, alpha)
            if beam_size == 1
            else table_beam(keys, [9] * 30, beam_size, alpha)
        )
        for i, key in enumerate(keys):
            expected = [
                sum(table_log_probs(int(key), tokens)) / penalty(len(tokens), alpha)
                for tokens in as_tuples(found, i)
            ]
            np.testing.assert_allclose(found.scores[i], expected, rtol=1e-5)


def test_hypotheses_are_distinct_whole_and_best_first():
    keys = np.random.randint(0, STATES, 60)
    limits = np.random.randint(3, 10, 60)
    found = table_beam(keys, limits, beam_size=5)
    assert np.isfinite(found.scores).all()
    assert (np.diff(found.scores, axis=1) <= 0).all()
    for i in range(60):
        sequences = as_tuples(found, i)
        assert len(set(sequences)) == 5
        for tokens in sequences:
            assert tokens.index(END_ID) == len(tokens) - 1  # it ends, once


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0, 2.5])
def test_length_penalty_is_that_of_wu_et_al(alpha):
    lengths = np.array([[1, 2, 7], [50, 306, 1000]], "int32")
    penalties = ops.convert_to_numpy(length_penalty(ops.convert_to_tensor(lengths), alpha))
    assert penalties.dtype == "float32"
    np.testing.assert_allclose(penalties, ((5 + lengths) / 6) ** alpha, rtol=1e-5)
    assert float(length_penalty(1, alpha)) == 1.0


def endless(end_logit=-30.0):
    """Return a table whose sentences all but never end, or all but always with a high logit."""
    table = TABLE.copy()
    table[:, END_ID] = end_logit
    return table


@pytest.mark.parametrize("beam_size", [None, 1, 3])
def test_a_sentence_that_never_ends_is_ended_at_its_own_limit(beam_size):
    keys, limits = [1, 2, 3, 4], [4, 1, 9, 6]
    found = (
        table_greedy(keys, limits, table=endless())
        if beam_size is None
        else table_beam(keys, limits, beam_size, table=endless())
    )
    assert found.lengths[:, 0].tolist() == limits
    assert found.ids.shape[2] == 9
    for i, limit in enumerate(limits):
        for tokens in as_tuples(found, i):
            assert len(tokens) <= limit
        assert found.ids[i, 0, limit - 1] == END_ID
        assert END_ID not in found.ids[i, 0, : limit - 1]


def test_nothing_is_longer_than_its_limit():
    keys, limits = np.random.randint(0, STATES, 200), np.random.randint(1, 6, 200)
    for found in (table_greedy(keys, limits), table_beam(keys, limits, 4)):
        assert (found.lengths <= limits[:, np.newaxis]).all()
        assert (found.lengths[:, 0] == limits).any()


def batch_sizes(search, keys, limits, beam_size, table):
    """Return the number of sentences in each step of a search that runs eagerly."""
    step, calls = make_table_step(table)
    options = {} if search is greedy_search else {"beam_size": beam_size}
    search(
        step,
        start_cache(keys, beam_size),
        ops.convert_to_tensor(np.array(limits, "int32")),
        **options,
    )
    return calls


def test_the_search_stops_when_all_sentences_have_ended():
    eager = endless(end_logit=30.0)
    assert batch_sizes(greedy_search, [1, 2, 3], [50, 50, 50], 1, eager) == [3]
    for beam_size in (1, 3):
        assert batch_sizes(beam_search, [1, 2, 3], [50, 50, 50], beam_size, eager) == [3]


def test_the_search_goes_on_until_nothing_better_can_come():
    # Ending at once has the probability 0.4, and going on another 0.4 that is certain to end.
    table = np.full((STATES, VOCABULARY), -30.0, "float32")
    table[:, END_ID] = 30.0
    table[next_state(3, START_ID, 0)] = np.log([1e-9, 0.2, 1e-9, 0.4, 0.4 - 1e-6, 1e-9])
    assert batch_sizes(beam_search, [3], [50], 2, table) == [1, 1]
    for alpha, length in ((0.0, 1), (0.6, 2)):  # with a penalty, the longer one is better
        found = table_beam([3], [50], 2, alpha, table, num_best=1)
        assert found.lengths.tolist() == [[length]]


def test_the_search_goes_on_while_any_sentence_has_not_ended():
    for search, beam_size in ((greedy_search, 1), (beam_search, 3)):
        sizes = batch_sizes(search, [1, 2, 3], [2, 13, 5], beam_size, endless())
        assert len(sizes) == 13


@pytest.mark.skipif(not ON_TENSORFLOW, reason="only on TensorFlow the batch shrinks")
def test_sentences_leave_the_batch_when_half_of_it_is_done():
    limits = [9, 1, 3, 2, 1, 5]
    for search, beam_size in ((greedy_search, 1), (beam_search, 3)):
        sizes = batch_sizes(search, [1, 2, 3, 4, 5, 6], limits, beam_size, endless())
        assert sizes == [6, 6, 3, 3, 3, 1, 1, 1, 1]


def repeats(tokens, size):
    """Return whether any `size` tokens in a row stand twice in `tokens`."""
    ngrams = [tokens[i : i + size] for i in range(len(tokens) - size + 1)]
    return len(set(ngrams)) < len(ngrams)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("beam_size", [None, 3])
def test_no_ngram_is_repeated_where_that_is_forbidden(beam_size, size):
    keys, limits = np.random.randint(0, STATES, 30), np.full(30, 20)
    if size == 1:
        limits[:] = 4  # there are but three tokens that don't end it

    def search(no_repeat_ngram):
        options = {"table": endless(-5.0), "no_repeat_ngram": no_repeat_ngram}
        if beam_size is None:
            return table_greedy(keys, limits, **options)
        return table_beam(keys, limits, beam_size, **options)

    free, bound = search(0), search(size)
    assert any(repeats(as_tuples(free, i)[0], size) for i in range(30))
    for i in range(30):
        assert not any(repeats(tokens, size) for tokens in as_tuples(bound, i))
    # The scores are still the model's own probabilities.
    for i, key in enumerate(keys):
        tokens = as_tuples(bound, i)[0]
        expected = sum(table_log_probs(int(key), tokens, endless(-5.0))) / penalty(len(tokens), 0.6)
        assert bound.scores[i, 0] == pytest.approx(expected, rel=1e-4)


def test_the_coverage_penalty_ranks_the_ended_hypotheses():
    # Both "5, end" and "end" are found; the penalty makes that which was better the worse.
    table = endless(-5.0)
    table[next_state(3, START_ID, 0)] = [-30, -30, -30, 5, -30, 4]
    limits = ops.convert_to_tensor(np.array([2], "int32"))

    def search(coverage_penalty):
        step, cache = make_table_step(table)[0], start_cache([3], 2)
        return as_tuples(
            to_numpy(beam_search(step, cache, limits, 2, coverage_penalty=coverage_penalty)), 0
        )

    def penalise_the_first_step(cache):
        is_first = ops.cast(ops.equal(ops.shape(cache["history"])[2], 1), "float32")
        return -100.0 * is_first * ops.ones_like(ops.cast(cache["state"], "float32"))

    assert search(None) == [(END_ID,)]
    assert search(penalise_the_first_step) == [(5, END_ID)]


def table_sample(keys, limits, seeds, temperature=1.0, top_k=0, top_p=1.0, table=TABLE):
    def fill(value, dtype):
        return ops.convert_to_tensor(np.full(len(keys), value, dtype))

    return to_numpy(
        sample(
            make_table_step(table)[0],
            start_cache(keys),
            ops.convert_to_tensor(np.array(limits, "int32")),
            ops.convert_to_tensor(np.array(seeds, "int32")),
            fill(temperature, "float32"),
            fill(top_k, "int32"),
            fill(top_p, "float32"),
        )
    )


@pytest.mark.parametrize("options", [{"temperature": 0.001}, {"top_k": 1}, {"top_p": 1e-6}])
def test_sampling_with_nothing_left_to_choose_is_greedy_search(options):
    keys = np.random.randint(0, STATES, 50)
    greedy = table_greedy(keys, [8] * 50)
    found = table_sample(keys, [8] * 50, range(50), **options)
    np.testing.assert_array_equal(found.ids, greedy.ids)
    np.testing.assert_allclose(found.scores, greedy.scores, rtol=1e-4)


def first_tokens(count=4000, **options):
    """Return how often each token came first, over `count` seeds of one sentence."""
    found = table_sample([7] * count, [2] * count, range(count), **options)
    return np.bincount(found.ids[:, 0, 0], minlength=VOCABULARY) / count


def test_tokens_are_drawn_with_the_probabilities_of_the_model():
    logits = TABLE[next_state(7, START_ID, 0)][1:]
    for temperature in (1.0, 2.0):
        probs = np.exp(log_softmax(logits / temperature))
        frequencies = first_tokens(temperature=temperature)
        assert frequencies[PAD_ID] == 0
        np.testing.assert_allclose(frequencies[1:], probs, atol=0.03)


def test_top_k_and_top_p_draw_among_the_most_probable():
    probs = np.exp(log_softmax(TABLE[next_state(7, START_ID, 0)][1:]))
    order = np.argsort(-probs)
    for top in (1, 2, 3):
        kept = order[:top]
        expected = np.zeros(VOCABULARY)
        expected[kept + 1] = probs[kept] / probs[kept].sum()
        np.testing.assert_allclose(first_tokens(top_k=top), expected, atol=0.03)
        top_p = float(probs[kept].sum()) - 1e-4
        np.testing.assert_allclose(first_tokens(top_p=top_p), expected, atol=0.03)


def test_a_sample_depends_on_its_seed_and_not_on_its_batch():
    keys, limits, seeds = np.full(40, 7), np.full(40, 12), np.arange(40)
    together = table_sample(keys, limits, seeds)
    backwards = table_sample(keys, limits, seeds[::-1])
    for i in range(40):
        assert as_tuples(together, i) == as_tuples(backwards, 39 - i)
    assert as_tuples(table_sample([7], [12], [5]), 0) == as_tuples(together, 5)
    assert len({as_tuples(together, i)[0] for i in range(40)}) > 10


@pytest.mark.parametrize("beam_size", [None, 1, 4])
def test_a_table_sentence_does_not_depend_on_its_batch(beam_size):
    keys, limits = np.random.randint(0, STATES, 12), np.random.randint(1, 15, 12)

    def search(chosen):
        if beam_size is None:
            return table_greedy(keys[chosen], limits[chosen])
        return table_beam(keys[chosen], limits[chosen], beam_size)

    together = search(np.arange(12))
    backwards = search(np.arange(12)[::-1])
    for i in range(12):
        alone = search(np.array([i]))
        assert as_tuples(alone, 0) == as_tuples(together, i) == as_tuples(backwards, 11 - i)
        np.testing.assert_allclose(alone.scores[0], together.scores[i], rtol=1e-6)
        np.testing.assert_allclose(backwards.scores[11 - i], together.scores[i], rtol=1e-6)


def test_an_ended_hypothesis_never_changes_while_others_go_on():
    # Sentence 3 ends at its first token; sentence 8 keeps the search going.
    table = endless()
    table[next_state(3, START_ID, 0), END_ID] = 30.0
    for beam_size in (None, 1):
        if beam_size is None:
            found = table_greedy([3, 8], [20, 20], table=table)
        else:
            found = table_beam([3, 8], [20, 20], beam_size, table=table)
        assert as_tuples(found, 0) == [(END_ID,)]
        assert found.lengths[1, 0] > 10
        np.testing.assert_allclose(found.scores[0], 0.0, atol=1e-6)


def test_better_hypotheses_replace_ended_ones_and_worse_ones_do_not():
    # Two beams: "end" is found first, and stays while the other beam tries longer ones.
    table = endless(end_logit=-5.0)
    table[next_state(3, START_ID, 0)] = [-30, -30, -30, 5, 4, -30]
    found = table_beam([3], [6], 2, table=table)
    assert as_tuples(found, 0)[0] == (END_ID,)
    assert found.lengths[0].tolist() == [1, 6]


@pytest.mark.parametrize("beam_size", [1, 3])
def test_a_batch_of_no_sentences_gives_no_hypotheses(beam_size, tiny_model):
    source_ids = ops.zeros((0, 4), "int32")
    for found in search_with_cache(tiny_model(), source_ids, [], beam_size):
        assert found.shape[:2] == (0, beam_size)


# With the real model.

SOURCES = [
    [4, 5, 6, END_ID],
    [7, END_ID],
    [8, 9, 10, 11, 12, 13, END_ID],
    [END_ID],
    [19, 18, 17, 16, END_ID],
]
LIMITS = [7, 3, 6, 1, 5] if ON_TENSORFLOW else [2, 2, 3, 1, 2]  # see below, JAX


def padded(sources, extra=0):
    ids = np.full((len(sources), max(map(len, sources)) + extra), PAD_ID, "int32")
    for row, source in zip(ids, sources, strict=True):
        row[: len(source)] = source
    return ids


def search_with_cache(model, source_ids, limits, beam_size, greedy=False):
    """Return the hypotheses of the incremental decoder; `greedy` needs a beam of one."""
    step, cache = StepDecoder(model).start(ops.convert_to_tensor(source_ids), beam_size)
    limits = ops.convert_to_tensor(np.array(limits, "int32"))
    if greedy:
        return to_numpy(greedy_search(step, cache, limits))
    return to_numpy(beam_search(step, cache, limits, beam_size, num_best=beam_size))


def search_without_cache(model, source_ids, limits, beam_size, greedy=False):
    """Return the same, running the whole model again on all tokens for each new one."""

    def step(ids, parents, position, cache):
        history = ops.take_along_axis(cache["history"], ops.expand_dims(parents, 2), axis=1)
        history = ops.concatenate([history, ops.expand_dims(ids, 2)], axis=2)
        target_ids = ops.reshape(history, (-1, history.shape[2]))
        sources = ops.repeat(cache["source"], beam_size, axis=0)
        logits = model({"source_ids": sources, "target_ids": target_ids})[:, -1]
        logits = ops.reshape(logits, (-1, beam_size, logits.shape[-1]))
        return logits, {**cache, "history": history}

    cache = {
        "source": ops.convert_to_tensor(source_ids),
        "history": ops.zeros((len(source_ids), beam_size, 0), "int32"),
    }
    limits = ops.convert_to_tensor(np.array(limits, "int32"))
    if greedy:
        return to_numpy(greedy_search(step, cache, limits))
    return to_numpy(beam_search(step, cache, limits, beam_size, num_best=beam_size))


def assert_same(found, expected):
    np.testing.assert_array_equal(found.ids, expected.ids)
    np.testing.assert_array_equal(found.lengths, expected.lengths)
    np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-4)


@pytest.mark.parametrize("options", [{}, {"pre_norm": True, "learned_positions": True}])
@pytest.mark.parametrize("beam_size", [None, 3])
def test_search_with_the_cache_equals_search_without(beam_size, options, tiny_model):
    arguments = (tiny_model(**options), padded(SOURCES), LIMITS, beam_size or 1, beam_size is None)
    found = search_with_cache(*arguments)
    assert_same(found, search_without_cache(*arguments))
    assert len({as_tuples(found, i)[0] for i in range(len(SOURCES))}) > 2


@pytest.mark.parametrize("beam_size", [None, 3])
def test_a_sentence_does_not_depend_on_batch_position_or_padding(beam_size, tiny_model):
    def search(sources, limits, extra=0):
        greedy = beam_size is None
        return search_with_cache(
            tiny_model(), padded(sources, extra), limits, beam_size or 1, greedy
        )

    together = search(SOURCES, LIMITS)
    backwards = search(SOURCES[::-1], LIMITS[::-1], extra=5)
    for i, (source, limit) in enumerate(zip(SOURCES, LIMITS, strict=True)):
        alone = search([source], [limit])
        j = len(SOURCES) - 1 - i
        assert as_tuples(alone, 0) == as_tuples(together, i) == as_tuples(backwards, j)
        np.testing.assert_allclose(alone.scores[0], together.scores[i], rtol=1e-4)
        np.testing.assert_allclose(backwards.scores[j], together.scores[i], rtol=1e-4)


def test_scores_of_a_model_are_those_of_its_whole_pass(tiny_model):
    model = tiny_model()
    found = search_with_cache(model, padded(SOURCES), LIMITS, beam_size=3)
    for i, source in enumerate(SOURCES):
        for hypothesis, tokens in enumerate(as_tuples(found, i)):
            if not tokens:
                continue
            target_ids = np.array([[START_ID, *tokens[:-1]]], "int32")
            logits = model({"source_ids": np.array([source], "int32"), "target_ids": target_ids})
            log_probs = log_softmax(ops.convert_to_numpy(logits)[0])
            score = log_probs[np.arange(len(tokens)), list(tokens)].sum()
            expected = score / penalty(len(tokens), 0.6)
            assert found.scores[i, hypothesis] == pytest.approx(expected, rel=1e-4)


@needs_graphs
@pytest.mark.parametrize(("batch", "beam_size"), [(None, None), (None, 3), (5, 3)])
def test_a_graph_of_any_sizes_computes_what_eager_execution_does(batch, beam_size, tiny_model):
    import tensorflow as tf

    decoder = StepDecoder(tiny_model())

    def search(source_ids, limits):
        step, cache = decoder.start(source_ids, beam_size or 1)
        if beam_size is None:
            return greedy_search(step, cache, limits)
        return beam_search(step, cache, limits, beam_size, num_best=beam_size)

    in_graph = tf.function(
        search,
        input_signature=[
            tf.TensorSpec([batch, None], tf.int32),
            tf.TensorSpec([batch], tf.int32),
        ],
    )
    limits = tf.constant(LIMITS)
    for extra in (0, 3):
        source_ids = tf.constant(padded(SOURCES, extra))
        found = to_numpy(in_graph(source_ids, limits))
        assert_same(found, to_numpy(search(source_ids, limits)))
    if batch is None:
        for part in in_graph(tf.zeros((0, 2), tf.int32), tf.zeros((0,), tf.int32)):
            assert part.shape[:2] == (0, beam_size or 1)
        two = to_numpy(in_graph(source_ids[:2], limits[:2]))
        assert as_tuples(two, 1) == as_tuples(found, 1)


# JAX compiles every operation again for every length: minutes for all tests of this file.
ON_JAX = [
    "test_a_beam_as_wide_as_all_sequences_is_exhaustive_search[0.6]",
    "test_a_sentence_that_never_ends_is_ended_at_its_own_limit[None]",
    "test_a_batch_of_no_sentences_gives_no_hypotheses[3]",
]
SLOW_ON_JAX = ["test_search_with_the_cache_equals_search_without[3-options0]"]
RUN = """
import sys
import keras, pytest
assert keras.backend.backend() == "jax"
sys.exit(pytest.main(sys.argv[1:]))
"""


@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed")
@pytest.mark.skipif(not ON_TENSORFLOW, reason="this is the JAX run")
@pytest.mark.parametrize(
    "names", [ON_JAX, pytest.param(SLOW_ON_JAX, marks=pytest.mark.slow)], ids=["tables", "model"]
)
def test_the_search_works_on_jax(names):
    tests = Path(__file__).resolve().parent
    tests_to_run = [f"{Path(__file__).name}::{name}" for name in names]
    process = subprocess.run(
        [sys.executable, "-c", RUN, "-q", "-p", "no:cacheprovider", *tests_to_run],
        cwd=tests,
        env={
            **os.environ,
            "KERAS_BACKEND": "jax",
            "JAX_PLATFORMS": "cpu",
            "PYTHONPATH": os.pathsep.join([str(tests.parent), os.environ.get("PYTHONPATH", "")]),
        },
        capture_output=True,
        text=True,
    )
    report = process.stdout + process.stderr
    assert process.returncode == 0, report
    assert re.findall(r"(\d+) (\w+) in ", report) == [(str(len(names)), "passed")], report

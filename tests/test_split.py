"""Holding out a part of a corpus."""

import re

import pytest

from training.split import hold_out

PAIRS = [(f"source {i}", f"target {i}") for i in range(50)]


def test_what_is_held_out_is_not_in_the_rest_and_nothing_is_lost():
    rest, held_out = hold_out(PAIRS, 10)
    assert len(held_out) == 10
    assert sorted([*rest, *held_out]) == sorted(PAIRS)


def test_the_rest_keeps_its_order_and_its_repetitions():
    rest, held_out = hold_out([*PAIRS, *PAIRS], 10)
    assert rest == 2 * [pair for pair in PAIRS if pair not in held_out]


def test_a_sentence_of_what_is_held_out_is_nowhere_in_the_rest():
    pairs = [(f"source {i % 20}", f"target {i % 7}") for i in range(100)]
    rest, held_out = hold_out(pairs, 3)
    assert rest
    for side in (0, 1):
        assert {pair[side] for pair in rest}.isdisjoint(pair[side] for pair in held_out)


def test_a_source_of_several_translations_is_held_out_once_with_the_first():
    pairs = [("a", "first"), ("a", "second"), ("b", "only")]
    held_out = [hold_out(pairs, 1, seed)[1] for seed in range(20)]
    assert [("a", "first")] in held_out
    assert [("a", "second")] not in held_out


def test_the_choice_depends_on_the_seed_alone():
    assert hold_out(PAIRS, 10, seed=1) == hold_out(PAIRS, 10, seed=1)
    assert hold_out(PAIRS, 10, seed=1) != hold_out(PAIRS, 10, seed=2)


@pytest.mark.parametrize("count", [0, 50])
def test_a_corpus_that_is_too_small_is_an_error(count):
    message = f"count must be from 1 to 49 for 50 different sources, received {count}"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        hold_out(PAIRS, count)


def test_an_empty_rest_is_an_error():
    with pytest.raises(ValueError, match="^count 1 leaves no pair: "):
        hold_out([("a", "same"), ("b", "same")], 1)

"""Search for the best target sequence: greedy and beam search over step(ids, position, cache).

The search knows no layer. `step` maps the newest token of each hypothesis, int32 (batch, beams),
its position and a cache to logits float32 (batch, beams, vocabulary) and the next cache: a nested
structure whose leaves are (batch, beams, ...). A sentence's result never depends on what else is
in its batch. Padding is never chosen, however probable: it would look like the end.
"""

from typing import NamedTuple

import keras
from keras import ops

from keras_transformer.config import END_ID, PAD_ID, START_ID


class Hypotheses(NamedTuple):
    """The best target sequences of each sentence, best first.

    Attributes:
        ids: int32 (batch, hypotheses, length): tokens with the end token, then padding.
        scores: float32 (batch, hypotheses): log-probability over the length penalty; -inf where
            the sentence has fewer hypotheses, as only a vocabulary of a few tokens allows.
        lengths: int32 (batch, hypotheses): tokens of each, the end token included.
    """

    ids: object
    scores: object
    lengths: object


def length_penalty(lengths, alpha):
    """Return ((5 + length) / 6)^alpha (Wu et al. 2016, equation 14; alpha 0.6 in the paper, 6.1).

    Args:
        lengths: Target tokens with the end token, any shape.
        alpha: 0 compares sums of log-probabilities; larger values favour longer translations.
    """
    return ((5.0 + ops.cast(lengths, "float32")) / 6.0) ** alpha


def greedy_search(step, cache, limits, alpha=0.6) -> Hypotheses:
    """Take the most probable token at each step.

    Args:
        step: See the module.
        cache: Before the first step, for one beam.
        limits: int32 (batch,): the longest translation of each sentence in tokens with the end
            token; a sentence that gets there ends there.
        alpha: Length penalty of the scores.

    Returns:
        One hypothesis for each sentence.
    """
    batch_size = ops.shape(limits)[0]
    state = {
        "position": ops.zeros((), "int32"),
        "newest": ops.full((batch_size, 1), START_ID, "int32"),
        "ids": ops.zeros((batch_size, 1, 0), "int32"),
        "log_probs": ops.zeros((batch_size, 1), "float32"),
        "done": ops.zeros((batch_size, 1), "bool"),
        "cache": cache,
    }

    def body(state):
        done = state["done"]
        logits, cache = step(state["newest"], state["position"], state["cache"])
        is_last = ops.expand_dims(state["position"] + 1 >= limits, 1)  # (batch, 1)
        newest = ops.cast(ops.argmax(logits[:, :, PAD_ID + 1 :], axis=-1), "int32") + PAD_ID + 1
        newest = ops.where(is_last, END_ID, newest)
        gained = _at(logits, newest) - ops.logsumexp(logits, axis=-1)
        newest = ops.where(done, PAD_ID, newest)
        return {
            "position": state["position"] + 1,
            "newest": newest,
            "ids": _append(state["ids"], newest),
            "log_probs": state["log_probs"] + ops.where(done, 0.0, gained),
            "done": ops.logical_or(done, ops.equal(newest, END_ID)),
            "cache": cache,
        }

    state = _while_any_is_not_done(body, state)
    lengths = _lengths(state["ids"])
    return Hypotheses(state["ids"], state["log_probs"] / length_penalty(lengths, alpha), lengths)


def beam_search(step, cache, limits, beam_size=4, alpha=0.6) -> Hypotheses:
    """Keep the `beam_size` most probable beginnings; collect those that end (paper 6.1).

    A hypothesis that ends among the `beam_size` best continuations leaves the beam and never
    changes again. A sentence is done when it has `beam_size` of them, or at its limit, where the
    end token is the only continuation. With `beam_size` 1 this is greedy search, with a beam as
    wide as all sequences it is exhaustive search.

    Args:
        step: See the module.
        cache: Before the first step, for `beam_size` beams.
        limits: int32 (batch,): the longest translation of each sentence in tokens with the end
            token.
        beam_size: Number of hypotheses.
        alpha: Length penalty.

    Returns:
        `beam_size` hypotheses for each sentence, by score.
    """
    batch_size = ops.shape(limits)[0]
    only_first = ops.concatenate([ops.zeros((1, 1)), ops.full((1, beam_size - 1), -_INF)], axis=1)
    state = {
        "position": ops.zeros((), "int32"),
        "newest": ops.full((batch_size, beam_size), START_ID, "int32"),
        "ids": ops.zeros((batch_size, beam_size, 0), "int32"),
        "log_probs": ops.tile(ops.cast(only_first, "float32"), (batch_size, 1)),
        "ended_ids": ops.zeros((batch_size, beam_size, 0), "int32"),
        "ended_scores": ops.full((batch_size, beam_size), -_INF, "float32"),
        "num_ended": ops.zeros((batch_size,), "int32"),
        "done": ops.zeros((batch_size,), "bool"),
        "cache": cache,
    }

    def body(state):
        logits, cache = step(state["newest"], state["position"], state["cache"])
        length = state["position"] + 1
        is_last = length >= limits  # (batch,)

        # The 2 * beam_size best continuations of each sentence, best first: at least beam_size of
        # them do not end, since each beam can end in only one way.
        tokens, log_probs = _best_tokens(logits, 2 * beam_size, is_last)
        log_probs = log_probs + ops.expand_dims(state["log_probs"], 2)  # (batch, beams, best)
        num_best = ops.shape(log_probs)[2]
        flat_shape = (batch_size, beam_size * num_best)
        log_probs, choice = ops.top_k(ops.reshape(log_probs, flat_shape), 2 * beam_size)
        tokens = ops.take_along_axis(ops.reshape(tokens, flat_shape), choice, axis=1)
        beams = ops.cast(choice, "int32") // num_best  # where each continuation comes from
        ends = ops.equal(tokens, END_ID)

        # Those that end among the first beam_size join the ended ones; the best of all stay.
        may_end = ops.logical_and(ends, ops.arange(2 * beam_size) < beam_size)
        new_scores = ops.where(may_end, log_probs / length_penalty(length, alpha), -_INF)
        new_ids = _append(_select(state["ids"], beams), tokens)
        old_ids = _append(state["ended_ids"], ops.full((batch_size, beam_size), PAD_ID, "int32"))
        ended_scores, kept = ops.top_k(
            ops.concatenate([state["ended_scores"], new_scores], axis=1), beam_size
        )
        ended_ids = _select(ops.concatenate([old_ids, new_ids], axis=1), kept)
        num_new = ops.sum(ops.cast(new_scores > -_INF, "int32"), axis=1)
        num_ended = state["num_ended"] + num_new
        done = ops.logical_or(is_last, num_ended >= beam_size)

        # The first beam_size of the others go on; nothing follows a sentence that is done.
        stops = ops.logical_or(ends, ops.expand_dims(done, 1))
        log_probs, going_on = ops.top_k(ops.where(stops, -_INF, log_probs), beam_size)
        beams = ops.take_along_axis(beams, going_on, axis=1)
        return {
            "position": length,
            "newest": ops.take_along_axis(tokens, going_on, axis=1),
            "ids": _select(new_ids, going_on),
            "log_probs": log_probs,
            "ended_ids": ended_ids,
            "ended_scores": ended_scores,
            "num_ended": num_ended,
            "done": ops.logical_or(state["done"], done),
            "cache": keras.tree.map_structure(lambda leaf: _select(leaf, beams), cache),
        }

    state = _while_any_is_not_done(body, state)
    return Hypotheses(state["ended_ids"], state["ended_scores"], _lengths(state["ended_ids"]))


_INF = float("inf")


def _best_tokens(logits, count, is_last):
    """Return the most probable next tokens of each beam, at least `count` that are not padding.

    With their log-probabilities, -inf for padding; fewer if the vocabulary is smaller.

    Where `is_last` (batch,), the end token is the only one: it comes first, the rest are -inf.
    """
    log_partition = ops.logsumexp(logits, axis=-1, keepdims=True)
    count = min(count + 1, logits.shape[-1])  # one more, since padding may be among them
    best_logits, tokens = ops.top_k(logits, count)
    tokens = ops.cast(tokens, "int32")
    best_logits = ops.where(ops.equal(tokens, PAD_ID), -_INF, best_logits)
    is_last = ops.expand_dims(is_last, (1, 2))
    only_end = ops.where(ops.arange(count) == 0, logits[:, :, END_ID : END_ID + 1], -_INF)
    log_probs = ops.where(is_last, only_end, best_logits) - log_partition
    return ops.where(is_last, END_ID, tokens), log_probs


def _while_any_is_not_done(body, state):
    """Apply `body` to `state` until all of state["done"] is true."""

    def condition(state):
        return ops.logical_not(ops.all(state["done"]))

    if keras.backend.backend() != "tensorflow":
        while condition(state):
            state = body(state)
        return state
    # ops.while_loop can't be told that a dimension grows, as sequences and caches do here: what
    # starts with size 0 grows by 1 in each step.
    import tensorflow as tf

    shapes = keras.tree.map_structure(
        lambda leaf: tf.TensorShape([None if size == 0 else size for size in leaf.shape]), state
    )
    (state,) = tf.while_loop(
        condition, lambda state: (body(state),), (state,), shape_invariants=(shapes,)
    )
    return state


def _at(logits, tokens):
    """Return the logit of each token: (batch, beams, vocabulary), (batch, beams) -> the latter."""
    return ops.squeeze(ops.take_along_axis(logits, ops.expand_dims(tokens, 2), axis=2), 2)


def _append(ids, newest):
    """Return `ids` (batch, beams, length) with one more token, `newest` (batch, beams)."""
    return ops.concatenate([ids, ops.expand_dims(ops.cast(newest, "int32"), 2)], axis=2)


def _select(leaf, beams):
    """Return the chosen beams: (batch, beams, ...), int (batch, chosen) -> (batch, chosen, ...)."""
    batch_size, num_beams, *rest = ops.shape(leaf)
    first_rows = ops.expand_dims(ops.arange(batch_size, dtype="int32") * num_beams, 1)
    rows = ops.reshape(first_rows + ops.cast(beams, "int32"), (-1,))
    chosen = ops.take(ops.reshape(leaf, (batch_size * num_beams, *rest)), rows, axis=0)
    return ops.reshape(chosen, (batch_size, ops.shape(beams)[1], *rest))


def _lengths(ids):
    return ops.sum(ops.cast(ops.not_equal(ids, PAD_ID), "int32"), axis=-1)

"""Search for target sequences over step(ids, parents, position, cache): greedy, beam, sampling.

The search knows no layer. `step` maps the newest token of each hypothesis, int32 (batch, beams),
the beam of the step before that each continues, int32 (batch, beams), the position and the cache
to logits float32 (batch, beams, vocabulary) and the next cache: a nested structure whose leaves are
(batch, ...). A sentence's result never depends on what else is in its batch. Padding is never
chosen, however probable: it would look like the end.
"""

from typing import Any, NamedTuple

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

    ids: Any
    scores: Any
    lengths: Any


def length_penalty(lengths, alpha):
    """Return ((5 + length) / 6)^alpha (Wu et al. 2016, equation 14; alpha 0.6 in the paper, 6.1).

    Args:
        lengths: Target tokens with the end token, any shape.
        alpha: 0 compares sums of log-probabilities; larger values favour longer translations.
    """
    return ((5.0 + ops.cast(lengths, "float32")) / 6.0) ** alpha


def greedy_search(step, cache, limits, alpha=0.6, no_repeat_ngram=0) -> Hypotheses:
    """Take the most probable token at each step.

    Args:
        step: See the module.
        cache: Before the first step, for one beam.
        limits: int32 (batch,): the longest translation of each sentence in tokens with the end
            token; a sentence that gets there ends there.
        alpha: Length penalty of the scores.
        no_repeat_ngram: Never produce the same this many tokens in a row twice; 0 allows it.

    Returns:
        One hypothesis for each sentence.
    """

    def most_probable(logits, position, state):
        return ops.top_k(logits, 1)[1][:, 0]  # faster than Keras's argmax

    return _search_one(step, cache, limits, alpha, no_repeat_ngram, most_probable)


def sample(
    step, cache, limits, seeds, temperatures, top_ks, top_ps, alpha=0.6, no_repeat_ngram=0
) -> Hypotheses:
    """Draw each token at random.

    Args:
        step: See the module.
        cache: Before the first step, for one beam.
        limits: int32 (batch,), as in `greedy_search`.
        seeds: int32 (batch,): a sentence with the same seed gives the same sample, in any batch.
        temperatures: float32 (batch,), above 0: divides the logits; 1 is the model's distribution.
        top_ks: int32 (batch,): draw among this many most probable tokens; 0 means all.
        top_ps: float32 (batch,): draw among the fewest most probable tokens that have this
            probability together (Holtzman et al. 2020); 1 means all.
        alpha: Length penalty of the scores, which are the model's own, without the options.
        no_repeat_ngram: As in `greedy_search`.

    Returns:
        One hypothesis for each sentence.
    """

    def draw(logits, position, state):
        size = logits.shape[-1]
        sorted_logits, tokens = ops.top_k(logits / state["temperatures"], size)
        probs = ops.softmax(sorted_logits)
        before = ops.cumsum(probs, axis=-1) - probs
        top_ks = ops.where(state["top_ks"] > 0, state["top_ks"], size)
        allowed = ops.logical_and(ops.arange(size) < top_ks, before < state["top_ps"])
        allowed = ops.logical_or(allowed, ops.arange(size) == 0)
        cumulative = ops.cumsum(ops.where(allowed, probs, 0.0), axis=-1)
        drawn = _uniform(state["seeds"], position) * cumulative[:, -1:]
        choice = ops.sum(ops.cast(cumulative <= drawn, "int32"), axis=-1, keepdims=True)
        last = ops.sum(ops.cast(allowed, "int32"), axis=-1, keepdims=True) - 1
        return _at(tokens, ops.minimum(choice, last))[:, 0]

    options = {"seeds": seeds, "temperatures": temperatures, "top_ks": top_ks, "top_ps": top_ps}
    options = {name: ops.expand_dims(values, 1) for name, values in options.items()}
    return _search_one(step, cache, limits, alpha, no_repeat_ngram, draw, options)


def _search_one(step, cache, limits, alpha, no_repeat_ngram, choose, options=None):
    """Continue one hypothesis with the token that `choose`(logits, position, state) names.

    Its logits are (batch, vocabulary) without padding, the first id.
    """
    batch_size = ops.shape(limits)[0]
    state = {
        "ids": ops.zeros((batch_size, 1, 0), "int32"),
        "newest": ops.full((batch_size, 1), START_ID, "int32"),
        "log_probs": ops.zeros((batch_size, 1), "float32"),
        "limits": limits,
        "done": ops.zeros((batch_size,), "bool"),
        "cache": cache,
        **(options or {}),
    }

    def body(position, state):
        only_parent = ops.zeros_like(state["newest"])
        logits, cache = step(state["newest"], only_parent, position, state["cache"])
        allowed = _without_repeated(logits, state["ids"], no_repeat_ngram)
        logits = logits[:, 0]  # (batch, vocabulary)
        chosen = choose(allowed[:, 0, PAD_ID + 1 :], position, state)
        chosen = ops.expand_dims(ops.cast(chosen, "int32") + PAD_ID + 1, 1)
        is_last = ops.expand_dims(position + 1 >= state["limits"], 1)
        newest = ops.where(is_last, END_ID, chosen)
        gained = _at(logits, newest) - _log_partition(logits, chosen)
        done = ops.expand_dims(state["done"], 1)
        newest = ops.where(done, PAD_ID, newest)
        return {
            **state,
            "ids": _append(state["ids"], newest),
            "newest": newest,
            "log_probs": state["log_probs"] + ops.where(done, 0.0, gained),
            "done": ops.logical_or(state["done"], ops.equal(newest[:, 0], END_ID)),
            "cache": cache,
        }

    ids, log_probs = _repeat_until_done(body, state, outputs=("ids", "log_probs"))
    lengths = _lengths(ids)
    return Hypotheses(ids, log_probs / length_penalty(lengths, alpha), lengths)


def beam_search(
    step,
    cache,
    limits,
    beam_size=4,
    alpha=0.6,
    num_best=1,
    no_repeat_ngram=0,
    coverage_penalty=None,
) -> Hypotheses:
    """Keep the `beam_size` most probable beginnings; collect those that end (paper 6.1).

    A hypothesis that ends among the `beam_size` best continuations leaves the beam and never
    changes again. A sentence is done when nothing that is still in the beam can become better than
    the worst of its `num_best` ended ones, however it goes on; or at its limit, where the end token
    is the only continuation. With `beam_size` 1 this is greedy search, with a beam as wide as all
    sequences it is exhaustive search.

    Args:
        step: See the module.
        cache: Before the first step, for `beam_size` beams.
        limits: int32 (batch,): the longest translation of each sentence in tokens with the end
            token.
        beam_size: Number of hypotheses that go on.
        alpha: Length penalty.
        num_best: Hypotheses to return.
        no_repeat_ngram: As in `greedy_search`.
        coverage_penalty: Function from the cache to what a hypothesis that ends now loses of its
            score, float32 (batch, beams), 0 or negative; None for nothing.

    Returns:
        `num_best` hypotheses for each sentence, by score.
    """
    batch_size = ops.shape(limits)[0]
    only_first = ops.concatenate([ops.zeros((1, 1)), ops.full((1, beam_size - 1), -_INF)], axis=1)
    state = {
        "ids": ops.zeros((batch_size, beam_size, 0), "int32"),
        "newest": ops.full((batch_size, beam_size), START_ID, "int32"),
        "parents": ops.zeros((batch_size, beam_size), "int32"),
        "log_probs": ops.tile(ops.cast(only_first, "float32"), (batch_size, 1)),
        "ended_ids": ops.zeros((batch_size, num_best, 0), "int32"),
        "ended_scores": ops.full((batch_size, num_best), -_INF, "float32"),
        "limits": limits,
        "done": ops.zeros((batch_size,), "bool"),
        "cache": cache,
    }

    def body(position, state):
        logits, cache = step(state["newest"], state["parents"], position, state["cache"])
        length = position + 1
        is_last = length >= state["limits"]  # (batch,)

        # The 2 * beam_size best continuations of each sentence, best first: at least beam_size of
        # them do not end, since each beam can end in only one way.
        allowed = _without_repeated(logits, state["ids"], no_repeat_ngram)
        tokens, log_probs = _best_tokens(logits, allowed, 2 * beam_size, is_last)
        log_probs = log_probs + ops.expand_dims(state["log_probs"], 2)  # (batch, beams, best)
        num_tokens = log_probs.shape[2]
        log_probs, choice = ops.top_k(
            ops.reshape(log_probs, (-1, beam_size * num_tokens)), 2 * beam_size
        )
        tokens = _at(ops.reshape(tokens, (-1, beam_size * num_tokens)), choice)
        parents = ops.cast(choice, "int32") // num_tokens
        ends = ops.equal(tokens, END_ID)

        # Those that end among the first beam_size join the ended ones; the best of all stay.
        scores = log_probs / length_penalty(length, alpha)
        if coverage_penalty is not None:
            scores = scores + _at(coverage_penalty(cache), parents)
        is_new = ops.logical_and(ends, ops.arange(2 * beam_size) < beam_size)
        is_new = ops.logical_and(is_new, ops.expand_dims(ops.logical_not(state["done"]), 1))
        new_ids = _append(_select(state["ids"], parents), tokens)
        old_ids = _append(state["ended_ids"], ops.full_like(state["ended_scores"], PAD_ID, "int32"))
        ended_scores, kept = ops.top_k(
            ops.concatenate([state["ended_scores"], ops.where(is_new, scores, -_INF)], axis=1),
            num_best,
        )
        kept = ops.cast(kept, "int32")
        ended_ids = _select(ops.concatenate([old_ids, new_ids], axis=1), kept)

        # The first beam_size of the others go on.
        log_probs, going_on = ops.top_k(ops.where(ends, -_INF, log_probs), beam_size)
        going_on = ops.cast(going_on, "int32")
        # A hypothesis only loses probability, and the length penalty divides most at the limit.
        best_possible = log_probs[:, 0] / length_penalty(state["limits"], alpha)
        done = ops.logical_or(is_last, ended_scores[:, -1] >= best_possible)
        if beam_size == 1:
            done = ops.logical_or(done, ended_scores[:, 0] > -_INF)
        return {
            "ids": _select(new_ids, going_on),
            "newest": _at(tokens, going_on),
            "parents": _at(parents, going_on),
            "log_probs": log_probs,
            "ended_ids": ended_ids,
            "ended_scores": ended_scores,
            "limits": state["limits"],
            "done": ops.logical_or(state["done"], done),
            "cache": cache,
        }

    ids, scores = _repeat_until_done(body, state, outputs=("ended_ids", "ended_scores"))
    return Hypotheses(ids, scores, _lengths(ids))


_INF = float("inf")


def _best_tokens(logits, allowed, count, is_last):
    """Return the most probable next tokens of each beam, at least `count` that are not padding.

    With their log-probabilities, -inf for padding; fewer if the vocabulary is smaller.

    Where `is_last` (batch,), the end token is the only one: it comes first, the rest are -inf.
    `allowed` are the logits without those of tokens that must not come.
    """
    count = min(count + 1, logits.shape[-1])  # one more, since padding may be among them
    best_logits, tokens = ops.top_k(allowed, count)
    tokens = ops.cast(tokens, "int32")
    log_partition = _log_partition(logits, tokens[:, :, :1])
    best_logits = ops.where(ops.equal(tokens, PAD_ID), -_INF, best_logits)
    is_last = ops.expand_dims(is_last, (1, 2))
    only_end = ops.where(ops.arange(count) == 0, logits[:, :, END_ID : END_ID + 1], -_INF)
    log_probs = ops.where(is_last, only_end, best_logits) - log_partition
    return ops.where(is_last, END_ID, tokens), log_probs


def _log_partition(logits, token):
    """Return log(sum(exp(logits))) over the last axis, given a `token` (..., 1) of high logit.

    By way of the softmax, for which TensorFlow has a fast kernel.
    """
    return _at(logits, token) - ops.log(_at(ops.softmax(logits), token))


def _without_repeated(logits, ids, size):
    """Return the logits, -inf where a token would repeat `size` tokens in a row of `ids`.

    Args:
        logits: float32 (batch, beams, vocabulary).
        ids: The tokens so far, int32 (batch, beams, length).
        size: Length of the n-gram; 0 returns `logits`.
    """
    if not size:
        return logits
    batch_size, num_beams, length = ops.shape(ids)
    # Preceded by what is no token, so that there are `length` n-grams whatever the length.
    nothing = ops.full((batch_size, num_beams, size - 1), -1, "int32")
    history = ops.concatenate([nothing, ids], axis=2)
    repeats = ops.ones_like(ids, "bool")  # (batch, beams, length): does the n-gram that ends here?
    for i in range(size - 1):
        newest = history[:, :, length + i : length + i + 1]
        repeats = ops.logical_and(repeats, ops.equal(history[:, :, i : length + i], newest))
    banned = ops.where(repeats, ids, PAD_ID)  # padding is never chosen anyway
    grid = ops.meshgrid(
        ops.arange(batch_size), ops.arange(num_beams), ops.arange(length), indexing="ij"
    )
    indices = ops.stack([ops.cast(grid[0], "int32"), ops.cast(grid[1], "int32"), banned], axis=-1)
    return ops.scatter_update(
        logits, ops.reshape(indices, (-1, 3)), ops.full((batch_size * num_beams * length,), -_INF)
    )


def _uniform(seeds, position):
    """Return numbers in [0, 1) that seem random, float32 of the shape of `seeds` int32.

    Hashes each seed with the position (the finaliser of MurmurHash3), since Keras and TensorFlow
    draw for a whole tensor from one seed: a sentence's numbers would depend on its batch.
    """
    bits = ops.cast(seeds, "uint32") * _u32(0x9E3779B1) + ops.cast(position, "uint32")
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        bits = (bits ^ ops.right_shift(bits, _u32(shift))) * _u32(factor)
    bits = bits ^ ops.right_shift(bits, _u32(16))
    return ops.cast(ops.right_shift(bits, _u32(8)), "float32") / 2.0**24


def _u32(value):
    return ops.convert_to_tensor(value, "uint32")


def _repeat_until_done(body, state, outputs):
    """Apply `body`(position, state) for position 0, 1, ... until all of state["done"] is true.

    On TensorFlow, sentences that are done leave the batch as soon as they are half of it.

    Args:
        body: From a position and a state to the next state.
        state: Nested structure; its leaves are (batch, ...). A dimension of size 0 grows.
        outputs: Names of the leaves to return.

    Returns:
        Those leaves, as they were when their sentences were done.
    """
    if keras.backend.backend() != "tensorflow":
        position = 0
        while not ops.all(state["done"]):
            state = body(ops.convert_to_tensor(position, "int32"), state)
            position += 1
        return [state[name] for name in outputs]
    # ops.while_loop can't be told that a dimension grows, or that the batch shrinks.
    import tensorflow as tf

    shapes = keras.tree.map_structure(
        lambda leaf: tf.TensorShape([None, *(size or None for size in leaf.shape[1:])]), state
    )

    def most_go_on(position, state):
        done = state["done"]
        return 2 * tf.math.count_nonzero(done, dtype=tf.int32) < tf.size(done)

    def grow(leaf, other):  # pads to the other's size, but for the batch
        more = (tf.shape(other) - tf.shape(leaf))[1:]
        paddings = tf.concat([[[0, 0]], tf.stack([0 * more, more], axis=1)], axis=0)
        return tf.ensure_shape(tf.pad(leaf, paddings), [None, *other.shape[1:]])

    def run_and_shrink(position, state, rows, results):
        position, state = tf.while_loop(
            most_go_on,
            lambda position, state: (position + 1, body(position, state)),
            (position, state),
            shape_invariants=(tf.TensorShape([]), shapes),
        )
        results = [
            tf.tensor_scatter_nd_update(grow(old, state[name]), rows[:, tf.newaxis], state[name])
            for name, old in zip(outputs, results, strict=True)
        ]
        # Always half of the rows, so that the kernels meet few different shapes.
        going_on = tf.cast(tf.logical_not(state["done"]), tf.int32)
        kept = tf.math.top_k(going_on, tf.size(rows) // 2).indices
        state = keras.tree.map_structure(lambda leaf: tf.gather(leaf, kept), state)
        return position, state, tf.gather(rows, kept), results

    results = [state[name] for name in outputs]
    rows = tf.range(tf.shape(state["done"])[0])  # where in the batch each sentence stands
    *_, results = tf.while_loop(
        lambda position, state, *_: tf.logical_not(tf.reduce_all(state["done"])),
        run_and_shrink,
        (tf.constant(0), state, rows, results),
        shape_invariants=(
            tf.TensorShape([]),
            shapes,
            tf.TensorShape([None]),
            [shapes[name] for name in outputs],
        ),
    )
    return results


def _at(values, tokens):
    """Return values (..., size) at the indices `tokens` (..., count): (..., count)."""
    # Not ops.take_along_axis, which copies the values.
    size, count = values.shape[-1], tokens.shape[-1]
    tokens = ops.cast(tokens, "int32")
    rows = ops.reshape(tokens, (-1, count))
    rows = rows + size * ops.expand_dims(ops.arange(ops.shape(rows)[0], dtype="int32"), 1)
    return ops.reshape(ops.take(ops.reshape(values, (-1,)), rows), ops.shape(tokens))


def _append(ids, newest):
    """Return `ids` (batch, beams, length) with one more token, `newest` (batch, beams)."""
    return ops.concatenate([ids, ops.expand_dims(ops.cast(newest, "int32"), 2)], axis=2)


def _select(ids, beams):
    """Return the `beams` (batch, chosen) of `ids` (batch, beams, length)."""
    batch_size, num_beams, length = ops.shape(ids)
    first = ops.expand_dims(ops.arange(batch_size, dtype="int32") * num_beams, 1)
    return ops.take(ops.reshape(ids, (batch_size * num_beams, length)), first + beams, axis=0)


def _lengths(ids):
    return ops.sum(ops.cast(ops.not_equal(ids, PAD_ID), "int32"), axis=-1)

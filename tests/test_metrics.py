"""Token accuracy and perplexity against NumPy over all real tokens at once."""

import keras
import numpy as np
import pytest

from training.metrics import Perplexity, TokenAccuracy

VOCAB_SIZE = 6


def accuracy(labels, logits):
    """Return the share of the tokens (tokens,) whose logits (tokens, vocabulary) are right."""
    return np.mean(np.argmax(logits, axis=-1) == labels)


def perplexity(labels, logits):
    logits = logits.astype(np.float64)
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return np.exp(-np.mean(log_probs[np.arange(len(labels)), labels]))


METRICS = [(TokenAccuracy, accuracy), (Perplexity, perplexity)]


@pytest.fixture
def batches():
    """Batches of different shapes; at padding the logits say 0, as if it were the right answer."""
    random = np.random.default_rng(1)
    made = []
    for shape in [(3, 5), (1, 2), (4, 9), (2, 1)]:
        labels = random.integers(1, VOCAB_SIZE, shape).astype(np.int32)
        for row, length in enumerate(random.integers(1, shape[1] + 1, shape[0])):
            labels[row, length:] = 0
        logits = random.normal(size=(*shape, VOCAB_SIZE)).astype(np.float32)
        logits[labels == 0] = [50, 0, 0, 0, 0, 0]
        is_hit = random.random(shape) < 0.5  # else nearly all would be misses
        np.put_along_axis(logits, labels[..., None], np.where(is_hit, 5, -1)[..., None], -1)
        made.append((labels, logits))
    assert any(np.any(labels == 0) for labels, _ in made)
    return made


@pytest.mark.parametrize("metric, expected", METRICS)
def test_the_result_is_numpys_over_the_real_tokens_of_all_batches(metric, expected, batches):
    measured = metric()
    for labels, logits in batches:
        measured.update_state(labels, logits)
    all_labels = np.concatenate([labels[labels != 0] for labels, _ in batches])
    all_logits = np.concatenate([logits[labels != 0] for labels, logits in batches])
    whole = expected(all_labels, all_logits)
    assert float(measured.result()) == pytest.approx(whole, rel=1e-5)
    # Batches count by their tokens, not alike; else this test would show nothing.
    of_batches = [expected(labels[labels != 0], x[labels != 0]) for labels, x in batches]
    assert np.mean(of_batches) != pytest.approx(whole, rel=1e-2)


@pytest.mark.parametrize("metric, expected", METRICS)
def test_padding_does_not_count(metric, expected, batches):
    labels, logits = batches[2]
    changed = logits.copy()
    changed[labels == 0] = [-7, 3, 0, 0, 0, 0]
    before, after = metric(), metric()
    before.update_state(labels, logits)
    after.update_state(labels, changed)
    assert float(before.result()) == float(after.result())


@pytest.mark.parametrize("metric, expected", METRICS)
def test_reset_forgets_what_was_seen(metric, expected, batches):
    measured = metric()
    measured.update_state(*batches[0])
    measured.reset_state()
    labels, logits = batches[2]
    measured.update_state(labels, logits)
    alone = expected(labels[labels != 0], logits[labels != 0])
    assert float(measured.result()) == pytest.approx(alone, rel=1e-5)


@pytest.mark.parametrize("metric, empty", [(TokenAccuracy, 0.0), (Perplexity, 1.0)])
def test_without_any_token_the_result_is_that_of_a_sum_of_0(metric, empty):
    measured = metric()
    assert float(measured.result()) == empty
    measured.update_state(np.zeros((2, 3), np.int32), np.ones((2, 3, VOCAB_SIZE), np.float32))
    assert float(measured.result()) == empty


def test_a_label_that_shares_the_highest_logit_is_a_hit():
    measured = TokenAccuracy()
    measured.update_state(np.array([[2, 3]]), np.array([[[0.0, 0, 7, 7], [0, 0, 7, 6]]]))
    assert float(measured.result()) == 0.5


def test_equal_logits_have_the_perplexity_of_the_vocabularys_size():
    measured = Perplexity()
    measured.update_state(np.array([[2, 3, 0]]), np.zeros((1, 3, VOCAB_SIZE), np.float32))
    assert float(measured.result()) == pytest.approx(VOCAB_SIZE, rel=1e-5)


@pytest.mark.parametrize("metric, name", [(TokenAccuracy, "accuracy"), (Perplexity, "perplexity")])
def test_a_metric_has_its_name_and_survives_serialization(metric, name):
    assert metric().name == name
    restored = keras.metrics.deserialize(keras.metrics.serialize(metric(name="mine")))
    assert isinstance(restored, metric) and restored.name == "mine"

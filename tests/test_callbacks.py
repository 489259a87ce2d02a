"""Callbacks: what an evaluation keeps and reports, TensorBoard's points, when training ends."""

import itertools
import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import text_format
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins import projector
from test_translator import SENTENCES, train_tokenizer

from attention_viewer.metadata import MEASURES, from_content
from keras_transformer import ModelConfig, Translator, build_transformer
from keras_transformer.config import DecodingConfig
from keras_transformer.tokenizer import Tokenizer
from training import callbacks
from training.averaging import CheckpointAverage
from training.callbacks import (
    AttentionSummary,
    Divergence,
    DivergenceError,
    EarlyStop,
    Embeddings,
    Evaluation,
    Interrupted,
    Interruption,
    Scalars,
    States,
    TimeLimit,
)
from training.checkpoints import newest_state, read_progress
from training.evaluate import score
from training.events import drop_events_after
from training.loss import MaskedCrossentropy
from training.metrics import TokenAccuracy
from training.probes import Probe
from training.schedule import WarmupInverseSqrt

PAIRS = [
    ("你好。", "Hello to all of you."),
    ("我喜欢茶。", "I like to drink tea."),
    ("车站在哪？", "Where is the train station?"),
]
PERFECT = [target for _, target in PAIRS]
FAIR = ["Hello to all of us.", "I like to drink tea.", "Where is the train?"]
POOR = ["Hello.", "I like to drink.", "No."]


@pytest.fixture(scope="module")
def model():
    sizes = {"num_encoder_layers": 1, "num_decoder_layers": 1, "d_model": 8, "num_heads": 2}
    return build_transformer(ModelConfig(vocab_size=20, d_ff=8, dropout=0.1, **sizes))


def compile_model(model, rate_scale=1.0):
    """Compile without a graph, which would take longer to make than the few steps here."""
    model.compile(
        optimizer=keras.optimizers.Adam(WarmupInverseSqrt(8, 4, rate_scale)),
        loss=MaskedCrossentropy(0.1),
        metrics=[TokenAccuracy()],
        run_eagerly=True,
    )
    model.optimizer.build(model.trainable_variables)
    return model


def make_batches(shapes, seed=1):
    """Return batches of these (rows, length); their targets end at different places."""
    random = np.random.default_rng(seed)
    batches = []
    for rows, length in shapes:
        source = random.integers(4, 20, (rows, length)).astype(np.int32)
        labels = random.integers(4, 20, (rows, length)).astype(np.int32)
        for row, end in enumerate(random.integers(1, length + 1, rows)):
            labels[row, end:] = 0
        target_ids = np.concatenate([np.full((rows, 1), 2), labels[:, :-1]], axis=1)
        batches.append(({"source_ids": source, "target_ids": target_ids.astype(np.int32)}, labels))
    return batches


SHAPES = [(3, 4), (1, 9), (5, 2), (2, 6)]


def dataset_of(batches):
    spec = tf.TensorSpec([None, None], tf.int32)
    dataset = tf.data.Dataset.from_generator(
        lambda: iter(batches),
        output_signature=({"source_ids": spec, "target_ids": spec}, spec),
    )
    return dataset.apply(tf.data.experimental.assert_cardinality(len(batches)))


def fit(model, used_callbacks, epochs=1, steps=2):
    return model.fit(
        dataset_of(make_batches(SHAPES)).repeat(),
        epochs=epochs,
        steps_per_epoch=steps,
        shuffle=False,
        verbose=0,
        callbacks=used_callbacks,
    ).history


def weights_of(model):
    return [keras.ops.convert_to_numpy(variable).copy() for variable in model.trainable_variables]


def is_same(one, other):
    return len(one) == len(other) and all(map(np.array_equal, one, other))


class OnEpochEnd(keras.callbacks.Callback):
    """Calls a function with the logs; unlike LambdaCallback's, its logs can be added to."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def on_epoch_end(self, epoch, logs=None):
        self.function(logs)


# Evaluation


class ScriptedTranslator:
    """Gives one list of translations after another."""

    def __init__(self, *scripts):
        self.scripts = iter(scripts)
        self.asked = []

    def __call__(self, texts, progress=False):
        self.asked.append(texts)
        return next(self.scripts)


@pytest.fixture
def valid():
    return make_batches([(4, 3), (1, 12), (2, 5)], seed=2)


def test_bleu_and_perplexity_are_in_the_history_and_in_the_logs_of_later_callbacks(model, valid):
    translator = ScriptedTranslator(POOR, PERFECT)
    evaluation = Evaluation(translator, PAIRS, dataset_of(valid))
    seen = []
    later = OnEpochEnd(lambda logs: seen.append(dict(logs)))
    history = fit(compile_model(model), [evaluation, later], epochs=2)
    assert history["val_bleu"] == [score(POOR, PERFECT).bleu, score(PERFECT, PERFECT).bleu]
    assert len(history["val_perplexity"]) == 2
    assert [logs["val_bleu"] for logs in seen] == history["val_bleu"]
    assert [logs["val_perplexity"] for logs in seen] == history["val_perplexity"]
    assert history["val_chrf"] == [score(POOR, PERFECT).chrf, score(PERFECT, PERFECT).chrf]
    assert history["val_loss"] == pytest.approx(np.log(history["val_perplexity"]))
    assert translator.asked == 2 * [[source for source, _ in PAIRS]]
    assert evaluation.seconds > 0


def test_perplexity_is_exact_over_the_tokens_of_all_batches(model, valid):
    evaluation = Evaluation(ScriptedTranslator(POOR), PAIRS, dataset_of(valid))
    history = fit(compile_model(model), [evaluation])
    losses, is_real = [], []
    for inputs, labels in valid:
        logits = np.asarray(model(inputs, training=False), np.float64)
        log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        losses.append(-np.take_along_axis(log_probs, labels[..., None], -1)[..., 0].ravel())
        is_real.append((labels != 0).ravel())
    expected = np.exp(np.concatenate(losses)[np.concatenate(is_real)].mean())
    assert history["val_perplexity"] == [pytest.approx(expected, rel=1e-4)]


def test_the_weights_of_the_best_bleu_are_kept_and_no_others(model, valid, tmp_path, capsys):
    path = tmp_path / "model.weights.h5"
    evaluation = Evaluation(
        ScriptedTranslator(POOR, PERFECT, FAIR, PERFECT), PAIRS, dataset_of(valid), path
    )
    kept, trained = [], []

    def look(logs):
        kept.append(path.read_bytes())
        trained.append(model.get_weights())

    fit(compile_model(model), [evaluation, OnEpochEnd(look)], epochs=4)
    assert kept[0] != kept[1] == kept[2] == kept[3]  # the second perfect one is no better
    assert evaluation.best["bleu"] == score(PERFECT, PERFECT).bleu
    assert evaluation.best["step"] == 4 and evaluation.num_since_best == 2
    model.load_weights(path)
    assert all(map(np.array_equal, model.get_weights(), trained[1]))
    assert not all(map(np.array_equal, trained[3], trained[1]))
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("step ")]
    assert [line.endswith("(best so far)") for line in lines] == [True, True, False, False]


@pytest.mark.parametrize("select_by, best", [("bleu", 1), ("chrf", 0), ("loss", 2)])
def test_the_best_weights_are_the_best_in_what_was_chosen(
    model, valid, tmp_path, monkeypatch, select_by, best
):
    scripted = iter([(1.0, 30.0, 3.0), (2.0, 20.0, 2.0), (1.5, 20.0, 1.0)])

    def evaluate(self):
        bleu, chrf, loss = next(scripted)
        step = int(self.model.optimizer.iterations)
        return {"step": step, "loss": loss, "perplexity": 9.0, "bleu": bleu, "chrf": chrf}

    monkeypatch.setattr(Evaluation, "_evaluate", evaluate)
    path = tmp_path / "model.weights.h5"
    evaluation = Evaluation(None, PAIRS, dataset_of(valid), path, select_by)
    trained = []
    look = OnEpochEnd(lambda logs: trained.append(model.get_weights()))
    fit(compile_model(model), [evaluation, look], epochs=3, steps=1)
    assert evaluation.best["step"] == best + 1 and evaluation.num_since_best == 2 - best
    model.load_weights(path)
    assert all(map(np.array_equal, model.get_weights(), trained[best]))


def test_examples_show_a_translation_and_a_reference_that_differs(model, valid, capsys):
    pairs = [("甲", "one"), ("乙", "two"), ("丙", "three")]
    translator = ScriptedTranslator(["one", "four", "three"])
    fit(compile_model(model), [Evaluation(translator, pairs, dataset_of(valid), num_examples=2)])
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "  甲 → one",
        "  乙 → four (reference: two)",
    ]


def test_an_unknown_choice_of_best_weights_is_an_error(valid):
    with pytest.raises(ValueError, match="^select_by must be .* received 'accuracy'$"):
        Evaluation(None, PAIRS, dataset_of(valid), select_by="accuracy")


def test_averaged_weights_are_what_is_evaluated_and_kept(model, valid, tmp_path):
    path = tmp_path / "model.weights.h5"
    averages = [np.full(variable.shape, 0.01, "f") for variable in model.trainable_variables]
    seen = []

    def translate(texts, progress=False):
        seen.append(weights_of(model))
        return FAIR

    evaluation = Evaluation(translate, PAIRS, dataset_of(valid), path, average=lambda: averages)
    compile_model(model)
    history = fit(model, [evaluation])
    own = model.get_weights()
    assert is_same(seen[0], averages)
    assert not is_same(weights_of(model), averages)
    model.load_weights(path)
    assert is_same(weights_of(model), averages)
    plain = Evaluation(ScriptedTranslator(FAIR), PAIRS, dataset_of(valid))
    plain.set_model(model)
    plain.on_train_begin()
    plain.on_epoch_end(0, logs := {})
    assert logs["val_loss"] == pytest.approx(history["val_loss"][0])
    model.set_weights(own)


# Averages of checkpoints


def test_checkpoints_are_averaged_over_the_last_evaluations(model, tmp_path):
    average = CheckpointAverage(tmp_path, 3)
    trained, averages = [], []

    def look(logs):
        trained.append(weights_of(model))
        averages.append(average.average())

    fit(compile_model(model), [average, OnEpochEnd(look)], epochs=5, steps=1)
    for i, found in enumerate(averages):
        for k, array in enumerate(found):
            last = [weights[k] for weights in trained[max(0, i - 2) : i + 1]]
            np.testing.assert_allclose(array, np.mean(last, axis=0), atol=1e-7)
    assert is_same(averages[0], trained[0]) and not is_same(averages[4], trained[4])
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"weights-{step:08d}.npz" for step in (2, 3, 4, 5)
    ]


def test_an_average_does_not_see_weights_that_a_resumed_run_has_yet_to_reach(model, tmp_path):
    average = CheckpointAverage(tmp_path, 2)
    fit(compile_model(model), [average], epochs=3, steps=1)
    expected = average.average()
    model.optimizer.iterations.assign(2)
    before = average.average()
    assert not is_same(before, expected)
    model.optimizer.iterations.assign(3)
    assert is_same(average.average(), expected)


def test_a_resumed_run_keeps_its_better_weights(model, valid, tmp_path):
    path = tmp_path / "model.weights.h5"
    best = {"step": 7, "bleu": 99.0}
    evaluation = Evaluation(
        ScriptedTranslator(FAIR), PAIRS, dataset_of(valid), path, best=best, num_since_best=3
    )
    fit(compile_model(model), [evaluation])
    assert not path.exists()
    assert evaluation.best == best and evaluation.num_since_best == 4


def test_weights_are_kept_even_if_no_bleu_is_above_0(model, valid, tmp_path):
    path = tmp_path / "model.weights.h5"
    evaluation = Evaluation(ScriptedTranslator(["", "", ""]), PAIRS, dataset_of(valid), path)
    assert fit(compile_model(model), [evaluation])["val_bleu"] == [0.0]
    assert path.is_file()


def test_an_evaluation_changes_nothing_that_training_depends_on(model, valid):
    compile_model(model)
    fit(model, [])
    evaluation = Evaluation(ScriptedTranslator(POOR), PAIRS, dataset_of(valid))
    evaluation.set_model(model)
    evaluation.on_train_begin()
    variables = [*model.variables, *model.optimizer.variables, *model.metrics_variables]
    before = [keras.ops.convert_to_numpy(variable).copy() for variable in variables]
    evaluation.on_epoch_end(0, {})
    after = [keras.ops.convert_to_numpy(variable) for variable in variables]
    assert all(map(np.array_equal, before, after))


# TensorBoard


@pytest.fixture
def clock(monkeypatch):
    """Let each look at the clock find it 2 seconds later."""
    ticks = itertools.count(100.0, 2.0)
    fake = SimpleNamespace(perf_counter=lambda: next(ticks), monotonic=lambda: next(ticks))
    monkeypatch.setattr(callbacks, "time", fake)


def read_scalars(folder):
    """Return {tag: {step: value}} of the event file in `folder`."""
    (file,) = Path(folder).iterdir()
    events = EventAccumulator(str(file), size_guidance={"tensors": 0}).Reload()
    return {
        tag: {
            event.step: float(tf.make_ndarray(event.tensor_proto)) for event in events.Tensors(tag)
        }
        for tag in events.Tags()["tensors"]
    }


def test_training_points_are_means_over_the_steps_since_the_last_one(tmp_path, clock):
    """2 Keras epochs of 4 steps, a point every 3 steps: the second window spans both epochs."""
    sizes = {"num_encoder_layers": 1, "num_decoder_layers": 1, "d_model": 8, "num_heads": 2}
    model = build_transformer(ModelConfig(vocab_size=20, d_ff=8, dropout=0.0, **sizes))
    compile_model(model, rate_scale=1e-9)  # the weights stay as they are
    scalars = Scalars(tmp_path, every_steps=3)
    fit(model, [scalars], epochs=2, steps=4)

    steps = []  # sentences, loss, right tokens, tokens
    for inputs, labels in 2 * make_batches(SHAPES):
        logits = np.asarray(model(inputs, training=False), np.float64)
        is_real = labels != 0
        of_label = np.take_along_axis(logits, labels[..., None], -1)[..., 0]
        losses = np.log(np.exp(logits).sum(-1)) - 0.9 * of_label - 0.1 * logits.mean(-1)
        hits = (logits.argmax(-1) == labels) & is_real
        steps.append((len(labels), losses[is_real].mean(), hits.sum(), is_real.sum()))
    sentences, losses, hits, tokens = np.array(steps).T
    points = read_scalars(tmp_path)
    assert set(points) == {"loss", "accuracy", "learning_rate", "tokens_per_second"}
    for step, window in ((3, slice(0, 3)), (6, slice(3, 6))):
        expected = {
            # Keras weighs the loss of a batch by its sentences.
            "loss": np.average(losses[window], weights=sentences[window]),
            "accuracy": hits[window].sum() / tokens[window].sum(),
            "learning_rate": float(WarmupInverseSqrt(8, 4, 1e-9)(step)),
            "tokens_per_second": tokens[window].sum() / (3 * 2.0),
        }
        for tag, value in expected.items():
            assert list(points[tag]) == [3, 6]
            assert points[tag][step] == pytest.approx(value, rel=1e-4), tag
    assert scalars.num_tokens == tokens.sum() and scalars.seconds == 8 * 2.0


def test_a_resumed_run_goes_on_with_the_window_and_repeats_no_point(tmp_path, clock):
    """12 steps, a point every 3; resumed after the 4th, and after the 6th."""
    sizes = {"num_encoder_layers": 1, "num_decoder_layers": 1, "d_model": 8, "num_heads": 2}
    model = build_transformer(ModelConfig(vocab_size=20, d_ff=8, dropout=0.0, **sizes))
    compile_model(model, rate_scale=1e-9)  # the weights stay as they are
    fit(model, [Scalars(tmp_path / "whole", 3)], steps=12)
    compile_model(model, rate_scale=1e-9)
    progress = None
    for number, steps in enumerate((4, 2, 6)):
        scalars = Scalars(tmp_path / f"part-{number}", 3, progress)
        done = int(model.optimizer.iterations)
        model.fit(
            dataset_of(make_batches(SHAPES)).repeat().skip(done),
            steps_per_epoch=steps,
            shuffle=False,
            verbose=0,
            callbacks=[scalars],
        )
        progress = json.loads(json.dumps(scalars.progress()))
    whole = read_scalars(tmp_path / "whole")
    parts = [read_scalars(tmp_path / f"part-{number}") for number in range(3)]
    assert [list(part["loss"]) for part in parts] == [[3], [6], [9, 12]]
    for tag, points in whole.items():
        joined = {step: value for part in parts for step, value in part[tag].items()}
        assert joined == pytest.approx(points, rel=1e-4), tag


def test_a_full_disk_is_an_os_error_that_names_the_file(model, tmp_path, monkeypatch):
    scalars = Scalars(tmp_path, every_steps=1)

    def full(*args, **kwargs):
        message = f"{tmp_path}/events.out; No space left on device\n\tFailed to flush"
        raise tf.errors.ResourceExhaustedError(None, None, message)

    monkeypatch.setattr(tf.summary, "scalar", full)
    with pytest.raises(OSError, match="events.out; No space left on device$"):
        fit(compile_model(model), [scalars])


def test_points_after_a_step_are_dropped_and_the_others_kept(tmp_path):
    writer = tf.summary.create_file_writer(str(tmp_path / "sub"))
    with writer.as_default():
        for step in range(1, 7):
            tf.summary.scalar("loss", 0.5 * step, step=step)
    writer.close()
    (file,) = (tmp_path / "sub").iterdir()
    whole = file.read_bytes()
    drop_events_after(tmp_path, 6)
    assert file.read_bytes() == whole
    drop_events_after(tmp_path, 4)
    assert read_scalars(tmp_path / "sub") == {"loss": {1: 0.5, 2: 1.0, 3: 1.5, 4: 2.0}}
    # What a killed process left of its last point.
    file.write_bytes(whole[:-9])
    drop_events_after(tmp_path, 6)
    assert read_scalars(tmp_path / "sub")["loss"] == {step: 0.5 * step for step in range(1, 6)}
    drop_events_after(tmp_path / "missing", 4)


def test_evaluations_are_points_at_the_end_of_each_epoch(model, tmp_path):
    values = iter([(3.5, 60.0), (7.25, 50.0)])

    def evaluate(logs):
        logs["val_bleu"], logs["val_perplexity"] = next(values)

    scalars = Scalars(tmp_path, every_steps=50)
    fit(compile_model(model), [OnEpochEnd(evaluate), scalars], epochs=2, steps=2)
    assert read_scalars(tmp_path) == {
        "validation/bleu": {2: 3.5, 4: 7.25},
        "validation/perplexity": {2: 60.0, 4: 50.0},
    }


def test_the_time_of_an_evaluation_does_not_count_as_training(model, tmp_path, clock):
    scalars = Scalars(tmp_path, every_steps=50)
    evaluate = OnEpochEnd(lambda logs: [callbacks.time.perf_counter() for _ in range(100)])
    fit(compile_model(model), [evaluate, scalars], epochs=3, steps=2)
    assert scalars.seconds == 6 * 2.0


# Attention


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer(train_tokenizer(SENTENCES))


@pytest.fixture
def translator(tokenizer):
    sizes = {"num_encoder_layers": 1, "num_decoder_layers": 2, "d_model": 8, "num_heads": 2}
    model = build_transformer(ModelConfig(tokenizer.vocab_size, d_ff=8, dropout=0.1, **sizes))
    decoding = DecodingConfig(beam_size=1)
    return Translator(compile_model(model), tokenizer, max_length=40, decoding=decoding)


PROBES = [Probe("你好。", "Hello."), Probe("我喜欢茶。", "I like tea.")]


def read_series(folder):
    """Return {tag: {step: value}} and {tag: metadata} of the event file in `folder`."""
    (file,) = Path(folder).iterdir()
    events = EventAccumulator(str(file), size_guidance={"tensors": 0}).Reload()
    tags = events.Tags()["tensors"]
    values = {
        tag: {e.step: tf.make_ndarray(e.tensor_proto) for e in events.Tensors(tag)} for tag in tags
    }
    return values, {tag: events.SummaryMetadata(tag) for tag in tags}


def test_attention_is_written_first_at_every_nth_step_and_after_each_epoch(translator, tmp_path):
    attention = AttentionSummary(translator, PROBES, tmp_path, every_steps=2)
    fit(translator.model, [attention], epochs=2, steps=3)
    values, metadata = read_series(tmp_path)
    for tag in ("probe-1", "probe-1/measures", "probe-2", "probe-2/measures"):
        assert list(values[tag]) == [0, 2, 3, 4, 6]
    assert attention.seconds > 0
    content = from_content(metadata["probe-2"].plugin_data.content)
    assert content["source"] == "我喜欢茶。"
    assert [(m["name"], m["layers"]) for m in content["maps"]] == [
        ("encoder", 1),
        ("decoder", 2),
        ("cross", 2),
        ("translation", 2),
    ]
    for step in (0, 6):
        assert values["probe-1"][step].shape == (1,)
        measures = values["probe-1/measures"][step]
        assert measures.shape == ((1 + 2 + 2 + 2) * 2, len(MEASURES))
    first, last = values["probe-1/measures"][0], values["probe-1/measures"][6]
    assert np.nanmax(np.abs(first - last)) > 1e-5  # it is the model that is trained


def test_the_trained_model_is_looked_at_last_of_all(translator, tmp_path):
    fit(translator.model, [AttentionSummary(translator, PROBES, tmp_path, 100)], steps=3)
    assert list(read_series(tmp_path)[0]["probe-1"]) == [0, 3]


def test_without_the_plugin_there_are_scalars_images_and_texts(translator, tmp_path):
    fit(translator.model, [AttentionSummary(translator, PROBES, tmp_path, 2)], epochs=2, steps=3)
    values, metadata = read_series(tmp_path)
    kinds = {tag: data.plugin_data.plugin_name for tag, data in metadata.items()}
    scalars = [tag for tag, kind in kinds.items() if kind == "scalars"]
    assert len(scalars) == (1 + 2 + 2 + 2) * 2
    assert "attention_entropy/cross_layer_2_head_1" in scalars
    entropies = [values[f"probe-{i}/measures"][6][(1 + 2) * 2 + 2, 0] for i in (1, 2)]
    assert values["attention_entropy/cross_layer_2_head_1"][6] == pytest.approx(
        np.mean(entropies), rel=1e-5
    )
    assert kinds["attention/probe-2"] == "images" and kinds["translation/probe-2"] == "text"
    assert list(values["attention/probe-2"]) == [3, 6]  # at the end of each epoch
    width, height, png = values["attention/probe-2"][6]
    assert int(width) > 18 and int(height) > 18 and png.startswith(b"\x89PNG")
    text = values["translation/probe-2"][6].item().decode()
    assert text.splitlines()[:2] == ["    source: 我喜欢茶。", "    reference: I like tea."]


def test_a_resumed_run_writes_no_step_twice(translator, tmp_path):
    fit(translator.model, [AttentionSummary(translator, PROBES, tmp_path / "a", 2)], steps=4)
    fit(translator.model, [AttentionSummary(translator, PROBES, tmp_path / "b", 2)], steps=4)
    steps = [list(read_series(tmp_path / name)[0]["probe-1"]) for name in "ab"]
    assert steps == [[0, 2, 4], [6, 8]]  # the second goes on from step 4


def test_attention_changes_nothing_that_training_depends_on(translator, tmp_path):
    model = translator.model
    fit(model, [])
    attention = AttentionSummary(translator, PROBES, tmp_path, every_steps=1)
    attention.set_model(model)
    variables = [*model.variables, *model.optimizer.variables, *model.metrics_variables]
    before = [keras.ops.convert_to_numpy(variable).copy() for variable in variables]
    attention.on_train_batch_end(0)
    after = [keras.ops.convert_to_numpy(variable) for variable in variables]
    assert all(map(np.array_equal, before, after))


def test_embeddings_are_written_for_the_projector_with_their_pieces(translator, tmp_path):
    fit(translator.model, [Embeddings(translator, tmp_path, most=50)])
    config = projector.ProjectorConfig()
    text_format.Parse((tmp_path / "projector_config.pbtxt").read_text(), config)
    (embedding,) = config.embeddings
    assert embedding.tensor_name == "embedding"
    vectors = np.loadtxt(tmp_path / embedding.tensor_path, delimiter="\t")
    matrix = np.asarray(translator.model.get_layer("embedding").embeddings)
    np.testing.assert_allclose(vectors, matrix[4:54], rtol=1e-3, atol=1e-6)
    labels = (tmp_path / embedding.metadata_path).read_text("utf-8").splitlines()
    pieces = translator.tokenizer.pieces(tf.range(4, 54)).numpy()
    assert labels == [piece.decode() for piece in pieces]


def test_options_are_in_the_hparams_tab(tmp_path):
    Scalars(tmp_path, options={"d_model": 128, "preset": "tiny"})
    (file,) = tmp_path.iterdir()
    events = EventAccumulator(str(file)).Reload()
    start = events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    assert b"d_model" in start and b"tiny" in start
    assert b"validation/bleu" in events.SummaryMetadata("_hparams_/experiment").plugin_data.content


# Saved states and the time limit


def test_the_state_is_saved_at_the_end_of_each_epoch_with_the_progress_of_then(model, tmp_path):
    progress = iter([{"best_bleu": 1.0}, {"best_bleu": 2.0}, {"best_bleu": 3.0}])
    fit(compile_model(model), [States(tmp_path, lambda: next(progress))], epochs=3, steps=2)
    assert read_progress(newest_state(tmp_path)) == {"best_bleu": 3.0}
    assert read_progress(tmp_path / "step-00000004") == {"best_bleu": 2.0}


def test_training_ends_when_only_the_time_of_an_evaluation_is_left(model, clock):
    ended = []
    evaluation = OnEpochEnd(lambda logs: ended.append(logs))
    evaluation.seconds = 4.0
    limit = TimeLimit(end=108.0, evaluation=evaluation)  # it is 100, 102, 104 after the steps
    fit(compile_model(model), [evaluation, limit], epochs=5, steps=10)
    assert int(model.optimizer.iterations) == 3
    assert len(ended) == 1  # the last evaluation takes place


def test_training_ends_after_an_evaluation_that_leaves_no_time_for_another(model, clock):
    evaluation = OnEpochEnd(lambda logs: setattr(evaluation, "seconds", 50.0))
    evaluation.seconds = 0.0
    fit(compile_model(model), [evaluation, TimeLimit(150.0, evaluation)], epochs=5, steps=2)
    assert int(model.optimizer.iterations) == 2


# Early stop


def test_training_ends_after_as_many_evaluations_as_patience_allows(model, valid, capsys):
    scripts = [POOR, PERFECT, FAIR, POOR, FAIR, POOR]
    evaluation = Evaluation(ScriptedTranslator(*scripts), PAIRS, dataset_of(valid))
    stop = EarlyStop(evaluation, 3)
    fit(compile_model(model), [evaluation, stop], epochs=6, steps=1)
    assert int(model.optimizer.iterations) == 5 and stop.is_due()
    assert "early stop: none of 3 evaluations since step 2" in capsys.readouterr().out


def test_the_evaluations_before_a_resume_count(model, valid):
    evaluation = Evaluation(
        ScriptedTranslator(POOR),
        PAIRS,
        dataset_of(valid),
        best={"step": 1, "bleu": 99.0},
        num_since_best=2,
    )
    stop = EarlyStop(evaluation, 3)
    assert not stop.is_due()
    fit(compile_model(model), [evaluation, stop], epochs=6, steps=1)
    assert int(model.optimizer.iterations) == 1 and stop.is_due()


def test_an_evaluation_that_gets_better_starts_the_patience_anew(model, valid):
    scripts = [POOR, POOR, FAIR, POOR, PERFECT, POOR]
    evaluation = Evaluation(ScriptedTranslator(*scripts), PAIRS, dataset_of(valid))
    fit(compile_model(model), [evaluation, EarlyStop(evaluation, 2)], epochs=6, steps=1)
    assert int(model.optimizer.iterations) == 6


# Divergence


@pytest.fixture
def diverging_model():
    """A model in which the token 19, wherever it is, makes the loss NaN."""
    sizes = {"num_encoder_layers": 1, "num_decoder_layers": 1, "d_model": 8, "num_heads": 2}
    model = build_transformer(ModelConfig(vocab_size=20, source_vocab_size=20, d_ff=8, **sizes))
    embedding = model.get_layer("source_embedding").embeddings
    table = keras.ops.convert_to_numpy(embedding).copy()
    table[19] = np.nan
    embedding.assign(table)
    return compile_model(model)


def without_19(batches):
    for inputs, _ in batches:
        inputs["source_ids"][inputs["source_ids"] == 19] = 18
    return batches


def test_a_loss_that_is_not_finite_ends_training_and_names_step_and_lines(
    diverging_model, tmp_path
):
    batches = without_19(make_batches(SHAPES))
    batches[2][0]["source_ids"][1] = 19
    states = States(tmp_path, dict)
    evaluated = []
    with pytest.raises(DivergenceError) as raised:
        diverging_model.fit(
            dataset_of(batches),
            verbose=0,
            shuffle=False,
            callbacks=[
                Divergence(lambda: ["你好。", "再见。"]),
                OnEpochEnd(evaluated.append),
                states,
            ],
        )
    assert str(raised.value) == (
        "step 3: the loss is nan; its batch begins with\n  你好。\n  再见。"
    )
    assert evaluated == [] and newest_state(tmp_path) is None


def test_weights_that_the_last_step_made_not_finite_are_neither_evaluated_nor_saved(
    model, tmp_path
):
    compile_model(model)
    own = model.get_weights()
    weight = model.trainable_variables[3]

    class Spoil(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            weight.assign(np.full(weight.shape, np.inf, "f"))

    evaluated = []
    with pytest.raises(DivergenceError, match=rf"^step 1: {weight.path} is not finite$"):
        fit(model, [Divergence(), Spoil(), OnEpochEnd(evaluated.append)], steps=1)
    with pytest.raises(DivergenceError, match="is not finite"):
        fit(model, [Spoil(), States(tmp_path, dict)], steps=1)
    assert evaluated == [] and newest_state(tmp_path) is None
    model.set_weights(own)


# Interruption


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_training_after_its_step_with_the_state_saved(model, tmp_path, number):
    compile_model(model)
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    states = States(tmp_path, lambda: {"good": True})
    evaluated = []

    class Signal(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if batch == 2:
                os.kill(os.getpid(), number)

    with pytest.raises(Interrupted) as raised:
        fit(
            model,
            [OnEpochEnd(evaluated.append), states, Interruption(states.save), Signal()],
            epochs=2,
            steps=4,
        )
    assert raised.value.signal == number
    assert evaluated == [] and newest_state(tmp_path).name == "step-00000003"
    assert read_progress(newest_state(tmp_path)) == {"good": True}
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before


@pytest.mark.parametrize("place", ["last step", "evaluation"])
def test_a_signal_at_the_end_of_an_epoch_waits_for_its_evaluation(model, tmp_path, place):
    evaluated = []
    states = States(tmp_path, lambda: {"evaluations": len(evaluated)})

    class Signal(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if place == "last step" and batch == 3:
                os.kill(os.getpid(), signal.SIGTERM)

        def on_epoch_end(self, epoch, logs=None):
            if place == "evaluation":
                os.kill(os.getpid(), signal.SIGTERM)
            evaluated.append(epoch)

    with pytest.raises(Interrupted):
        fit(
            compile_model(model),
            [Signal(), states, Interruption(states.save)],
            epochs=2,
            steps=4,
        )
    assert evaluated == [0] and int(model.optimizer.iterations) == 4
    assert read_progress(newest_state(tmp_path)) == {"evaluations": 1}


def test_a_second_signal_does_not_wait(model, tmp_path):
    saved = []

    class Impatient(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGINT)

    interruption = Interruption(lambda: saved.append(1))
    with pytest.raises(KeyboardInterrupt) as raised:
        fit(compile_model(model), [interruption, Impatient()])
    interruption.on_train_end()
    assert not isinstance(raised.value, Interrupted) and saved == []


def test_without_a_signal_training_is_as_ever_and_signals_are_given_back(model):
    before = signal.getsignal(signal.SIGTERM)
    fit(compile_model(model), [Interruption(lambda: pytest.fail("saved"))], epochs=2)
    assert int(model.optimizer.iterations) == 4 and signal.getsignal(signal.SIGTERM) == before


# The time limit


def test_training_with_time_left_is_not_ended(model, clock):
    evaluation = SimpleNamespace(seconds=4.0)
    fit(compile_model(model), [TimeLimit(1000.0, evaluation)], epochs=2, steps=2)
    assert int(model.optimizer.iterations) == 4

"""Saved states: a restored run goes on bit for bit, and what is not whole is never seen."""

import json
import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

from keras_transformer import ModelConfig, build_transformer
from training import checkpoints
from training.checkpoints import load_state, newest_state, read_progress, save_state, save_weights
from training.loss import MaskedCrossentropy
from training.metrics import TokenAccuracy
from training.schedule import WarmupInverseSqrt

TESTS = Path(__file__).resolve().parent
STEPS = 3


def make_model(**options):
    """Return a compiled model of 1 + 1 layers with dropout."""
    sizes = {"vocab_size": 20, "num_encoder_layers": 1, "num_decoder_layers": 1, "d_model": 8}
    tiny = {**sizes, "num_heads": 2, "d_ff": 8, "dropout": 0.3, "max_length": 10}
    model = build_transformer(ModelConfig(**{**tiny, **options}))
    model.compile(
        optimizer=keras.optimizers.Adam(WarmupInverseSqrt(8, 4), beta_2=0.98),
        loss=MaskedCrossentropy(0.1),
        metrics=[TokenAccuracy()],
        jit_compile=False,
    )
    model.optimizer.build(model.trainable_variables)
    return model


def train(model, first_step):
    """Train STEPS steps, on data that depends on the step alone."""
    for step in range(first_step, first_step + STEPS):
        random = np.random.default_rng(step)
        source, target = random.integers(4, 20, (2, 4, 5)).astype(np.int32)
        labels = np.concatenate([target[:, 1:], np.full((4, 1), 3, np.int32)], axis=1)
        model.train_on_batch({"source_ids": source, "target_ids": target}, labels)


def state_of(model):
    """Return all that training changes: weights, random generators, optimizer."""
    variables = [*model.variables, *model.optimizer.variables]
    return [np.array(keras.ops.convert_to_numpy(variable)) for variable in variables]


def is_same(one, other):
    return len(one) == len(other) and all(map(np.array_equal, one, other))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of 6 steps: its model, its state at the end, and what was saved after 3."""
    folder = tmp_path_factory.mktemp("run") / "checkpoints"
    model = make_model()
    train(model, 0)
    halfway = state_of(model)
    saved = save_state(folder, model, STEPS, {"best_bleu": 7.5})
    train(model, STEPS)
    return model, halfway, saved, state_of(model)


# Going on


def test_a_restored_model_has_weights_optimizer_and_dropout_generators_bit_for_bit(run):
    _, halfway, saved, _ = run
    model = make_model()
    assert not is_same(state_of(model), halfway)
    load_state(saved, model)
    assert is_same(state_of(model), halfway)
    assert int(model.optimizer.iterations) == STEPS


def test_the_state_includes_moments_and_dropout_generators(run):
    model, halfway, _, end = run
    changed = [
        variable.path
        for variable, before, after in zip(
            [*model.variables, *model.optimizer.variables], halfway, end, strict=True
        )
        if not np.array_equal(before, after)
    ]
    for part in ("seed_generator_state", "momentum", "velocity", "iteration"):
        assert any(part in path for path in changed), part


def test_three_steps_a_restore_and_three_more_are_six_steps_bit_for_bit(run):
    model, _, saved, end = run
    load_state(saved, model)
    train(model, STEPS)
    assert is_same(state_of(model), end)


def test_without_the_dropout_generators_it_would_not_be_so(run):
    model, _, saved, end = run
    load_state(saved, model)
    for variable in model.non_trainable_variables:
        if "seed_generator_state" in variable.path:
            variable.assign(variable + 1)
    train(model, STEPS)
    assert not is_same(state_of(model), end)


OTHER_PROCESS = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import test_checkpoints as t
model = t.make_model()
t.load_state(Path(sys.argv[2]), model)
t.train(model, t.STEPS)
t.save_state(Path(sys.argv[3]), model, 2 * t.STEPS, {})
"""


def test_a_new_model_in_another_process_goes_on_bit_for_bit(run, tmp_path):
    _, _, saved, end = run
    process = subprocess.run(
        [sys.executable, "-c", OTHER_PROCESS, str(TESTS), str(saved), str(tmp_path)],
        cwd=TESTS.parent,
        env={**os.environ, "PYTHONPATH": str(TESTS.parent)},
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
    model = make_model()
    load_state(newest_state(tmp_path), model)
    assert is_same(state_of(model), end)


def test_the_progress_that_was_saved_can_be_read_with_the_step(run):
    _, _, saved, _ = run
    assert read_progress(saved) == {"step": STEPS, "best_bleu": 7.5}


# Files


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_only_the_two_newest_states_are_kept(run, tmp_path):
    model, *_ = run
    for step in (1, 2, 10, 100):
        assert save_state(tmp_path, model, step, {}).name == f"step-{step:08d}"
    assert names(tmp_path) == ["step-00000010", "step-00000100"]


def test_the_newest_state_is_that_of_the_highest_step(run, tmp_path):
    model, *_ = run
    assert newest_state(tmp_path) is None
    assert newest_state(tmp_path / "missing") is None
    for step in (9, 10):
        save_state(tmp_path, model, step, {})
    assert newest_state(tmp_path) == tmp_path / "step-00000010"
    assert read_progress(newest_state(tmp_path)) == {"step": 10}


def test_a_state_is_not_visible_while_it_is_written(run, tmp_path, monkeypatch):
    model, *_ = run
    seen = []
    save = np.savez

    def watched(*args, **arrays):
        save(*args, **arrays)
        seen.extend(tmp_path.glob("step-*"))

    monkeypatch.setattr(np, "savez", watched)
    saved = save_state(tmp_path, model, 1, {})
    assert seen == [] and newest_state(tmp_path) == saved


def test_a_save_that_fails_leaves_the_state_before_and_the_next_save_works(
    run, tmp_path, monkeypatch
):
    model, *_ = run
    before = save_state(tmp_path, model, 1, {})

    def full_disk(path, **arrays):
        path.write_bytes(b"half")
        raise OSError("no space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(np, "savez", full_disk)
        with pytest.raises(OSError, match="no space left"):
            save_state(tmp_path, model, 2, {})
    assert newest_state(tmp_path) == before
    load_state(before, model)
    after = save_state(tmp_path, model, 2, {})
    load_state(after, model)
    assert names(tmp_path) == ["step-00000001", "step-00000002"]


def test_a_state_is_not_visible_while_it_is_removed(run, tmp_path, monkeypatch):
    model, *_ = run
    for step in (1, 2):
        save_state(tmp_path, model, step, {})
    visible = []

    def killed(folder, ignore_errors=False):
        if folder.exists():
            visible.append(folder.name.startswith("step-"))
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(checkpoints.shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            save_state(tmp_path, model, 3, {})
    assert visible == [False]
    assert [path.name for path in sorted(tmp_path.glob("step-*"))] == [
        "step-00000002",
        "step-00000003",
    ]


def test_the_state_of_a_step_can_be_saved_again(run, tmp_path):
    model, *_ = run
    save_state(tmp_path, model, 1, {"best_bleu": 1.0})
    saved = save_state(tmp_path, model, 1, {"best_bleu": 2.0})
    assert read_progress(saved)["best_bleu"] == 2.0
    assert names(tmp_path) == ["step-00000001"]


@pytest.mark.parametrize("damage", ["cut", "text", "empty", "missing"])
def test_a_damaged_state_is_an_error_that_names_the_file(run, tmp_path, damage):
    model, *_ = run
    path = save_state(tmp_path, model, 1, {}) / checkpoints.STATE_FILE
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(
            {"cut": content[: len(content) // 2], "text": b"no state", "empty": b""}[damage]
        )
    with pytest.raises(ValueError) as raised:
        load_state(path.parent, model)
    assert str(raised.value).startswith(f"{path}: can't be restored: ")


@pytest.mark.parametrize("content", ["{", "", None])
def test_a_damaged_progress_file_is_an_error_that_names_it(run, tmp_path, content):
    model, *_ = run
    path = save_state(tmp_path, model, 1, {}) / checkpoints.PROGRESS_FILE
    assert json.loads(path.read_text()) == {"step": 1}
    path.unlink() if content is None else path.write_text(content)
    with pytest.raises(ValueError) as raised:
        read_progress(path.parent)
    assert str(raised.value).startswith(f"{path}: ")


@pytest.mark.parametrize(
    "options, reason",
    [({"num_decoder_layers": 2}, "it belongs to another model"), ({"d_ff": 10}, "another shape")],
)
def test_the_state_of_another_model_is_an_error(run, options, reason):
    _, _, saved, _ = run
    with pytest.raises(ValueError) as raised:
        load_state(saved, make_model(**options))
    assert str(saved) in str(raised.value) and reason in str(raised.value)


# Best weights


def test_saved_weights_load_into_another_model(run, tmp_path):
    model, *_ = run
    path = tmp_path / "model.weights.h5"
    save_weights(model, path)
    other = make_model()
    other.load_weights(path)
    assert is_same(other.get_weights(), model.get_weights())
    assert names(tmp_path) == [path.name]


def test_weights_that_can_not_be_written_leave_the_earlier_ones(run, tmp_path, monkeypatch):
    model, *_ = run
    path = tmp_path / "model.weights.h5"
    save_weights(model, path)
    before = path.read_bytes()

    def full_disk(temporary, *args, **kwargs):
        temporary.write_bytes(b"half")
        raise OSError("no space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(model, "save_weights", full_disk)
        with pytest.raises(OSError, match="no space left"):
            save_weights(model, path)
    assert path.read_bytes() == before
    save_weights(model, path)
    assert names(tmp_path) == [path.name]

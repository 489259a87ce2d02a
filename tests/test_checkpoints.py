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
from training.checkpoints import (
    DamagedStateError,
    load_arrays,
    load_state,
    newest_state,
    read_progress,
    restore,
    save_arrays,
    save_state,
    save_weights,
)
from training.loss import MaskedCrossentropy
from training.metrics import TokenAccuracy
from training.optimizer import Muon
from training.schedule import WarmupInverseSqrt

TESTS = Path(__file__).resolve().parent
STEPS = 3


def compiled_model(**options):
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
    return model


def make_model(**options):
    """Return a compiled model whose optimizer is built too."""
    model = compiled_model(**options)
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


def test_an_optimizer_that_was_not_built_is_restored_too(run):
    _, halfway, saved, _ = run
    model = compiled_model()
    assert not model.optimizer.built
    load_state(saved, model)
    assert is_same(state_of(model), halfway)


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


def test_the_progress_that_was_saved_can_be_read(run):
    _, _, saved, _ = run
    assert read_progress(saved) == {"best_bleu": 7.5}


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
    with pytest.raises(DamagedStateError) as raised:
        load_state(path.parent, model)
    assert str(raised.value).startswith(f"{path}: can't be read: ")


@pytest.mark.parametrize("content", ["{", "", None])
def test_a_damaged_progress_file_is_an_error_that_names_it(run, tmp_path, content):
    model, *_ = run
    path = save_state(tmp_path, model, 1, {}) / checkpoints.PROGRESS_FILE
    assert json.loads(path.read_text()) == {}
    path.unlink() if content is None else path.write_text(content)
    with pytest.raises(DamagedStateError) as raised:
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
    assert not isinstance(raised.value, DamagedStateError)
    assert str(saved) in str(raised.value) and reason in str(raised.value)


def test_the_state_of_another_optimizer_is_an_error(run):
    _, _, saved, _ = run
    model = make_model()
    model.compile(Muon(0.1), loss=model.loss)
    with pytest.raises(ValueError, match="it belongs to another model or optimizer$"):
        load_state(saved, model)


# Falling back


@pytest.fixture
def two_states(run, tmp_path):
    """States of steps 3 and 6, of which the newer is to be damaged."""
    model, halfway, saved, end = run
    load_state(saved, model)
    save_state(tmp_path, model, 3, {"best_bleu": 3.0})
    train(model, STEPS)
    return save_state(tmp_path, model, 6, {"best_bleu": 6.0})


def test_the_newest_state_is_restored_with_its_progress(run, two_states, capsys):
    model, _, _, end = run
    assert restore(two_states.parent, model) == (two_states, {"best_bleu": 6.0})
    assert is_same(state_of(model), end)
    assert capsys.readouterr().err == ""


def test_nothing_is_restored_where_nothing_was_saved(run, tmp_path):
    model, *_ = run
    assert restore(tmp_path, model) is None and restore(tmp_path / "missing", model) is None


@pytest.mark.parametrize("file", [checkpoints.STATE_FILE, checkpoints.PROGRESS_FILE])
def test_a_damaged_newest_state_falls_back_to_the_one_before_and_says_so(
    run, two_states, capsys, file
):
    model, halfway, *_ = run
    content = (two_states / file).read_bytes()
    (two_states / file).write_bytes(content[: len(content) - 9])
    folder = two_states.parent
    assert restore(folder, model) == (folder / "step-00000003", {"best_bleu": 3.0})
    assert is_same(state_of(model), halfway)
    (line,) = capsys.readouterr().err.splitlines()
    assert str(two_states / file) in line and "the state before it" in line
    assert names(folder) == ["damaged-step-00000006", "step-00000003"]
    train(model, STEPS)  # the run comes to that step again
    assert save_state(folder, model, 6, {}) == two_states


def test_one_flipped_bit_is_damage(run, two_states):
    model, *_ = run
    path = two_states / checkpoints.STATE_FILE
    content = bytearray(path.read_bytes())
    weight = keras.ops.convert_to_numpy(model.trainable_variables[0]).tobytes()
    content[content.index(weight) + 5] ^= 1
    path.write_bytes(content)
    with pytest.raises(DamagedStateError):
        load_state(two_states, model)


def test_when_no_state_is_whole_it_is_an_error_and_nothing_is_moved(run, two_states):
    model, *_ = run
    folder = two_states.parent
    for state in folder.iterdir():
        (state / checkpoints.STATE_FILE).write_bytes(b"")
    with pytest.raises(ValueError, match=f"^{folder}: none of the saved states can be restored"):
        restore(folder, model)
    assert names(folder) == ["step-00000003", "step-00000006"]


def test_another_models_states_are_no_damage(run, two_states):
    with pytest.raises(ValueError, match="belongs to another model"):
        restore(two_states.parent, make_model(num_decoder_layers=2))
    assert two_states.is_dir()


def test_what_a_killed_run_left_half_done_is_removed(run, two_states):
    model, *_ = run
    folder = two_states.parent
    for name in (".writing.step-00000007", ".removing-step-00000001"):
        (folder / name).mkdir()
        (folder / name / checkpoints.STATE_FILE).write_bytes(b"half")
    (folder / ".writing.weights-00000007.npz").write_bytes(b"half")
    assert restore(folder, model)[0] == two_states
    assert names(folder) == ["step-00000003", "step-00000006"]


# Disks and file systems

FULL_DISK = """
import resource, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import test_checkpoints as t
model = t.make_model()
folder = Path(sys.argv[2])
t.save_state(folder, model, 1, {"step": 1})
t.save_weights(model, folder / "model.weights.h5")
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # writing beyond the limit is an OSError then
resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000))
for save in (
    lambda: t.save_state(folder, model, 2, {}),
    lambda: t.save_weights(model, folder / "model.weights.h5"),
):
    try:
        save()
    except OSError as error:
        print(error)
"""


def test_a_disk_that_takes_no_more_is_a_clear_error_and_what_was_saved_stays(run, tmp_path):
    """A limit on the size of files stands for the disk: what writes meets the same errors."""
    process = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(TESTS), str(tmp_path)],
        cwd=TESTS.parent,
        env={**os.environ, "PYTHONPATH": str(TESTS.parent)},
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
    state, weights = process.stdout.splitlines()
    assert state.startswith(f"{tmp_path / 'step-00000002'}: can't be written: ")
    assert weights.startswith(f"{tmp_path / 'model.weights.h5'}: can't be written: ")
    assert names(tmp_path) == ["model.weights.h5", "step-00000001"]
    model, *_ = run
    load_state(tmp_path / "step-00000001", model)
    model.load_weights(tmp_path / "model.weights.h5")


def test_no_hard_links_are_asked_for(run, tmp_path, monkeypatch):
    """A mounted Google Drive has none."""

    def link(*args, **kwargs):
        raise PermissionError("no hard links here")

    monkeypatch.setattr(os, "link", link)
    model, *_ = run
    for step in (1, 1, 2, 3):
        save_state(tmp_path, model, step, {})
    save_weights(model, tmp_path / "model.weights.h5")
    save_arrays(tmp_path / "some.npz", [np.zeros(3)])
    assert names(tmp_path) == ["model.weights.h5", "some.npz", "step-00000002", "step-00000003"]


def test_saved_arrays_are_loaded_in_their_order(tmp_path):
    arrays = [np.full(i % 3, i, np.float32) for i in range(12)]
    save_arrays(tmp_path / "some.npz", arrays)
    loaded = load_arrays(tmp_path / "some.npz")
    assert is_same(loaded, arrays) and loaded[3].dtype == np.float32
    (tmp_path / "some.npz").write_bytes(b"no archive")
    with pytest.raises(OSError, match=f"^{tmp_path / 'some.npz'}: can't be read: "):
        load_arrays(tmp_path / "some.npz")


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

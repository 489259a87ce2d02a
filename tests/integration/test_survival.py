"""Training that is interrupted or killed, and resumed, ends as if nothing had happened."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import h5py
import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from training import phrasebook

ROOT = Path(__file__).parents[2]
STEPS = 36
# Everything that a resumed run has to find again.
CONFIG = """
[model]
preset = "tiny"
num_encoder_layers = 1
num_decoder_layers = 1
d_model = 32
d_ff = 64
attention_dropout = 0.1
activation_dropout = 0.1

[training]
vocab_size = 900
subword_nbest_size = 8
batch_tokens = 256
gradient_accumulation_steps = 2
warmup_steps = 20
evaluate_every_steps = 6
evaluation_sentences = 8
log_every_steps = 4
select_by = "chrf"
patience = 100
"""
# Both kinds, the other with the other optimizer.
AVERAGES = ("average_decay = 0.9", 'average_checkpoints = 3\noptimizer = "muon"')


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    pairs = phrasebook.load("train")
    for name, part in (("train", pairs[:300]), ("valid", pairs[300:340])):
        lines = ["\t".join(pair) + "\n" for pair in part]
        (folder / f"{name}.tsv").write_text("".join(lines), encoding="utf-8")
    for average in AVERAGES:
        (folder / f"{average.split()[0]}.toml").write_text(f"{CONFIG}{average}\n")
    return folder


def start(corpus, average, output, *more, command=(sys.executable, "-m", "training")):
    return subprocess.Popen(
        [
            *(*command, "--output", output, "--max-steps", str(STEPS)),
            *("--config", corpus / f"{average.split()[0]}.toml", *more),
            *("--train", corpus / "train.tsv", "--valid", corpus / "valid.tsv"),
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process):
    """Return output and errors of a process, once it has ended well."""
    output, errors = process.communicate(timeout=280)
    assert process.returncode == 0, errors
    return output, errors


def wait_until(process, condition):
    """Return whether the condition came true before the process ended."""
    while process.poll() is None:
        if condition():
            return True
        time.sleep(0.0005)
    return False


@pytest.fixture(scope="module")
def straight(corpus):
    """Return a function that gives the run directory of a run that was left alone."""
    runs = {}

    def run(average):
        if average not in runs:
            runs[average] = corpus / f"straight-{average.split()[0]}"
            finish(start(corpus, average, runs[average]))
        return runs[average]

    return run


def arrays_of(run):
    """Return all arrays of the newest state and of the best weights."""
    newest = max((run / "checkpoints").glob("step-*"))
    assert newest.name == f"step-{STEPS:08d}"
    with np.load(newest / "state.npz") as state:
        arrays = dict(state)

    def collect(name, item):
        if isinstance(item, h5py.Dataset):
            arrays[name] = np.asarray(item)

    with h5py.File(run / "model.weights.h5") as file:
        file.visititems(collect)
    return arrays


def results_of(run):
    """Return what a run reports, but for what depends on the clock."""
    progress = json.loads(next((run / "checkpoints").glob("*36/progress.json")).read_text())
    results = json.loads((run / "results.json").read_text())
    for values in (progress, progress["scalars"], progress["scalars"]["window"], results):
        for clock in ("minutes", "seconds", "tokens_per_second"):
            values.pop(clock, None)
    return progress, results


def points_of(run):
    """Return {(folder, tag): [(step, value), ...]} of all event files, as they were written."""
    points = defaultdict(list)
    for file in sorted((run / "logs").rglob("events.out.tfevents.*")):
        events = EventAccumulator(str(file), size_guidance={"tensors": 0}).Reload()
        for tag in events.Tags()["tensors"]:
            if tag.startswith("_hparams_"):
                continue  # the options of the run, written again by each start
            for event in events.Tensors(tag):
                value = tf.make_ndarray(event.tensor_proto)
                points[file.parent.name, tag].append((event.step, value))
    return points


def assert_same_end(run, straight):
    want, got = arrays_of(straight), arrays_of(run)
    assert want.keys() == got.keys()
    for name in want:
        np.testing.assert_array_equal(got[name], want[name], err_msg=name)
    assert results_of(run) == results_of(straight)
    want_points, got_points = points_of(straight), points_of(run)
    assert want_points.keys() == got_points.keys()
    for folder, tag in want_points:
        (steps, want), (got_steps, got) = (
            zip(*points[folder, tag], strict=True) for points in (want_points, got_points)
        )
        assert list(steps) == sorted(set(steps)) and len(steps) >= (6 if folder == "logs" else 1)
        assert got_steps == steps, (folder, tag)
        if folder == "logs" and tag != "tokens_per_second":
            np.testing.assert_allclose(got, want, rtol=1e-5, err_msg=tag)


# A process that gets a SIGTERM in its 15th batch: the first of step 8.
TERMINATED = """
import os, runpy, signal
from training.run import Run

count_batch = Run._count_batch

def count_and_terminate(run, batch, logs):
    count_batch(run, batch, logs)
    if run.num_batches == 15:
        os.kill(os.getpid(), signal.SIGTERM)

Run._count_batch = count_and_terminate
runpy.run_module("training", run_name="__main__", alter_sys=True)
"""


def test_a_run_that_is_told_to_end_saves_and_goes_on_bit_for_bit(corpus, straight):
    output = corpus / "terminated"
    process = start(corpus, AVERAGES[0], output, command=[sys.executable, "-c", TERMINATED])
    printed, errors = process.communicate(timeout=280)
    assert process.returncode == 128 + signal.SIGTERM, errors
    assert errors.splitlines()[-1] == (
        "interrupted; the state is saved, --resume goes on from here"
    )
    assert "done: " not in printed and not (output / "results.json").exists()
    newest = output / "checkpoints/step-00000007"
    assert json.loads((newest / "progress.json").read_text())["num_batches"] == 15
    printed, _ = finish(start(corpus, AVERAGES[0], output, "--resume"))
    assert f"resumed from {newest}" in printed
    assert_same_end(output, straight(AVERAGES[0]))


# A process that SIGKILL ends when half of its Nth file of arrays is written.
KILLED_WHILE_WRITING = """
import os, runpy, signal, sys
import numpy as np

savez, countdown = np.savez, [int(sys.argv.pop(1))]

def killed(path, *args, **arrays):
    savez(path, *args, **arrays)
    countdown[0] -= 1
    if countdown[0] == 0:
        os.truncate(path, os.path.getsize(path) // 2)
        os.kill(os.getpid(), signal.SIGKILL)

np.savez = killed
runpy.run_module("training", run_name="__main__", alter_sys=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("average", AVERAGES)
def test_a_run_that_is_killed_again_and_again_ends_bit_for_bit_as_one_that_was_not(
    corpus, straight, average
):
    output = corpus / f"killed-{average.split()[0]}"
    checkpoints = output / "checkpoints"
    draws = random.Random(1)

    def states():
        return sorted(checkpoints.glob("step-*"))

    for file_number in (1, None, 2, None):
        before = states()
        if file_number:
            command = [sys.executable, "-c", KILLED_WHILE_WRITING, str(file_number)]
            process = start(corpus, average, output, "--resume", command=command)
        else:
            process = start(corpus, average, output, "--resume")
            assert wait_until(process, lambda before=before: states() != before)
            time.sleep(draws.uniform(0, 0.5))  # anywhere on the way to the next state, or in it
            process.kill()
        process.communicate(timeout=280)
        assert process.returncode == -signal.SIGKILL
        if file_number:
            assert any(checkpoints.glob(".writing.*"))
    finish(start(corpus, average, output, "--resume"))
    assert_same_end(output, straight(average))
    assert not any(checkpoints.glob(".*"))


@pytest.mark.slow
def test_a_run_whose_newest_state_is_damaged_goes_on_from_the_one_before(corpus, straight):
    output = corpus / "damaged"
    process = start(corpus, AVERAGES[1], output)
    assert wait_until(process, (output / "checkpoints/step-00000012").exists)
    process.kill()
    process.communicate()
    newest = max((output / "checkpoints").glob("step-*"))
    content = (newest / "state.npz").read_bytes()
    (newest / "state.npz").write_bytes(content[: len(content) // 2])
    printed, errors = finish(start(corpus, AVERAGES[1], output, "--resume"))
    assert f"warning: {newest / 'state.npz'}: can't be read: " in errors
    assert f"resumed from {newest.with_name(f'step-{int(newest.name[5:]) - 6:08d}')}" in printed
    assert_same_end(output, straight(AVERAGES[1]))


@pytest.mark.slow
def test_ctrl_c_before_the_first_step_is_no_traceback(corpus):
    process = start(corpus, AVERAGES[0], corpus / "early")
    assert process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=280)
    assert process.returncode == 128 + signal.SIGINT, errors
    assert "Traceback" not in errors and "interrupted" in errors


@pytest.mark.slow
def test_a_disk_that_is_full_ends_the_run_with_status_1_and_the_file_named(corpus):
    """A limit on the size of files stands for the disk."""
    output = corpus / "full"
    limit = (
        "import resource, runpy, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000)); "
        "runpy.run_module('training', run_name='__main__')"
    )
    done = subprocess.run(
        [
            *(sys.executable, "-c", limit, "--output", output, "--max-steps", "12"),
            *("--config", corpus / "average_decay.toml"),
            *("--train", corpus / "train.tsv", "--valid", corpus / "valid.tsv"),
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"error: {output}") and "can't be written: File too large" in last


@pytest.mark.slow
def test_a_run_that_diverges_names_step_and_lines_and_keeps_its_last_good_state(corpus):
    output = corpus / "diverged"
    config = (corpus / "average_decay.toml").read_text()
    config = config.replace("warmup_steps = 20", "warmup_steps = 8\nlearning_rate_scale = 1e30")
    (corpus / "diverging.toml").write_text(config)
    process = start(corpus, "diverging", output)
    _, errors = process.communicate(timeout=280)
    assert process.returncode == 1 and "Traceback" not in errors
    last = errors[errors.index("error: training has diverged: step ") :]
    assert "not finite" in last or "the loss is nan; its batch begins with\n  " in last

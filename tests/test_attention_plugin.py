"""The plugin's routes, asked of a real TensorBoard with either of its two loaders of event files.

Neither process has TensorFlow or Keras.
"""

import importlib.metadata
import json
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from attention_snapshots import snapshot
from tensorboard_process import PROJECT, get, tensorboard

from attention_viewer import summary
from attention_viewer.metadata import MEASURES
from attention_viewer.plugin import AttentionLoader

NUM_STEPS = 30  # more than the 10 that TensorBoard would keep
ODD_RUN = "run & <b>#1?%20 你"


def write_snapshots(folder, steps, tag="probe 1"):
    """Write snapshots whose heads are the sharper the later the step."""
    with tf.summary.create_file_writer(str(folder)).as_default():
        for step in steps:
            summary.write_snapshot(tag, snapshot(sharpness=step / (step + 10)), step)


@pytest.fixture(scope="module")
def logdir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("logs")
    write_snapshots(folder / "a" / "attention", range(NUM_STEPS))
    write_snapshots(folder / ODD_RUN, [5], tag="tag & <i>?%41 你")
    metadata = tf.compat.v1.SummaryMetadata(data_class=3)
    metadata.plugin_data.plugin_name = "attention"
    with tf.summary.create_file_writer(str(folder / "damaged")).as_default():
        for step in (1, 2):
            summary.write_snapshot("probe 1", snapshot(), step)
        tf.summary.write("no content", [b"x"], 1, metadata)
        metadata.plugin_data.content = b'{"version": 9}'
        tf.summary.write("newer", [b"x"], 1, metadata)
        metadata.data_class = 2
        tf.summary.write("probe 1/measures", [[1.0]], 3, metadata)
    (file,) = (folder / "a" / "attention").iterdir()
    half = folder / "half-written" / file.name
    half.parent.mkdir()
    half.write_bytes(file.read_bytes()[:-100])
    return folder


@pytest.fixture(scope="module")
def without_tensorflow(tmp_path_factory):
    """A folder whose tensorflow and keras fail to import."""
    folder = tmp_path_factory.mktemp("blocked")
    for name in ("tensorflow", "keras"):
        (folder / f"{name}.py").write_text(f"raise ImportError('{name} is blocked')")
    return folder


@pytest.fixture(scope="module", params=["true", "false"], ids=["rust", "python"])
def server(request, logdir, without_tensorflow):
    with tensorboard(logdir, "--load_fast", request.param, python_path=[without_tensorflow]) as url:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            _, found = get(url, "probes")
            if {"half-written", ODD_RUN, "damaged", "a/attention"} <= set(found["runs"]):
                probe = found["runs"]["a/attention"]["probe 1"]
                if probe["last_step"] == NUM_STEPS - 1:
                    break
            time.sleep(0.1)
        yield url


def test_the_package_is_importable_without_tensorflow_and_keras(without_tensorflow):
    code = (
        "import attention_viewer, attention_viewer.plugin, attention_viewer.summary, sys;"
        "assert not {'tensorflow', 'keras'} & set(sys.modules), 'imported'"
    )
    subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        cwd=PROJECT,
        env={"PYTHONPATH": f"{without_tensorflow}:{PROJECT}"},
    )


def test_tensorboard_finds_the_plugin_by_its_entry_point():
    (found,) = importlib.metadata.entry_points(group="tensorboard_plugins", name="attention")
    assert found.load() is AttentionLoader


def test_the_tab_is_active_and_has_its_name(server):
    with urllib.request.urlopen(f"{server}data/plugins_listing") as response:
        listed = json.load(response)["attention"]
    assert listed["tab_name"] == "ATTENTION"
    assert listed["enabled"]


def test_probes_are_listed_with_what_is_needed_to_show_them(server):
    status, found = get(server, "probes")
    assert status == 200
    probe = found["runs"]["a/attention"]["probe 1"]
    assert probe["source"] == "我想买两张火车票。"
    assert probe["maps"][0] == {"name": "encoder", "layers": 2, "heads": 4}
    assert [m["name"] for m in probe["maps"]] == ["encoder", "decoder", "cross", "translation"]
    assert probe["measures"] == list(MEASURES)
    assert probe["last_step"] == NUM_STEPS - 1
    assert probe["last_time"] > 1e9


def test_every_step_stays_loadable_though_tensorboard_would_keep_ten(server):
    _, series = get(server, "series", run="a/attention", tag="probe 1")
    assert [s["step"] for s in series["steps"]] == list(range(NUM_STEPS))
    assert series["measures"]["steps"] == list(range(NUM_STEPS))
    for step in (0, NUM_STEPS - 1):
        want = snapshot(sharpness=step / (step + 10))
        status, payload = get(server, "snapshot", run="a/attention", tag="probe 1", step=step)
        assert status == 200
        assert payload == summary.encode(want)
        values = np.array(series["measures"]["values"][step], float)
        np.testing.assert_allclose(values, summary.measure(want).ravel(), atol=1e-4)


def test_run_and_tag_may_have_any_characters(server):
    tag = "tag & <i>?%41 你"
    assert list(get(server, "probes")[1]["runs"][ODD_RUN]) == [tag]
    status, payload = get(server, "snapshot", run=ODD_RUN, tag=tag, step=5)
    assert status == 200
    assert payload[:2] == b"\x1f\x8b"


def test_what_is_damaged_is_left_out_with_a_note(server):
    _, found = get(server, "probes")
    assert list(found["runs"]["damaged"]) == ["probe 1"]
    notes = sorted(note for note in found["notes"] if note.startswith("damaged, "))
    assert notes[0] == ("damaged, newer is not shown: format 9; this viewer reads formats up to 1")
    assert notes[1].startswith("damaged, no content is not shown: damaged metadata")
    _, series = get(server, "series", run="damaged", tag="probe 1")
    assert [s["step"] for s in series["steps"]] == [1, 2]
    assert series["measures"]["steps"] == [1, 2]
    assert series["notes"] == ["step 3: its measures are damaged"]


def test_a_half_written_file_shows_what_it_has(server):
    _, series = get(server, "series", run="half-written", tag="probe 1")
    steps = [s["step"] for s in series["steps"]]
    assert steps[: NUM_STEPS - 1] == list(range(NUM_STEPS - 1))


@pytest.mark.parametrize(
    "route, arguments, status, message",
    [
        ("series", {"run": "a/attention"}, 400, "argument tag is missing"),
        ("series", {"run": "none", "tag": "probe 1"}, 404, "'none' has no attention"),
        ("series", {"run": "a/attention", "tag": "none"}, 404, "tag 'none'"),
        ("snapshot", {"run": "a/attention", "tag": "probe 1"}, 400, "argument step is missing"),
        (
            "snapshot",
            {"run": "a/attention", "tag": "probe 1", "step": "abc"},
            400,
            "step must be an integer, received 'abc'",
        ),
        ("snapshot", {"run": "a/attention", "tag": "probe 1", "step": 99}, 404, "step 99"),
    ],
)
def test_a_wrong_request_is_told_what_is_wrong(server, route, arguments, status, message):
    got, body = get(server, route, **arguments)
    assert got == status
    assert message in body


def test_static_files_are_served_and_nothing_else(server):
    files = sorted(p.name for p in Path(PROJECT, "attention_viewer/static").iterdir())
    assert "index.js" in files
    for name in files:
        with urllib.request.urlopen(f"{server}data/plugin/attention/{name}") as response:
            kind = response.headers.get_content_type()
            assert kind == {"js": "text/javascript", "css": "text/css"}[name.rpartition(".")[2]]
    for path in ("../plugin.py", "%2e%2e/plugin.py", "static/index.js", "nothing.js"):
        assert get(server, path)[0] == 404, path

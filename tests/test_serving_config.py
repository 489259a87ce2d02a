"""DIR/serving: what a server of all models of DIR is started with."""

import json
import re
from pathlib import Path

import pytest
from exporting import run_main
from google.protobuf import text_format
from tensorflow_serving.config.model_server_config_pb2 import ModelServerConfig

from export import serving_config
from export.golden import GOLDEN_FILE, format_golden

TEMPLATES = Path(serving_config.__file__).parent


def add_version(models, name, version, golden=True):
    folder = models / name / str(version)
    folder.mkdir(parents=True)
    (folder / "saved_model.pb").touch()
    if golden:
        (folder / GOLDEN_FILE).parent.mkdir()
        (folder / GOLDEN_FILE).write_text(format_golden([{"signature": "translate"}]))


def update(models):
    return serving_config.update(models, serving_config.read_labels(models))


def read_models(models):
    """Return {name: configuration} as the server reads it."""
    text = (models / "serving/models.config").read_text()
    config = text_format.Parse(text, ModelServerConfig())
    return {model.name: model for model in config.model_config_list.config}


def read_golden(models):
    golden = json.loads((models / "serving/golden_requests.json").read_text())
    return [(request["model"], request["version"]) for request in golden]


# ---------------------------------------------------------------- models and versions


def test_every_model_of_the_folder_is_served(tmp_path):
    add_version(tmp_path, "zh-en", 1)
    update(tmp_path)
    assert set(read_models(tmp_path)) == {"zh-en"}
    add_version(tmp_path, "de-en", 5)
    (tmp_path / "zh-en-ctranslate2").mkdir()
    (tmp_path / "notes.txt").touch()
    update(tmp_path)
    config = read_models(tmp_path)
    assert set(config) == {"de-en", "zh-en"}
    for name, model in config.items():
        assert model.base_path == f"/models/{name}"
        assert model.model_platform == "tensorflow"
        assert model.model_version_policy.HasField("all")
    assert read_golden(tmp_path) == [("de-en", 5), ("zh-en", 1)]


def test_a_new_version_is_canary_and_stable_stays_where_it_is(tmp_path):
    add_version(tmp_path, "demo", 1)
    assert update(tmp_path) == {"demo": {"stable": 1, "canary": 1}}
    add_version(tmp_path, "demo", 2)
    assert update(tmp_path) == {"demo": {"stable": 1, "canary": 2}}
    add_version(tmp_path, "demo", 3)
    assert update(tmp_path) == {"demo": {"stable": 1, "canary": 3}}
    assert dict(read_models(tmp_path)["demo"].version_labels) == {"stable": 1, "canary": 3}
    assert read_golden(tmp_path) == [("demo", 1), ("demo", 3)]


def test_stable_is_where_the_user_puts_it(tmp_path):
    for version in (1, 2):
        add_version(tmp_path, "demo", version)
        update(tmp_path)
    path = tmp_path / "serving/models.config"
    text = path.read_text()
    changed = re.sub(r'(key: "stable"\s+value: )1', r"\g<1>2", text)
    assert changed != text
    path.write_text(changed)
    add_version(tmp_path, "demo", 3)
    assert update(tmp_path) == {"demo": {"stable": 2, "canary": 3}}


def test_stable_moves_on_when_its_version_is_gone(tmp_path):
    add_version(tmp_path, "demo", 2)
    assert serving_config.update(tmp_path, {"demo": {"stable": 1}}) == {
        "demo": {"stable": 2, "canary": 2}
    }


def test_a_version_of_before_golden_requests_is_served_too(tmp_path):
    add_version(tmp_path, "demo", 1, golden=False)
    update(tmp_path)
    assert set(read_models(tmp_path)) == {"demo"}
    assert read_golden(tmp_path) == []


# ---------------------------------------------------------------- templates


def test_templates_are_copied_once_and_then_left_to_the_user(tmp_path):
    update(tmp_path)
    folder = tmp_path / "serving"
    for name in serving_config.TEMPLATES:
        assert (folder / name).read_text() == (TEMPLATES / name).read_text()
    (folder / "docker-compose.yml").write_text("mine")
    update(tmp_path)
    assert (folder / "docker-compose.yml").read_text() == "mine"
    assert {path.name for path in folder.iterdir()} == {
        *serving_config.TEMPLATES,
        "models.config",
        "golden_requests.json",
    }


def test_compose_and_kubernetes_start_the_server_alike():
    flags = []
    for name in ("docker-compose.yml", "kubernetes.yml"):
        text = (TEMPLATES / name).read_text()
        flags.append(re.findall(r"^ +- (--\S+)$", text, re.MULTILINE))
        assert "image: tensorflow/serving:2.20.0\n" in text
        for path in re.findall(r"=/models/serving/(\S+)", text):
            assert path in (*serving_config.TEMPLATES, "models.config")
    assert flags[0] == flags[1]
    assert "--allow_version_labels_for_unavailable_models=true" in flags[0]


def test_kubernetes_asks_for_health_where_monitoring_answers():
    path = re.search(r'path: "(\S+)"', (TEMPLATES / "monitoring.config").read_text())[1]
    manifest = (TEMPLATES / "kubernetes.yml").read_text()
    assert manifest.count(f"httpGet: {{path: {path}, port: rest}}") == 2
    assert f"prometheus.io/path: {path}\n" in manifest


# ---------------------------------------------------------------- what the user may have changed


def write(models, name, text):
    path = models / "serving" / name
    path.parent.mkdir()
    path.write_text(text)
    return path


def test_batch_sizes_are_those_of_the_folder_or_of_the_template(tmp_path):
    assert serving_config.read_batch_sizes(tmp_path) == [1, 2, 4, 8, 16, 32]
    write(
        tmp_path,
        "batching.config",
        "max_batch_size { value: 6 } allowed_batch_sizes: [3, 6] num_batch_threads { value: 1 }",
    )
    assert serving_config.read_batch_sizes(tmp_path) == [3, 6]


@pytest.mark.parametrize(
    "text, message",
    [
        ("max_batch_size { value: 4 }", r"must be increasing .* received \[\] and 4"),
        ("max_batch_size { value: 4 } allowed_batch_sizes: [2, 1, 4]", r"\[2, 1, 4\] and 4"),
        ("max_batch_size { value: 8 } allowed_batch_sizes: [1, 4]", r"\[1, 4\] and 8"),
        ("max_batch_size: x", ":1:"),
    ],
)
def test_batching_that_a_server_refuses_is_an_error_that_names_the_file(tmp_path, text, message):
    path = write(tmp_path, "batching.config", text)
    with pytest.raises(ValueError, match=message) as error:
        serving_config.read_batch_sizes(tmp_path)
    assert str(error.value).startswith(f"{path}:")


def test_a_models_config_that_is_none_is_an_error_before_anything_is_exported(run, tmp_path):
    path = write(tmp_path, "models.config", "model_config_list {")
    command = run_main(run, "--output", tmp_path)
    assert command.status == 2 and command.err.startswith(f"error: {path}:1:")
    assert list((tmp_path / "demo").iterdir()) == []

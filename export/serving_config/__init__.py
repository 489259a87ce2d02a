"""`DIR/serving`: what TensorFlow Serving is started with to serve every model of DIR.

Beside this file are the templates of what the user may change: they are copied where they are
missing, and left alone from then on. `models.config` and `golden_requests.json` say what is in DIR:
they are written anew by each export.
"""

import json
import os
import shutil
from pathlib import Path

from google.protobuf import text_format

from export import protos
from export.golden import GOLDEN_FILE, format_golden
from export.versions import versions_of

FOLDER = "serving"
MODELS_CONFIG = "models.config"
BATCHING_CONFIG = "batching.config"
TEMPLATES = (BATCHING_CONFIG, "monitoring.config", "docker-compose.yml", "kubernetes.yml")

Labels = dict[str, dict[str, int]]
"""{model name: {version label: version}}."""

_HEADER = """\
# The models of the folder above, which the server sees as /models. Written by `python -m export`.
# Every version there is loaded. `canary` is the newest; `stable` stays where it is until you change
# its number here. Who asks for neither gets the newest.
"""


def read_batch_sizes(models: Path) -> list[int]:
    """Return the allowed batch sizes of `DIR/serving/batching.config`, or of the template.

    Raises:
        ValueError: The server would refuse the file; the message names it.
    """
    path = models / FOLDER / BATCHING_CONFIG
    if not path.exists():
        path = Path(__file__).parent / BATCHING_CONFIG
    parameters = _read(path, protos.BatchingParameters())
    sizes = list(parameters.allowed_batch_sizes)
    maximum = parameters.max_batch_size.value
    if not sizes or sizes != sorted(set(sizes)) or sizes[-1] != maximum:
        raise ValueError(
            f"{path}: allowed_batch_sizes must be increasing and end with max_batch_size, "
            f"received {sizes} and {maximum}"
        )
    return sizes


def read_labels(models: Path) -> Labels:
    """Return the version labels of `DIR/serving/models.config`, none if there is no such file.

    Raises:
        ValueError: The file can't be read; the message names it.
    """
    path = models / FOLDER / MODELS_CONFIG
    if not path.exists():
        return {}
    config = _read(path, protos.ModelServerConfig())
    return {
        model.name: dict(model.version_labels.items()) for model in config.model_config_list.config
    }


def update(models: Path, labels: Labels) -> Labels:
    """Write `DIR/serving` for the models and versions that are in DIR.

    Args:
        models: DIR.
        labels: Those before: a `stable` that still exists stays.

    Returns:
        The labels now.
    """
    folder = models / FOLDER
    folder.mkdir(exist_ok=True)
    for name in TEMPLATES:
        if not (folder / name).exists():
            shutil.copyfile(Path(__file__).parent / name, folder / name)

    now: Labels = {}
    for model in sorted(child for child in models.iterdir() if child.is_dir()):
        if versions := versions_of(model):
            stable = labels.get(model.name, {}).get("stable")
            newest = versions[-1]
            now[model.name] = {
                "stable": stable if stable in versions else newest,
                "canary": newest,
            }
    _replace(folder / MODELS_CONFIG, _HEADER + text_format.MessageToString(_models_config(now)))
    golden = [
        {"model": name, "version": version, **request}
        for name, of_model in now.items()
        for version in sorted(set(of_model.values()))
        for request in _read_golden(models / name / str(version))
    ]
    _replace(folder / GOLDEN_FILE.name, format_golden(golden))
    return now


def _models_config(labels: Labels):
    config = protos.ModelServerConfig()
    for name, of_model in labels.items():
        model = config.model_config_list.config.add(
            name=name, base_path=f"/models/{name}", model_platform="tensorflow"
        )
        # Not `specific`: a running server moves a label only to a version that it has loaded, and
        # would not load one that the same change of the file asks for.
        model.model_version_policy.all.SetInParent()
        model.version_labels.update(of_model)
    return config


def _read_golden(version: Path) -> list[dict]:
    path = version / GOLDEN_FILE
    return json.loads(path.read_text("utf-8")) if path.exists() else []


def _read(path: Path, message):
    try:
        text = path.read_text(encoding="utf-8")
        return text_format.Parse(text, message, allow_unknown_field=True)
    except text_format.ParseError as error:
        raise ValueError(f"{path}:{error}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: {error}") from None


def _replace(path: Path, text: str) -> None:
    """Write a file that a server may be reading."""
    temporary = path.with_name(f".writing-{path.name}")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)

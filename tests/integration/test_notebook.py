"""The notebook: what its source says, run from top to bottom in a kernel, and run again."""

import os
import zipfile
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from notebooks.build import SOURCES, build
from training import phrasebook

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "notebooks/quickstart.ipynb"
# Goes into a cell after the one with the settings.
SMALLEST = """
RUN = "run"
CORPUS = "corpus.tsv"
NUM_LAYERS = 1
VOCAB_SIZE = 900
EPOCHS = 2
"""
# And this at the end, while TensorBoard runs.
ASK_TENSORBOARD = """
import json, urllib.request
from tensorboard import manager

[server] = manager.get_all()
print(json.load(urllib.request.urlopen(f"http://localhost:{server.port}/data/plugins_listing")))
"""


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_the_notebook_is_what_its_source_says(source):
    message = "make notebook writes it"
    assert source.with_suffix(".ipynb").read_text(encoding="utf-8") == build(source), message


class Executed:
    """What an executed notebook shows.

    Attributes:
        text: What its cells print, of stdout and stderr.
        errors: Of stderr alone.
        kinds: Of the other outputs, such as "image/png".
    """

    def __init__(self, notebook):
        outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
        streams = [output for output in outputs if output.output_type == "stream"]
        self.text = "".join(output.text for output in streams)
        self.errors = "".join(output.text for output in streams if output.name == "stderr")
        self.kinds = {kind for output in outputs for kind in output.get("data", {})}


def execute(folder):
    """Run all cells in a new kernel that works in `folder`."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    tagged = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    (settings,) = tagged
    place = notebook.cells.index(settings) + 1
    notebook.cells.insert(place, nbformat.v4.new_code_cell(SMALLEST))
    notebook.cells.append(nbformat.v4.new_code_cell(ASK_TENSORBOARD))
    resources = {"metadata": {"path": str(folder)}}
    client = NotebookClient(notebook, timeout=280, kernel_name="python3", resources=resources)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)}
    return Executed(client.execute(env=environment))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the notebook runs."""
    folder = tmp_path_factory.mktemp("notebook")
    pairs = phrasebook.load("train")[:240]
    lines = ["\t".join(pair) + "\n" for pair in pairs]
    (folder / "corpus.tsv").write_text("".join(lines), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def first(folder):
    return execute(folder)


@pytest.fixture(scope="module")
def files(first, folder):
    """Return when each file that the first run left was written, but for TensorBoard's logs."""
    files = [file for file in (folder / "run").rglob("*") if file.is_file()]
    return {file: file.stat().st_mtime_ns for file in files if "tfevents" not in file.name}


@pytest.fixture(scope="module")
def second(files, folder):
    return execute(folder)


def test_training_shows_epochs_scores_and_translations(first):
    assert "Epoch 1/2" in first.text and "Epoch 2/2" in first.text
    assert first.text.count(" (reference: ") == 2 * 3
    assert "BLEU" in first.text and "chrF" in first.text
    assert {"image/png", "text/html"} <= first.kinds


def test_nothing_warns(first):
    assert "warning" not in first.text.lower()
    assert first.errors == ""


def test_the_tensorboard_of_the_notebook_has_the_attention_tab(first):
    assert "'attention': {" in first.text


def test_the_archive_holds_the_exported_model(first, folder):
    (model,) = (folder / "run/exports/run").iterdir()
    with zipfile.ZipFile(folder / "run/exports.zip") as archive:
        assert f"run/{model.name}/saved_model.pb" in archive.namelist()


def test_run_again_it_goes_on_where_it_was_and_does_nothing_twice(first, second, files):
    assert "Resumed from" not in first.text
    assert "Resumed from" in second.text and "Epoch" not in second.text
    changed = [file.name for file, time in files.items() if file.stat().st_mtime_ns != time]
    assert sorted(changed) == ["config.json", "exports.zip"]
    assert second.kinds == first.kinds

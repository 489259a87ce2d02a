"""Version folders: which ones count, the next number, and what pruning removes."""

import pytest

from export.versions import next_version, prune, versions_of


@pytest.fixture
def model(tmp_path):
    """A model with versions 1, 2, 9 and 10, and with what is no version."""
    for name in ("10", "9", "2", "1", "notes", ".writing-99", "3"):
        (tmp_path / name).mkdir()
        if name != "3":  # without a SavedModel
            (tmp_path / name / "saved_model.pb").touch()
    (tmp_path / "77").touch()
    return tmp_path


def names(model):
    return sorted(path.name for path in model.iterdir())


def test_versions_are_numbered_folders_with_a_saved_model(model):
    assert versions_of(model) == [1, 2, 9, 10]


def test_the_next_version_is_above_every_number(model):
    assert next_version(model) == 78
    (model / "empty").mkdir()
    assert next_version(model / "empty") == 1


def test_pruning_keeps_the_newest_and_what_is_spared(model):
    assert prune(model, keep=1, spare={1}) == [2, 9]
    assert versions_of(model) == [1, 10]
    assert names(model) == [".writing-99", "1", "10", "3", "77", "notes"]


@pytest.mark.parametrize("keep", [4, 5])
def test_pruning_removes_nothing_where_there_is_no_more(model, keep):
    before = names(model)
    assert prune(model, keep, spare=()) == []
    assert names(model) == before

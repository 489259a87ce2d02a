"""`python -m training`: a mistake in the arguments is one line on stderr and exit status 2.

Only mistakes: a whole run takes longer than these tests together.
"""

import json
import os
import threading

import keras
import pytest

import training.run
from training.__main__ import main
from training.config import RunConfig
from training.vocabulary import train_vocabulary


@pytest.fixture(autouse=True)
def nothing_is_trained(monkeypatch):
    """Fail where training would begin, and leave alone the tokenizers that other tests share."""

    def too_far(*args, **kwargs):
        pytest.fail("the mistake was not noticed")

    monkeypatch.setattr(training.run, "train_vocabulary", too_far)
    monkeypatch.setattr(keras.utils, "set_random_seed", lambda seed: None)


@pytest.fixture
def corpus(tmp_path):
    """Return a function that writes a file of the corpus and gives its path."""

    def write(name, text):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


@pytest.fixture
def good(corpus):
    return corpus("good.tsv", "你好。\tHello.\n谢谢。\tThank you.\n")


@pytest.fixture
def error_line(tmp_path, capsys):
    """Return a function that runs the command and gives its line on stderr."""

    def run(*arguments, output=tmp_path / "run"):
        assert main([str(argument) for argument in ("--output", output, *arguments)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("error: ")
        return line

    return run


# Corpora


@pytest.mark.parametrize("split", ["train", "valid"])
def test_a_missing_corpus_is_named(error_line, good, tmp_path, split):
    files = {"train": good, "valid": good, split: tmp_path / "missing.tsv"}
    line = error_line("--train", files["train"], "--valid", files["valid"])
    assert str(tmp_path / "missing.tsv") in line and "No such file" in line


def test_a_folder_as_corpus_is_named(error_line, good, tmp_path):
    line = error_line("--train", tmp_path, "--valid", good)
    assert str(tmp_path) in line and "directory" in line


def test_line_aligned_files_of_unequal_length_are_named_with_their_lengths(
    error_line, corpus, good
):
    source = corpus("train.zh", "你好。\n谢谢。\n再见。\n")
    target = corpus("train.en", "Hello.\nThank you.\n")
    line = error_line("--train", f"{source},{target}", "--valid", good)
    assert f"{source} has 3 lines" in line and f"{target} has 2 lines" in line


@pytest.mark.parametrize("split", ["train", "valid"])
@pytest.mark.parametrize("text", ["", "no tab\n", "\tno source\nno target\t\n"])
def test_a_corpus_without_a_usable_pair_is_named(error_line, corpus, good, split, text):
    bad = corpus("bad.tsv", text)
    files = {"train": good, "valid": good, split: bad}
    line = error_line("--train", files["train"], "--valid", files["valid"])
    assert str(bad) in line and "no usable pair" in line


def test_a_damaged_gz_file_is_named(error_line, good, tmp_path):
    damaged = tmp_path / "train.tsv.gz"
    damaged.write_bytes(b"\x1f\x8b no more of it")
    assert str(damaged) in error_line("--train", damaged, "--valid", good)


def test_a_pipe_with_too_many_pairs_to_keep_is_named(error_line, good, tmp_path, monkeypatch):
    monkeypatch.setattr(training.run, "MAX_PAIRS", 2)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    threading.Thread(target=pipe.write_bytes, args=(good.read_bytes(),), daemon=True).start()
    line = error_line("--train", pipe, "--valid", good)
    assert str(pipe) in line and "is not a regular file" in line


@pytest.mark.parametrize("given, missing", [("train", "valid"), ("valid", "train")])
def test_one_corpus_without_the_other_is_an_error(error_line, good, given, missing):
    assert f"{missing} is missing" in error_line(f"--{given}", good)


# Options


def test_a_config_file_that_is_missing_is_named(error_line, tmp_path):
    assert str(tmp_path / "missing.toml") in error_line("--config", tmp_path / "missing.toml")


@pytest.mark.parametrize(
    "text, said",
    [
        ("[training", "no TOML file"),
        ("[training]\nbatch_size = 64\n", "'batch_size'"),
        ("[training]\nmax_steps = '9'\n", "max_steps"),
        ("[model]\nnum_heads = 3\n", "num_heads"),
        ("[model]\npreset = 'huge'\n", "preset"),
    ],
)
def test_a_mistake_in_the_config_file_is_named_with_the_file(error_line, corpus, text, said):
    path = corpus("options.toml", text)
    line = error_line("--config", path)
    assert str(path) in line and said in line


@pytest.mark.parametrize(
    "option, value, name",
    [
        ("--max-steps", "0", "max_steps"),
        ("--max-minutes", "-1", "max_minutes"),
        ("--max-minutes", "nan", "max_minutes"),
        ("--seed", "-1", "seed"),
    ],
)
def test_a_value_outside_its_range_is_named(error_line, option, value, name):
    line = error_line(option, value)
    assert f"{name} must" in line and value in line


@pytest.mark.parametrize(
    "arguments, named",
    [
        (["--preset", "huge"], "--preset"),
        (["--max-steps", "many"], "--max-steps"),
        (["--max-minutes", "soon"], "--max-minutes"),
        (["--epochs", "3"], "--epochs"),
    ],
)
def test_arguments_that_do_not_parse_end_with_status_2(tmp_path, capsys, arguments, named):
    with pytest.raises(SystemExit) as exit:
        main(["--output", str(tmp_path / "run"), *arguments])
    assert exit.value.code == 2
    assert named in capsys.readouterr().err.splitlines()[-1]


def test_output_is_required(capsys):
    with pytest.raises(SystemExit) as exit:
        main([])
    assert exit.value.code == 2
    assert "--output" in capsys.readouterr().err.splitlines()[-1]


# Warm start


def write_run(folder, config):
    """Write a run directory with the small model and a vocabulary of 1 + 1 sentences."""
    folder.mkdir()
    model = RunConfig(model={"preset": "small"}).model_config(400, None).to_dict()
    (folder / "config.json").write_text(json.dumps({"model": {**model, **config}}))
    (folder / "tokenizer.model").write_bytes(train_vocabulary(["你好。", "Hello."], 300))
    return folder


def test_a_run_to_start_from_that_is_not_there_is_named(error_line, tmp_path):
    line = error_line("--init-from", tmp_path / "gone")
    assert (
        line == f"error: init_from: {tmp_path / 'gone' / 'config.json'}: No such file or directory"
    )


def test_a_shape_that_the_run_does_not_have_is_an_error_before_anything_is_read(
    error_line, tmp_path
):
    run = write_run(tmp_path / "earlier", {})
    line = error_line("--init-from", run, "--preset", "tiny")
    assert line == (
        f"error: init_from {run}: num_encoder_layers must be 3 as in that run, received 4"
    )


def test_a_tag_that_a_kept_vocabulary_lacks_is_named(error_line, corpus, tmp_path, good):
    run = write_run(tmp_path / "earlier", {})
    config = corpus("options.toml", f'[training]\ninit_from = "{run}"\ntags = ["<2en>"]\n')
    line = error_line("--config", config, "--train", good, "--valid", good)
    assert f"{run} lacks <2en>" in line and "extend" in line


# The run directory


def test_a_run_that_is_there_is_not_overwritten(error_line, tmp_path):
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model": {}}))
    line = error_line(output=tmp_path)
    assert str(tmp_path) in line and "--resume" in line
    assert json.loads(config.read_text()) == {"model": {}}


def test_an_output_that_is_a_file_is_named(error_line, good):
    assert f"--output {good} is a file" in error_line(output=good)


def test_a_mistake_in_the_options_leaves_no_run_directory(error_line, tmp_path):
    error_line("--max-steps", "0", output=tmp_path / "run")
    assert not (tmp_path / "run").exists()

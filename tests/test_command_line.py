"""`python -m keras_transformer` translates by runs and exports; and all commands answer --help."""

import contextlib
import io
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import tensorflow as tf
from test_export import write_run

from keras_transformer import DecodingConfig
from keras_transformer.__main__ import main
from keras_transformer.translator import Translator

PROJECT = Path(__file__).parents[1]
TEXTS = ["你好。", "How are you?", "", "茶"]


def run_main(*arguments, stdin=b""):
    """Return the exit status, stdout and stderr of the command, run in this process."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = main([str(argument) for argument in arguments])
    return SimpleNamespace(status=status, out=out.getvalue(), err=err.getvalue())


def run_python(*arguments, stdin=b""):
    """Return the finished process of Python in the project's folder."""
    return subprocess.run(
        [sys.executable, *map(str, arguments)], cwd=PROJECT, input=stdin, capture_output=True
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture(scope="module")
def translated(run):
    """What Python's translator makes of TEXTS."""
    return Translator.from_run(run)(TEXTS)


class Answers(tf.Module):
    """Stands for a translator: gives each text back behind a word of its own."""

    def __init__(self, word):
        super().__init__()
        self.word = word

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")])
    def translate(self, text):
        return {"translation": tf.strings.join([self.word, text], separator=" ")}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Models that say which of them was asked: versions 9 and 10, and one without a signature."""
    folder = tmp_path_factory.mktemp("models")
    for name, word in (("m/9", "nine"), ("m/10", "ten"), ("lines/1", "one\ntwo\u2028three")):
        module = Answers(word)
        signatures = {"serving_default": module.translate}
        tf.saved_model.save(module, str(folder / name), signatures=signatures)
    module = Answers("other")
    tf.saved_model.save(module, str(folder / "other"), signatures={"other": module.translate})
    (folder / "damaged").mkdir()
    (folder / "damaged/saved_model.pb").write_bytes(b"damaged")
    (folder / "empty").mkdir()
    return folder


# ---------------------------------------------------------------- runs


def test_a_run_translates_its_arguments(run, translated):
    command = run_main(run, *TEXTS)
    assert command.status == 0
    assert command.out.split("\n") == [*(" ".join(t.splitlines()) for t in translated), ""]
    assert command.err == ""


def test_a_fresh_process_translates_the_lines_of_stdin(run, translated):
    # The last bytes are no UTF-8: an answer, not an error.
    process = run_python(
        *("-m", "keras_transformer", run), stdin="\n".join(TEXTS).encode() + b"\r\n\xff\n"
    )
    assert process.returncode == 0, process.stderr
    lines = process.stdout.decode().split("\n")
    assert lines[: len(TEXTS)] == [" ".join(text.splitlines()) for text in translated]
    assert len(lines) == len(TEXTS) + 2 and lines[-1] == ""


@pytest.mark.parametrize("name, value", [("beam_size", 1), ("length_penalty", 5.0)])
def test_the_search_in_a_run_can_be_chosen(run, translated, name, value):
    want = Translator.from_run(run, DecodingConfig(**{name: value}))(TEXTS)
    assert want != translated
    option = "--" + name.replace("_", "-")
    assert run_main(run, option, value, *TEXTS).out.splitlines() == [
        " ".join(text.splitlines()) for text in want
    ]


# ---------------------------------------------------------------- exports


def test_a_version_is_used_as_named(models):
    command = run_main(models / "m/9", "a", "b")
    assert (command.status, command.out, command.err) == (0, "nine a\nnine b\n", "")


def test_a_model_is_used_in_its_highest_version(models):
    assert run_main(models / "m", "a").out == "ten a\n"


def test_texts_come_from_stdin_when_there_are_no_arguments(models):
    # A line ends at \n: U+2028 and a form feed are text.
    stdin = "a b\r\n\n  c\u2028d\fe\nlast".encode()
    command = run_main(models / "m", stdin=stdin)
    assert command.out.split("\n") == ["ten a b", "ten ", "ten   c d e", "ten last", ""]
    assert run_main(models / "m", "argument", stdin=stdin).out == "ten argument\n"


def test_bytes_that_are_no_utf8_are_read_as_replacement_characters(models):
    assert run_main(models / "m", stdin=b"\xff a\nb").out == "ten \ufffd a\nten b\n"


def test_no_lines_give_no_lines(models):
    command = run_main(models / "m")
    assert (command.status, command.out, command.err) == (0, "", "")


def test_many_texts_keep_their_order(models):
    texts = [f"{'a' * (i * 37 % 101)} {i}" for i in range(200)]
    command = run_main(models / "m", stdin="\n".join(texts).encode())
    assert command.out.splitlines() == [f"ten {text}" for text in texts]


def test_a_translation_of_several_lines_is_printed_on_one(models):
    assert run_main(models / "lines", "a").out == "one two three a\n"


# ---------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    "model, options, message",
    [
        ("missing", [], "missing: no such directory"),
        ("empty", [], "empty: no SavedModel"),
        ("damaged", [], "damaged: "),
        ("other", [], "other: has no signature serving_default"),
        ("m/9", ["--beam-size", "2"], "beam size can't be set"),
    ],
)
def test_a_mistake_is_exit_2_and_one_line(models, model, options, message):
    command = run_main(models / model, *options, "text")
    assert command.status == 2
    assert command.out == ""
    assert command.err.startswith("error: ") and command.err.count("\n") == 1
    assert message in command.err


def test_a_run_that_is_not_whole_is_exit_2(run, tmp_path):
    (tmp_path / "config.json").write_text((run / "config.json").read_text())
    command = run_main(tmp_path, "text")
    assert command.status == 2
    assert "tokenizer.model: no such file" in command.err
    assert run_main(run, "--beam-size", 0, "text").err == (
        "error: beam_size must be a positive integer, received 0\n"
    )


def test_a_mistake_shows_no_traceback(tmp_path):
    process = run_python("-m", "keras_transformer", tmp_path / "missing", "text")
    assert process.returncode == 2
    assert process.stdout == b""
    last_line = process.stderr.decode().splitlines()[-1]
    assert last_line == f"error: {tmp_path / 'missing'}: no such directory"
    assert b"Traceback" not in process.stderr


def test_arguments_that_do_not_parse_are_exit_2(capsys):
    for arguments in ([], ["run", "--beam-size", "x"], ["run", "--no-such"]):
        with pytest.raises(SystemExit) as exit_:
            main(arguments)
        assert exit_.value.code == 2
        assert "usage: python -m keras_transformer" in capsys.readouterr().err


# ---------------------------------------------------------------- --help

HELP = """
import runpy, sys
name = sys.argv[1]
sys.argv[1:] = ["--help"]
try:
    runpy.run_module(name, run_name="__main__", alter_sys=True)
finally:
    loaded = {"tensorflow", "keras", "tensorflow_text"} & sys.modules.keys()
    print("loaded:", *sorted(loaded))
"""


@pytest.mark.parametrize(
    "command",
    ["training", "training.evaluate", "training.phrasebook", "export", "keras_transformer"],
)
def test_help_answers_without_tensorflow(command):
    process = run_python("-c", HELP, command)
    assert process.returncode == 0, process.stderr
    lines = process.stdout.decode().splitlines()
    assert lines[0].startswith(f"usage: python -m {command} ")
    assert lines[-1] == "loaded:"

"""`python -m attention_viewer` and `show_attention`: pages of runs and of exported SavedModels."""

import base64
import html
import json
import re

import numpy as np
import pytest
import tensorflow as tf
from attention_snapshots import snapshot
from test_attention_summary import decode
from test_translator import SENTENCES, train_tokenizer, write_run

from attention_viewer import show_attention
from attention_viewer.__main__ import main
from attention_viewer.page import write_page
from keras_transformer import Translator


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("runs") / "run", {}, train_tokenizer(SENTENCES))


class Served(tf.Module):
    """Stands for an export: its translation is the text, character by character."""

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")])
    def serving_default(self, text):
        return {"translation": text}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")])
    def attention(self, text):
        characters = tf.strings.unicode_split(text, "UTF-8")
        ends = tf.fill([characters.nrows(), 1], "</s>")
        tokens = tf.concat([characters, ends], axis=1)
        length = tf.cast(tf.reduce_max(tokens.row_lengths()), tf.int32)
        mask = tf.sequence_mask(tokens.row_lengths(), length, tf.float32)
        weights = tf.eye(length) * mask[:, tf.newaxis, tf.newaxis, tf.newaxis, :]
        return {
            "source_tokens": tokens.to_tensor(""),
            "target_tokens": tokens.to_tensor(""),
            "cross_attention": tf.tile(weights, [1, 2, 3, 1, 1]),
            "translation": text,
        }


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exports")
    served = Served()
    for name, signatures in (
        ("good/1", ("serving_default", "attention")),
        ("old/1", ["serving_default"]),
    ):
        tf.saved_model.save(
            served, str(folder / name), {name: getattr(served, name) for name in signatures}
        )
    return folder


def data_of(page):
    """Return what a page shows: its data, and the decoded snapshots."""
    (text,) = re.findall(
        r'<script type="application/json" id="attention-data">(.*?)</script>', page
    )
    data = json.loads(text)
    return data, {t: decode(base64.b64decode(p)) for t, p in data["payloads"].items()}


def run_main(capsys, *arguments):
    """Return exit status, stdout and stderr."""
    status = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_a_run_gives_a_page_with_all_its_attention(run, tmp_path, capsys):
    output = tmp_path / "new folder" / "page.html"
    texts = ("你好。", "Hello")
    arguments = [word for text in texts for word in ("--text", text)]
    status, out, err = run_main(capsys, run, *arguments, "--output", output)
    assert (status, err) == (0, "")
    assert out.splitlines() == [*Translator.from_run(run)(texts), str(output)]
    data, snapshots = data_of(output.read_text("utf-8"))
    assert [probe["source"] for probe in data["runs"][str(run)].values()] == list(texts)
    header, _ = snapshots["text-1"]
    assert [m["name"] for m in header["maps"]] == ["encoder", "translation"]


def test_references_are_shown_too(run, tmp_path, capsys):
    output = tmp_path / "page.html"
    status, *_ = run_main(
        capsys, run, "--text", "你好。", "--reference", "Hello.", "--output", output
    )
    assert status == 0
    header, _ = data_of(output.read_text("utf-8"))[1]["text-1"]
    assert header["texts"]["reference"] == "Hello."
    assert [m["name"] for m in header["maps"]] == ["encoder", "decoder", "cross", "translation"]


def test_an_export_gives_the_cross_attention_of_its_translation(exported, tmp_path, capsys):
    output = tmp_path / "page.html"
    status, out, _ = run_main(
        capsys, exported / "good", "--text", "你好", "--text", "你", "--output", output
    )
    assert (status, out) == (0, f"你好\n你\n{output}\n")
    _, snapshots = data_of(output.read_text("utf-8"))
    header, (weights,) = snapshots["text-2"]
    assert header["sequences"]["source"] == {"pieces": ["你", "</s>"], "special": [1]}
    np.testing.assert_allclose(weights, np.broadcast_to(np.eye(2), (2, 3, 2, 2)))


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["none"], "none: no such directory"),
        (["old/1"], "has no signature attention"),
        (["good/1", "--reference", "a"], "references need a run directory"),
        (["good/1", "--reference", "a", "--reference", "b"], "received 2 for 1"),
    ],
)
def test_what_can_not_be_shown_is_said(exported, tmp_path, capsys, arguments, message):
    model, *others = arguments
    status, out, err = run_main(
        capsys, exported / model, *others, "--text", "a", "--output", tmp_path / "page.html"
    )
    assert (status, out) == (2, "")
    assert err.startswith("error: ") and message in err and len(err.splitlines()) == 1
    assert not (tmp_path / "page.html").exists()


def test_an_output_that_can_not_be_written_is_named(exported, tmp_path, capsys):
    (tmp_path / "file").touch()
    status, _, err = run_main(
        capsys, exported / "good", "--text", "a", "--output", tmp_path / "file" / "page.html"
    )
    assert status == 1
    assert "page.html" in err and len(err.splitlines()) == 1


@pytest.mark.parametrize("missing", ["--text", "--output"])
def test_text_and_output_are_required(capsys, missing):
    arguments = [word for option in {"--text", "--output"} - {missing} for word in (option, "x")]
    with pytest.raises(SystemExit) as exit:
        main(["run", *arguments])
    assert exit.value.code == 2
    assert missing in capsys.readouterr().err


def test_a_notebook_shows_the_page_in_a_frame(run):
    translator = Translator.from_run(run)
    page = show_attention(translator, "你好。", references=["Hello."], height=500)
    shown = page._repr_html_()
    assert shown.startswith("<iframe") and 'height="500"' in shown
    (content,) = re.findall(r'srcdoc="([^"]*)"', shown)
    assert html.unescape(content) == page.html
    with pytest.raises(ValueError, match="at least one text"):
        show_attention(translator)


def test_nothing_in_the_data_ends_the_script():
    hostile = ("</script><script>alert(1)</script>", "<!--", "</s>")
    page = write_page([snapshot(source=hostile)], "</title><script>alert(2)</script>")
    assert "alert(1)</script>" not in page and "<script>alert(2)" not in page
    header, _ = data_of(page)[1]["text-1"]
    assert header["sequences"]["source"]["pieces"] == list(hostile)


def test_the_page_refers_to_nothing_outside_of_it():
    page = write_page([snapshot()], "run")
    outside = page.replace("http-equiv", "").replace("http://www.w3.org/2000/svg", "")
    assert "http" not in outside and "src=" not in outside and "@import" not in outside
    (modules,) = re.findall(r'<script type="importmap">(.*?)</script>', page)
    names = set(json.loads(modules)["imports"])
    for address in json.loads(modules)["imports"].values():
        code = base64.b64decode(address.partition("base64,")[2]).decode()
        assert set(re.findall(r'from "([^"]+)"', code)) <= names

"""The export: its signatures, the texts it stands, its graph, and folders that are whole or absent.

One tiny run with random weights is exported once, by the command, and most tests ask that export.
"""

import contextlib
import json
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_text as tf_text
from exporting import CHINESE, ENGLISH, run_main, write_run

from export.__main__ import ExportError, _verify, main
from export.signatures import save
from export.verify import VerificationError, allowed_ops, check_graph, check_translations
from export.versions import versions_of
from keras_transformer import DecodingConfig
from keras_transformer.tokenizer import Tokenizer
from keras_transformer.translator import Translator
from training.vocabulary import train_vocabulary

TEXTS = [*CHINESE[:6], "", *ENGLISH[:3], " ", "茶"]
BLANK = ["", " ", "\t\r\n", "\u3000\u00a0\u2003"]
ODD = {
    "empty": "",
    "blank": " ",
    "invalid bytes": b"\xff\xfe",
    "cut UTF-8": "你好".encode()[:-1],
    "surrogate": b"\xed\xa0\x80",
    "overlong": b"\xc0\xaf",
    "NUL": b"\0",
    "NUL inside": b"tea\0tea",
    "replacement": "\ufffd",
    "emoji": "👩‍👩‍👧‍👦 🌍 🏳️‍🌈",
    "right to left": "שלום עולם، مرحبا",
    "override": "\u202eabc\u202c",
    "combining": "e" + "\u0301" * 500,
    "special pieces": "<pad> <unk> <s> </s>",
    "piece's space": "▁▁a▁",
    "beyond the BMP": "\U0010ffff\U0001f9ff𠜎",
    "long": "a" * 100_000,
    "long Chinese": "你好。" * 33_334,
}
NAUGHTY_STRINGS = Path(__file__).parents[2] / "shared/data/naughty-strings/blns.json"
SIGNATURES = {
    "serving_default": {"translation": (tf.string, 1)},
    "translate": {
        "translation": (tf.string, 1),
        "score": (tf.float32, 1),
        "num_tokens": (tf.int32, 1),
        "truncated": (tf.bool, 1),
    },
    "n_best": {"translations": (tf.string, 2), "scores": (tf.float32, 2)},
    "score": {"log_prob": (tf.float32, 1), "num_tokens": (tf.int32, 1)},
    "attention": {
        "source_tokens": (tf.string, 2),
        "target_tokens": (tf.string, 2),
        "cross_attention": (tf.float32, 5),
        "translation": (tf.string, 1),
    },
    "sample": {"translation": (tf.string, 1), "score": (tf.float32, 1)},
}
INPUTS = {
    "score": {"source": tf.string, "target": tf.string},
    "sample": {
        "text": tf.string,
        "temperature": tf.float32,
        "top_k": tf.int32,
        "top_p": tf.float32,
        "seed": tf.int32,
    },
}


def feed(name, texts):
    """Return inputs of a signature: the texts, and zeros for what is no string."""
    inputs = INPUTS.get(name, {"text": tf.string})
    return {
        key: tf.constant(texts, tf.string) if dtype == tf.string else tf.zeros(len(texts), dtype)
        for key, dtype in inputs.items()
    }


@pytest.fixture(scope="module")
def translator(run):
    return Translator.from_run(run)


@pytest.fixture(scope="module")
def expected(translator):
    """What Python's translator answers to TEXTS: `n_best`, from which the rest follows."""
    answer = tf.function(translator.n_best)(tf.constant(TEXTS))
    answer["scores"] = tf.maximum(answer["scores"], tf.float32.min)  # JSON has no infinity
    return {name: value.numpy() for name, value in answer.items()}


@pytest.fixture(scope="module")
def signatures(exported):
    loaded = tf.saved_model.load(str(exported))
    yield loaded.signatures
    del loaded  # the signatures alone don't keep its variables alive


@pytest.fixture(scope="module")
def ask(signatures):
    """Return a function that translates a list of texts by `serving_default`, bytes to bytes."""

    def translate(texts):
        batch = tf.constant(texts, tf.string)
        return signatures["serving_default"](text=batch)["translation"].numpy().tolist()

    return translate


# ---------------------------------------------------------------- the command


def test_the_command_names_the_folder_on_the_last_line_of_stdout(command, exported):
    assert command.out.splitlines()[-1] == str(exported)


def test_the_folder_holds_a_saved_model_that_any_user_may_read(exported):
    assert {path.name for path in exported.iterdir()} >= {"saved_model.pb", "variables"}
    assert not (exported / "assets").exists() or not list((exported / "assets").iterdir())
    assert stat.S_IMODE(exported.stat().st_mode) == 0o755
    assert [path.name for path in exported.parent.iterdir()] == ["1"]  # nothing temporary is left


def test_weights_are_stored_once(exported, translator):
    prefix = str(exported / "variables/variables")
    shapes = tf.train.load_checkpoint(prefix).get_variable_to_shape_map()
    sizes = [int(np.prod(shape)) for name, shape in shapes.items() if "OBJECT_GRAPH" not in name]
    num_parameters = translator.model.count_params()
    assert sum(sizes) == num_parameters
    stored = sum(path.stat().st_size for path in (exported / "variables").glob("*.data-*"))
    assert 4 * num_parameters <= stored < 1.5 * 4 * num_parameters


def test_beam_size_and_length_penalty_are_part_of_the_graph(run, tmp_path):
    options = ["--name", "zh-en.v2", "--version", "20", "--beam-size", 2, "--length-penalty", 0]
    (tmp_path / "run").symlink_to(run)
    with contextlib.chdir(tmp_path):  # a relative folder means the same to the verification
        command = run_main("run", "--output", "models", *options)
    assert command.status == 0, command.err
    assert command.out.splitlines()[-1] == "models/zh-en.v2/20"

    loaded = tf.saved_model.load(str(tmp_path / "models/zh-en.v2/20"))
    batch = tf.constant(TEXTS)
    answer = loaded.signatures["n_best"](text=batch)
    assert answer["translations"].shape == (len(TEXTS), 2)
    want = tf.function(
        Translator.from_run(run, DecodingConfig(beam_size=2, length_penalty=0.0)).n_best
    )(batch)
    np.testing.assert_array_equal(answer["translations"], want["translations"])
    scores = np.maximum(want["scores"], tf.float32.min)  # for JSON, which has no infinity
    np.testing.assert_allclose(answer["scores"], scores, rtol=1e-5)


def test_separate_vocabularies_stay_separate(tmp_path):
    translator = Translator.from_run(write_run(tmp_path / "run", separate_vocabularies=True))
    save(translator, str(tmp_path / "1"))
    check_translations(tmp_path / "1", TEXTS, translator(TEXTS))


class OnlyTokenizer(tf.Module):
    def __init__(self, texts):
        super().__init__()
        self.tokenizer = Tokenizer(train_vocabulary(texts, 330))

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")])
    def encode(self, text):
        return self.tokenizer.encode(text, 99)[0]


def test_two_exports_in_one_process_keep_their_vocabularies(tmp_path):
    modules = [OnlyTokenizer(CHINESE), OnlyTokenizer(ENGLISH)]
    for i, module in enumerate(modules):
        tf.saved_model.save(module, str(tmp_path / str(i)))
    loaded = [tf.saved_model.load(str(tmp_path / str(i))) for i in range(len(modules))]
    texts = tf.constant(["How are you?", "你好。"])
    for module, same in zip(modules, loaded, strict=True):
        np.testing.assert_array_equal(same.encode(texts), module.encode(texts))


# ---------------------------------------------------------------- signatures


def test_the_signatures_are_those_of_the_contract(signatures):
    assert set(signatures) == set(SIGNATURES)
    for name, outputs in SIGNATURES.items():
        arguments, keywords = signatures[name].structured_input_signature
        assert arguments == ()
        assert {key: (spec.dtype, spec.shape.as_list()) for key, spec in keywords.items()} == {
            key: (dtype, [None]) for key, dtype in INPUTS.get(name, {"text": tf.string}).items()
        }
        found = signatures[name].structured_outputs
        assert {key: (spec.dtype, spec.shape.rank) for key, spec in found.items()} == outputs


@pytest.mark.parametrize("batch_size", [0, 1, 3])
def test_every_output_has_the_batch_in_dimension_0(signatures, batch_size):
    for name, outputs in SIGNATURES.items():
        answer = signatures[name](**feed(name, TEXTS[:batch_size]))
        for output, (dtype, rank) in outputs.items():
            assert answer[output].dtype == dtype
            assert answer[output].shape.rank == rank
            assert answer[output].shape[0] == batch_size
    assert signatures["n_best"](**feed("n_best", TEXTS))["scores"].shape[1] == 4


def test_signatures_answer_as_python_does(signatures, translator, expected):
    translations = expected["translations"][:, 0]
    assert len(set(translations)) > len(TEXTS) / 2  # so that the test can tell them apart
    want = {
        "serving_default": {"translation": translations},
        "translate": {
            "translation": translations,
            "score": expected["scores"][:, 0],
            "num_tokens": expected["num_tokens"][:, 0],
            "truncated": expected["truncated"],
        },
        "n_best": {name: expected[name] for name in ("translations", "scores")},
    }
    for name, outputs in want.items():
        answer = signatures[name](text=tf.constant(TEXTS))
        assert set(answer) == set(outputs)
        for output, value in outputs.items():
            if value.dtype == np.float32:
                np.testing.assert_allclose(answer[output], value, rtol=1e-5)
            else:
                np.testing.assert_array_equal(answer[output], value)
    assert translator(TEXTS) == [text.decode() for text in translations]


def test_n_best_begins_with_the_translation_and_falls(signatures):
    batch = tf.constant(TEXTS)
    best, one = signatures["n_best"](text=batch), signatures["translate"](text=batch)
    np.testing.assert_array_equal(best["translations"][:, 0], one["translation"])
    np.testing.assert_allclose(best["scores"][:, 0], one["score"], rtol=1e-6)
    assert np.all(np.diff(best["scores"], axis=1) <= 0)


def test_truncated_tells_which_texts_were_cut(signatures):
    answer = signatures["translate"](text=tf.constant(["你好。", "你好。" * 30, ""]))
    assert answer["truncated"].numpy().tolist() == [False, True, False]


def test_a_wrong_rank_is_an_error(exported):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        # In the place of the signatures' inputs: Python's session would check their shape, the
        # server's does not.
        anything = tf.compat.v1.placeholder(tf.string, shape=None)
        names = set(SIGNATURES) - set(INPUTS)  # those whose only input is the text
        inputs = {f"{name}_text:0": anything for name in names}
        meta_graph = tf.compat.v1.saved_model.load(
            session, ["serve"], str(exported), input_map=inputs
        )
        for name in names:
            output = next(iter(meta_graph.signature_def[name].outputs.values())).name
            assert len(session.run(output, {anything: ["a"]})) == 1
            for wrong in ("a", [["a"]], [["a", "b"], ["c", "d"]]):
                with pytest.raises(tf.errors.InvalidArgumentError, match="not compatible"):
                    session.run(output, {anything: wrong})


# ---------------------------------------------------------------- any text, any batch


def test_a_translation_does_not_depend_on_the_batch(ask):
    alone = [ask([text])[0] for text in TEXTS]
    assert ask(TEXTS) == alone
    assert ask(TEXTS[::-1]) == alone[::-1]
    assert ask([*TEXTS, "a " * 50])[: len(TEXTS)] == alone
    assert ask([TEXTS[1]] * 7) == [alone[1]] * 7


def test_texts_without_a_token_have_empty_translations(ask):
    assert ask(BLANK) == [b""] * len(BLANK)
    assert ask(["你好。", *BLANK])[1:] == [b""] * len(BLANK)


@pytest.mark.parametrize("name", ODD)
def test_an_odd_text_has_an_answer_and_leaves_its_neighbours_alone(ask, name):
    text = ODD[name]
    alone = ask([text])[0]
    alone.decode()  # raises unless it is UTF-8
    before, after = ask(["你好。"])[0], ask(["How are you?"])[0]
    assert ask(["你好。", text, "How are you?"]) == [before, alone, after]


def test_invalid_bytes_are_read_as_replacement_characters(ask):
    assert ask([b"tea\xff", b"\x80 tea"]) == ask(["tea\ufffd", "\ufffd tea"])


def test_naughty_strings_have_answers_that_do_not_depend_on_the_batch(ask):
    if not NAUGHTY_STRINGS.is_file():
        pytest.skip(f"{NAUGHTY_STRINGS} is not there")
    texts = json.loads(NAUGHTY_STRINGS.read_text(encoding="utf-8"))
    assert len(texts) > 400
    answers = [answer for i in range(0, len(texts), 64) for answer in ask(texts[i : i + 64])]
    assert len([answer.decode() for answer in answers]) == len(texts)
    backwards = texts[::-1]
    again = [answer for i in range(0, len(texts), 100) for answer in ask(backwards[i : i + 100])]
    assert again[::-1] == answers


# ---------------------------------------------------------------- without this project

STRANGER = """
import importlib.util, json, sys, threading
from pathlib import Path

folder, texts = sys.argv[1], json.load(sys.stdin)
tf_text = Path(importlib.util.find_spec("tensorflow_text").origin).parent
for name in ("keras", "tensorflow_text", "keras_transformer", "export", "training"):
    sys.modules[name] = None  # so that importing it fails

import tensorflow as tf

tf.load_op_library(str(tf_text / "python/ops/_sentencepiece_tokenizer.so"))
with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    meta_graph = tf.compat.v1.saved_model.load(session, ["serve"], folder)

    def ask(signature, output):
        signature = meta_graph.signature_def[signature]
        feeds = {signature.inputs["text"].name: texts}
        return session.run(signature.outputs[output].name, feeds).tolist()

    def decode(value):
        return [decode(v) for v in value] if isinstance(value, list) else value.decode()

    answers = {
        "serving_default": decode(ask("serving_default", "translation")),
        "translate": decode(ask("translate", "translation")),
        "n_best": decode(ask("n_best", "translations")),
        "score": ask("translate", "score"),
        "threads": [],
    }

    def repeat():
        for _ in range(5):
            answers["threads"].append(decode(ask("serving_default", "translation")))

    threads = [threading.Thread(target=repeat) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
assert not any(sys.modules.get(name) for name in ("keras", "tensorflow_text"))
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def stranger(exported, run, tmp_path_factory):
    """Answers of a process with TensorFlow and one op library, when run and export have moved."""
    folder = tmp_path_factory.mktemp("stranger")
    moved, hidden = folder / "moved", run.with_name("hidden")
    shutil.copytree(exported, moved)
    shutil.rmtree(moved / "assets.extra", ignore_errors=True)
    run.rename(hidden)
    exported.rename(exported.with_name("hidden"))
    try:
        process = subprocess.run(
            [sys.executable, "-I", "-c", STRANGER, str(moved)],
            cwd=folder,
            input=json.dumps(TEXTS),
            capture_output=True,
            text=True,
        )
    finally:
        hidden.rename(run)
        exported.with_name("hidden").rename(exported)
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


def test_tensorflow_with_one_op_library_gives_the_same_strings(stranger, expected):
    want = [[text.decode() for text in row] for row in expected["translations"]]
    assert stranger["n_best"] == want
    assert stranger["translate"] == stranger["serving_default"] == [row[0] for row in want]
    np.testing.assert_allclose(stranger["score"], expected["scores"][:, 0], rtol=1e-5)


def test_threads_that_ask_at_once_get_the_same_strings(stranger):
    assert stranger["threads"] == [stranger["serving_default"]] * 20


# ---------------------------------------------------------------- the graph


def test_the_graph_passes_its_own_check(exported):
    check_graph(exported)


def double(number):
    return 2 * number


class WithPython(tf.Module):
    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="x")])
    def serve(self, x):
        return {"y": tf.ensure_shape(tf.py_function(double, [x], tf.float32), [None])}


class WithXla(tf.Module):
    @tf.function(jit_compile=True)
    def inner(self, x):
        return 2 * x

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="x")])
    def serve(self, x):
        return {"y": self.inner(x)}


class WithFile(tf.Module):
    def __init__(self, path):
        super().__init__()
        self.table = tf.lookup.StaticHashTable(
            tf.lookup.TextFileInitializer(str(path), tf.string, 0, tf.int64, 1), -1
        )

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="x")])
    def serve(self, x):
        return {"y": self.table.lookup(x)}


class WithOtherOps(tf.Module):
    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="x")])
    def serve(self, x):
        return {"y": tf_text.WhitespaceTokenizer().tokenize(x).to_tensor()}


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda path: WithPython(), "ops that TF Serving may lack: EagerPyFunc"),
        (lambda path: WithXla(), r"function \w*inner\w* needs XLA"),
        (lambda path: WithFile(path), "refers to files: words.tsv"),
        (lambda path: WithOtherOps(), "ops that TF Serving may lack: .*Whitespace"),
    ],
    ids=["python", "xla", "file", "other ops"],
)
def test_a_graph_that_a_server_can_not_run_is_rejected(tmp_path, make, message):
    words = tmp_path / "words.tsv"
    words.write_text("a\t1\n")
    module = make(words)
    tf.saved_model.save(module, str(tmp_path / "1"), signatures=module.serve)
    with pytest.raises(VerificationError, match=message):
        check_graph(tmp_path / "1")


def test_the_list_of_allowed_ops_holds_tensorflow_s_and_sentencepiece_s():
    allowed = allowed_ops()
    assert allowed - set(dir(tf.raw_ops)) == {
        "SentencepieceOp",
        "SentencepieceTokenizeOp",
        "SentencepieceDetokenizeOp",
    }
    assert {"MatMul", "While", "StatefulPartitionedCall", "VarHandleOp"} <= allowed
    assert not {op for op in allowed if op.startswith(("PyFunc", "EagerPyFunc", "Xla"))}


def test_a_missing_signature_is_found(tmp_path):
    module = WithXla()
    tf.saved_model.save(module, str(tmp_path / "1"), signatures={"other": module.serve})
    with pytest.raises(VerificationError, match="signature serving_default is missing"):
        check_translations(tmp_path / "1", ["a"], ["b"])


# ---------------------------------------------------------------- whole or absent


@pytest.fixture
def fast(monkeypatch, translator):
    """Read the run once for all, write an empty file for a SavedModel, and verify nothing."""
    monkeypatch.setattr(Translator, "from_run", lambda *arguments: translator)
    monkeypatch.setattr(
        "export.signatures.save", lambda translator, path: Path(path, "saved_model.pb").touch()
    )
    monkeypatch.setattr("export.__main__._write_requests", lambda *arguments: None)
    monkeypatch.setattr("export.__main__._verify", lambda folder, texts, translations: None)


def test_the_next_version_is_one_above_the_highest(run, tmp_path, fast):
    assert run_main(run, "--output", tmp_path).out == f"{tmp_path}/demo/1\n"
    for name in ("9", "10", "notes", ".writing-99"):
        (tmp_path / "demo" / name).mkdir()
    assert run_main(run, "--output", tmp_path).out == f"{tmp_path}/demo/11\n"
    assert run_main(run, "--output", tmp_path, "--version", 3).out == f"{tmp_path}/demo/3\n"
    assert run_main(run, "--output", tmp_path).out == f"{tmp_path}/demo/12\n"


def test_an_existing_version_is_not_touched(run, tmp_path, fast):
    existing = tmp_path / "demo/7"
    existing.mkdir(parents=True)
    (existing / "saved_model.pb").write_text("mine")
    command = run_main(run, "--output", tmp_path, "--version", 7)
    assert command.status == 2
    assert command.err == f"error: {existing} exists: choose another --version\n"
    assert [path.name for path in existing.iterdir()] == ["saved_model.pb"]
    assert (existing / "saved_model.pb").read_text() == "mine"
    assert [path.name for path in existing.parent.iterdir()] == ["7"]


def test_a_version_that_appears_meanwhile_is_not_touched(run, tmp_path, monkeypatch, fast):
    target = tmp_path / "demo/1"

    def appear(folder, texts, translations):
        target.mkdir()
        (target / "saved_model.pb").write_text("another's")

    monkeypatch.setattr("export.__main__._verify", appear)
    command = run_main(run, "--output", tmp_path)
    assert command.status == 1 and str(target) in command.err
    assert [path.name for path in target.parent.iterdir()] == ["1"]
    assert (target / "saved_model.pb").read_text() == "another's"


def test_nothing_is_left_when_saving_fails(run, tmp_path, monkeypatch, fast):
    def fail(translator, path):
        Path(path, "saved_model.pb").write_text("half")
        raise OSError("No space left on device")

    monkeypatch.setattr("export.signatures.save", fail)
    command = run_main(run, "--output", tmp_path)
    assert command.status == 1
    assert command.err.splitlines()[-1] == "error: No space left on device"
    assert command.out == ""
    assert list((tmp_path / "demo").iterdir()) == []


def test_nothing_is_left_when_the_user_interrupts(run, tmp_path, monkeypatch, fast):
    def interrupt(folder, texts, translations):
        raise KeyboardInterrupt

    monkeypatch.setattr("export.__main__._verify", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_main(run, "--output", tmp_path)
    assert list((tmp_path / "demo").iterdir()) == []


def test_a_translation_that_differs_fails_the_verification(exported, translator):
    translations = translator(TEXTS)
    assert translations[3] != "something else"
    with pytest.raises(ExportError) as error:
        _verify(exported, TEXTS, [*translations[:3], "something else", *translations[4:]])
    message = str(error.value)
    assert message.startswith("the export does not pass its verification: signature serving_def")
    assert repr(TEXTS[3]) in message and repr(translations[3]) in message
    assert "'something else'" in message and "\n" not in message


def test_a_failed_verification_is_exit_1_and_leaves_nothing(run, tmp_path, monkeypatch, fast):
    def fail(folder, texts, translations):
        assert folder.parent == tmp_path / "demo" and not folder.name.isdecimal()
        assert set(CHINESE[6:10]) <= set(texts)  # the run's held-out sentences
        raise ExportError("it differs")

    monkeypatch.setattr("export.__main__._verify", fail)
    command = run_main(run, "--output", tmp_path)
    assert command.status == 1
    assert command.err.splitlines()[-1] == "error: it differs"
    assert command.out == ""
    assert list((tmp_path / "demo").iterdir()) == []


# ---------------------------------------------------------------- beside other versions


def test_a_new_version_leaves_the_old_one_alone(run, tmp_path, fast):
    run_main(run, "--output", tmp_path)
    old = tmp_path / "demo/1/saved_model.pb"
    before = old.stat()
    run_main(run, "--output", tmp_path)
    assert old.stat() == before
    assert versions_of(tmp_path / "demo") == [1, 2]


def test_keep_removes_old_versions_but_not_those_with_a_label(run, tmp_path, fast):
    for _ in range(3):
        run_main(run, "--output", tmp_path)
    command = run_main(run, "--output", tmp_path, "--keep", 2)
    assert command.out == f"{tmp_path}/demo/4\n"
    assert command.err.splitlines()[-1] == f"removed {tmp_path}/demo/2"
    assert versions_of(tmp_path / "demo") == [1, 3, 4]  # 1 is `stable`
    run_main(run, "--output", tmp_path, "--keep", 1, "--version", 2)
    assert versions_of(tmp_path / "demo") == [1, 2, 4]  # and 2 was just written


def test_keep_removes_nothing_when_the_export_fails(run, tmp_path, monkeypatch, fast):
    for _ in range(3):
        run_main(run, "--output", tmp_path)

    def fail(folder, texts, translations):
        raise ExportError("it differs")

    monkeypatch.setattr("export.__main__._verify", fail)
    assert run_main(run, "--output", tmp_path, "--keep", 1).status == 1
    assert versions_of(tmp_path / "demo") == [1, 2, 3]


# ---------------------------------------------------------------- a user's mistakes


@pytest.mark.parametrize(
    "run_name, options, message",
    [
        ("missing", [], "missing: no such run directory"),
        ("run/config.json", [], "config.json: no such run directory"),
        ("empty", [], "config.json: no such file; is"),
        ("run", ["--name", "a/b"], "--name .* received 'a/b'"),
        ("run", ["--name", ".."], "--name .* received '..'"),
        ("run", ["--name", "serving"], "--name serving is the folder of the server's"),
        ("run", ["--keep", "0"], "--keep must be at least 1, received 0"),
        ("run", ["--version", "0"], "--version .* received 0"),
        ("run", ["--version", "-1"], "--version .* received -1"),
        ("run", ["--beam-size", "0"], "beam_size must be a positive integer, received 0"),
        (
            "run",
            ["--length-penalty", "-1"],
            "length_penalty must be a number, 0 or more, received -1",
        ),
        ("run", ["--output", "run/config.json"], "config.json"),
    ],
)
def test_a_mistake_is_exit_2_and_one_line(run, tmp_path, run_name, options, message):
    (tmp_path / "empty").mkdir()
    (tmp_path / "run").symlink_to(run)
    with contextlib.chdir(tmp_path):
        command = run_main(run_name, "--output", "models", *options)
    assert command.status == 2
    assert command.out == ""
    assert command.err.startswith("error: ") and command.err.count("\n") == 1
    assert re.search(message, command.err)
    assert not (tmp_path / "models").exists() or not list((tmp_path / "models").rglob("[0-9]*"))


@pytest.mark.parametrize("options", [["--version", "x"], ["--beam-size", "many"], ["--no-such"]])
def test_an_option_that_does_not_parse_is_exit_2(options, capsys):
    with pytest.raises(SystemExit) as exit_:
        main(["run", "--output", "models", *options])
    assert exit_.value.code == 2
    assert options[0] in capsys.readouterr().err


def test_the_output_is_required(capsys):
    with pytest.raises(SystemExit) as exit_:
        main(["run"])
    assert exit_.value.code == 2
    assert "--output" in capsys.readouterr().err

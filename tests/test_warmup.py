"""The warm-up asks every signature in every batch size, and a server can replay it."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from export.examples import example_inputs
from export.verify import VerificationError, check_warmup
from export.warmup import MAX_RECORDS, WARMUP_FILE, predict_record, read_warmup, write_warmup

BATCH_SIZES = [1, 2, 4]
SENTENCES = ["one", "twenty-two", "three hundred and thirty-three"]


class Module(tf.Module):
    """Signatures of several inputs, as an export may have."""

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")])
    def shout(self, text):
        return {"translation": tf.strings.upper(text)}

    @tf.function(
        input_signature=[
            tf.TensorSpec([None], tf.string, name="text"),
            tf.TensorSpec([None], tf.float32, name="temperature"),
            tf.TensorSpec([None], tf.int64, name="seed"),
        ]
    )
    def sample(self, text, temperature, seed):
        return {"length": tf.strings.length(text), "noise": temperature * tf.cast(seed, tf.float32)}

    @tf.function(input_signature=[tf.TensorSpec([], tf.float32, name="temperature")])
    def scalar(self, temperature):
        return {"double": 2 * temperature}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.bool, name="flag")])
    def boolean(self, flag):
        return {"not": ~flag}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "1"
    module = Module()
    tf.saved_model.save(
        module, str(folder), signatures={"shout": module.shout, "sample": module.sample}
    )
    return folder


@pytest.fixture(scope="module")
def signatures(saved):
    loaded = tf.saved_model.load(str(saved))
    yield loaded.signatures
    del loaded


def write_records(folder, records):
    path = folder / WARMUP_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in records:
            writer.write(record.SerializeToString())


def test_every_signature_is_asked_in_every_batch_size_and_in_several_lengths(tmp_path, signatures):
    write_warmup(tmp_path, signatures, SENTENCES, BATCH_SIZES, "demo")
    requests = list(read_warmup(tmp_path))
    assert [(name, len(inputs["text"])) for name, inputs in requests] == [
        (name, size) for name in ("sample", "shout") for size in BATCH_SIZES
    ]
    for name in signatures:
        asked = {inputs["text"][0].numpy().decode() for each, inputs in requests if each == name}
        assert asked == set(SENTENCES)


def test_inputs_are_sentences_and_ones(signatures):
    inputs = example_inputs("sample", signatures["sample"], SENTENCES)
    assert inputs["text"].tolist() == [sentence.encode() for sentence in SENTENCES]
    for name, dtype in (("temperature", np.float32), ("seed", np.int64)):
        assert inputs[name].dtype == dtype and inputs[name].tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    "name, message",
    [
        ("scalar", r"signature scalar: input temperature must have the shape \[None\].*\(\)$"),
        ("boolean", "signature boolean: no example for input flag of bool"),
    ],
)
def test_an_input_without_an_example_is_an_error_that_names_it(tmp_path, name, message):
    module = Module()
    path = str(tmp_path / "1")
    tf.saved_model.save(module, path, signatures={name: getattr(module, name)})
    loaded = tf.saved_model.load(path)
    with pytest.raises(ValueError, match=message):
        write_warmup(tmp_path / "1", loaded.signatures, SENTENCES, BATCH_SIZES, "demo")


def test_the_requests_are_those_that_tensorflow_serving_reads(tmp_path, signatures):
    from tensorflow_serving.apis.prediction_log_pb2 import PredictionLog

    write_warmup(tmp_path, signatures, SENTENCES, [2], "demo")
    records = tf.data.TFRecordDataset(str(tmp_path / WARMUP_FILE))
    for record, name in zip(records, ("sample", "shout"), strict=True):
        want = PredictionLog()
        request = want.predict_log.request
        request.model_spec.name = "demo"
        request.model_spec.signature_name = name
        inputs = example_inputs(name, signatures[name], [SENTENCES[2]] * 2)
        for key, value in inputs.items():
            request.inputs[key].CopyFrom(tf.make_tensor_proto(value))
        assert record.numpy() == want.SerializeToString(deterministic=True)


def test_the_warmup_of_an_export_matches_its_batching(exported, models):
    batching = (models / "serving/batching.config").read_text()
    allowed = [int(size) for size in re.findall(r"(?m)^allowed_batch_sizes: (\d+)$", batching)]
    requests = list(read_warmup(exported))
    assert 0 < len(requests) <= MAX_RECORDS
    for name in tf.saved_model.load(str(exported)).signatures:
        sizes = [len(next(iter(inputs.values()))) for each, inputs in requests if each == name]
        assert sizes == allowed


# ---------------------------------------------------------------- the verification


def test_a_warmup_that_leaves_out_a_signature_is_found(saved, signatures):
    inputs = example_inputs("shout", signatures["shout"], SENTENCES)
    write_records(saved, [predict_record("demo", "shout", inputs)])
    with pytest.raises(VerificationError, match="leaves out sample$"):
        check_warmup(saved)


def test_a_warmup_with_more_than_a_server_reads_is_found(saved, signatures):
    inputs = example_inputs("shout", signatures["shout"], ["a"])
    write_records(saved, [predict_record("demo", "shout", inputs)] * (MAX_RECORDS + 1))
    with pytest.raises(VerificationError, match="has 1001 requests, a server takes 1000"):
        check_warmup(saved)


def test_a_warmup_that_is_not_answered_is_found(saved):
    write_records(saved, [predict_record("demo", "shout", {"nosuch": np.array([1])})])
    with pytest.raises(VerificationError, match="shout"):
        check_warmup(saved)


def test_a_file_that_is_no_warmup_is_found(saved):
    (saved / WARMUP_FILE).write_bytes(b"garbage")
    with pytest.raises(VerificationError, match="tf_serving_warmup_requests"):
        check_warmup(saved)


# ---------------------------------------------------------------- without this project

SESSION = """
import importlib.util, json, sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

folder = sys.argv[1]
tf_text = Path(importlib.util.find_spec("tensorflow_text").origin).parent
for name in ("keras", "tensorflow_text", "keras_transformer", "export", "training"):
    sys.modules[name] = None  # so that importing it fails

import numpy as np
import tensorflow as tf
from tensorflow_serving.apis.prediction_log_pb2 import PredictionLog

tf.load_op_library(str(tf_text / "python/ops/_sentencepiece_tokenizer.so"))
with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    meta_graph = tf.compat.v1.saved_model.load(session, ["serve"], folder)

    def ask(request):
        signature = meta_graph.signature_def[request.model_spec.signature_name]
        feeds = {
            signature.inputs[key].name: tf.make_ndarray(tensor)
            for key, tensor in request.inputs.items()
        }
        fetches = {key: info.name for key, info in signature.outputs.items()}
        return session.run(fetches, feeds)

    path = folder + "/assets.extra/tf_serving_warmup_requests"
    records = [PredictionLog.FromString(r) for r in tf.compat.v1.io.tf_record_iterator(path)]
    requests = [record.predict_log.request for record in records]
    answers = [ask(request) for request in requests]
    with ThreadPoolExecutor(8) as pool:
        again = list(pool.map(ask, requests * 2))

for i, answer in enumerate(again):
    want = answers[i % len(answers)]
    for key, value in answer.items():
        if value.dtype == object:
            np.testing.assert_array_equal(value, want[key])
        else:
            np.testing.assert_allclose(value, want[key], rtol=1e-5)
sizes = {}
for request, answer in zip(requests, answers):
    (size,) = {len(value) for value in answer.values()}
    sizes.setdefault(request.model_spec.signature_name, []).append(size)
print(json.dumps({"asked": sizes, "signatures": sorted(meta_graph.signature_def)}))
"""


def test_a_session_answers_the_warmup_with_eight_threads_at_once(exported, tmp_path):
    process = subprocess.run(
        [sys.executable, "-I", "-c", SESSION, str(exported)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
    result = json.loads(process.stdout)
    asked = set(result["asked"])
    assert asked == set(result["signatures"]) - {"__saved_model_init_op"}
    assert set(map(tuple, result["asked"].values())) == {(1, 2, 4, 8, 16, 32)}

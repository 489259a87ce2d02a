"""The export answers from a server, asked by the client.

By tensorflow_model_server where it is on the PATH or TF_SERVING_BINARY names it, and always by the
stand-in of tests/model_server.py.
"""

import http.client
import json
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import grpc
import pytest
import tensorflow as tf
from ports import free_ports
from tensorflow_serving.apis import predict_pb2
from tensorflow_serving.apis.prediction_service_pb2_grpc import PredictionServiceStub

from export import serving_config
from export.client.golden import first_difference
from export.client.model import Connection, ModelSpec, ServingError
from export.client.rest import RestModel
from export.client.rpc import GrpcModel

ROOT = Path(__file__).parents[2]
STAND_IN = ROOT / "tests/model_server.py"
BINARY = os.environ.get("TF_SERVING_BINARY") or shutil.which("tensorflow_model_server")
TEXTS = ["你好。", "", "明天会下雨吗？", "Hello.", " "]


@pytest.fixture(scope="module")
def folder(exported, tmp_path_factory):
    """A folder of models: versions 1 and 2 are the export, 3 lacks an op, `stable` is 1."""
    models = tmp_path_factory.mktemp("served") / "models"
    shutil.copytree(exported, models / "demo/1")
    labels = serving_config.update(models, {})
    shutil.copytree(exported, models / "demo/2")
    serving_config.update(models, labels)
    shutil.copytree(exported, models / "demo/3")
    graph = models / "demo/3/saved_model.pb"
    graph.write_bytes(graph.read_bytes().replace(b"SentencepieceOp", b"SentencepieceXp"))
    config = models / "serving/models.config"
    config.write_text(config.read_text().replace('"/models/', f'"{models}/'))
    return models


@pytest.fixture(scope="module", params=["stand-in", "tensorflow_model_server"])
def server(request, folder, tmp_path_factory):
    """The addresses of a server of `folder`."""
    if request.param == "stand-in":
        command = [sys.executable, "-I", str(STAND_IN)]
    elif BINARY:
        command = [BINARY]
    else:
        pytest.skip("no tensorflow_model_server on the PATH or in TF_SERVING_BINARY")
    ports = free_ports(2)
    serving = folder / "serving"
    log = tmp_path_factory.mktemp("log") / "server.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [
                *command,
                f"--port={ports[0]}",
                f"--rest_api_port={ports[1]}",
                f"--model_config_file={serving / 'models.config'}",
                "--allow_version_labels_for_unavailable_models=true",
                "--enable_batching=true",
                f"--batching_parameters_file={serving / 'batching.config'}",
                f"--monitoring_config_file={serving / 'monitoring.config'}",
                "--max_num_load_retries=0",
            ],
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            addresses = SimpleNamespace(
                grpc=f"127.0.0.1:{ports[0]}", rest=f"127.0.0.1:{ports[1]}", log=log
            )
            wait_for(process, addresses)
            yield addresses
        finally:
            process.terminate()
            process.wait(timeout=60)


def wait_for(process, addresses):
    for address, kind in ((addresses.rest, RestModel), (addresses.grpc, GrpcModel)):
        model = kind(Connection(address, deadline_seconds=5, retries=4), ModelSpec("demo"))
        for _ in range(60):
            try:
                assert model.signatures
                model.close()
                break
            except ServingError as error:
                assert error.code in ("UNAVAILABLE", "DEADLINE_EXCEEDED"), error
                assert process.poll() is None, addresses.log.read_text()
        else:
            raise AssertionError(addresses.log.read_text())


@pytest.fixture(params=["rest", "grpc"])
def model(request, server):
    """Return a function that gives the model by REST or by gRPC."""

    made = []

    def make(**version):
        kind = {"rest": RestModel, "grpc": GrpcModel}[request.param]
        connection = Connection(getattr(server, request.param), retries=0)
        made.append(kind(connection, ModelSpec("demo", **version)))
        return made[-1]

    yield make
    for each in made:
        each.close()


def client(*arguments, stdin=""):
    """Return the client command's end, run in a fresh process."""
    return subprocess.run(
        [sys.executable, "-m", "export.client", *map(str, arguments)],
        cwd=ROOT,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_signatures_are_those_of_the_export(model, loaded):
    assert model().signatures.keys() == loaded.signatures.keys()
    for name, signature in model().signatures.items():
        assert list(signature.inputs) == sorted(
            loaded.signatures[name].structured_input_signature[1]
        )
        assert signature.outputs == sorted(loaded.signatures[name].structured_outputs)


@pytest.fixture(scope="module")
def loaded(exported):
    return tf.saved_model.load(str(exported))


@pytest.fixture(scope="module")
def translations(loaded):
    answer = loaded.signatures["serving_default"](text=tf.constant(TEXTS))["translation"]
    return [text.decode() for text in answer.numpy()]


# ---------------------------------------------------------------- answers


@pytest.mark.parametrize("batch_size", [1, 5, 32])
def test_translations_are_those_of_the_export_in_every_batch(model, translations, batch_size):
    chosen = [i % len(TEXTS) for i in range(batch_size)]
    answer = model().predict("serving_default", {"text": [TEXTS[i] for i in chosen]})
    assert answer == {"translation": [translations[i] for i in chosen]}


def test_a_request_without_sentences_has_an_answer_without_translations(model):
    assert model().predict("serving_default", {"text": []}) == {"translation": []}


def test_threads_that_ask_at_once_get_the_same_answers(model, folder):
    golden = json.loads((folder / "serving/golden_requests.json").read_text("utf-8"))
    requests = [request["column"]["request"] for request in golden]
    shared = model()
    alone = [shared.ask(request) for request in requests]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(shared.ask, requests * 4))
    for i, answer in enumerate(together):
        assert first_difference(answer, alone[i % len(alone)]) is None


def test_golden_requests_ask_every_signature_of_both_labels(folder, loaded):
    golden = json.loads((folder / "serving/golden_requests.json").read_text("utf-8"))
    asked = {(request["version"], request["signature"]) for request in golden}
    assert asked == {(version, name) for version in (1, 2) for name in loaded.signatures}


@pytest.mark.parametrize("way", ["rest", "grpc"])
def test_golden_requests_are_answered_as_the_export_did(server, folder, way):
    golden = folder / "serving/golden_requests.json"
    done = client(f"--{way}", getattr(server, way), "--verify", golden)
    assert done.returncode == 0, done.stderr
    forms = {"rest": 2, "grpc": 1}[way]
    num_requests = len(json.loads(golden.read_text("utf-8")))
    assert len(done.stdout.splitlines()) == forms * num_requests
    assert {line.split()[2] for line in done.stdout.splitlines()} == {"1", "2"}  # both versions


def test_an_answer_that_is_not_golden_is_exit_1_and_says_where(server, folder, tmp_path):
    golden = json.loads((folder / "serving/golden_requests.json").read_text("utf-8"))
    (request, *_) = [r for r in golden if r["signature"] == "translate"]
    request["row"]["response"]["predictions"][1]["score"] += 0.5
    (tmp_path / "golden.json").write_text(json.dumps([request]))
    done = client("--rest", server.rest, "--verify", tmp_path / "golden.json", "--name", "demo")
    assert done.returncode == 1
    assert done.stdout.splitlines() == ["ok: version 1 of demo, signature translate, as columns"]
    assert "signature translate, as rows: answer.predictions[1].score is " in done.stderr


# ---------------------------------------------------------------- the command


@pytest.mark.parametrize("way", ["rest", "grpc"])
def test_the_command_translates_arguments_and_lines_in_order(server, translations, way):
    done = client(f"--{way}", getattr(server, way), "--name", "demo", *TEXTS)
    assert done.returncode == 0, done.stderr
    want = [" ".join(text.splitlines()) for text in translations]
    assert done.stdout.split("\n") == [*want, ""]

    options = ["--label", "stable", "--batch-size", 3, "--in-flight", 8]
    lines = "".join(f"{text}\n" for text in TEXTS * 8)
    done = client(f"--{way}", getattr(server, way), "--name", "demo", *options, stdin=lines)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n") == [*want * 8, ""]


@pytest.mark.parametrize("way", ["rest", "grpc"])
def test_other_signatures_print_a_json_object_for_each_text(server, loaded, way):
    arguments = ["--name", "demo", "--signature", "translate", *TEXTS]
    done = client(f"--{way}", getattr(server, way), *arguments)
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    want = loaded.signatures["translate"](text=tf.constant(TEXTS))
    assert [answer["score"] for answer in answers] == pytest.approx(want["score"].numpy(), 1e-4)
    assert [answer["truncated"] for answer in answers] == want["truncated"].numpy().tolist()
    assert answers[0].keys() == want.keys()


# ---------------------------------------------------------------- versions and labels


def test_versions_are_asked_by_number_by_label_and_by_default(model, translations):
    for version in ({"version": 1}, {"version": 2}, {"label": "stable"}, {"label": "canary"}, {}):
        answer = model(**version).predict("serving_default", {"text": TEXTS})
        assert answer["translation"] == translations, version


def explained(model, signature="serving_default"):
    """Return what the client says about the error of a request."""
    with pytest.raises(ServingError) as error:
        if signature in model.signatures:
            model.predict(signature, {"text": ["a"]})
    return model.explain(error.value)


def test_an_unknown_version_is_an_error_that_lists_the_versions(model):
    message = explained(model(version=9))
    assert "version 9 of demo is not served" in message
    assert "1 (AVAILABLE)" in message and "2 (AVAILABLE)" in message


def test_an_unknown_label_is_an_error_that_names_it(model):
    assert "label: nightly" in explained(model(label="nightly"))


def test_a_version_that_lacks_an_op_is_an_error_that_says_which_server_has_it(model):
    message = explained(model(version=3))
    assert "version 3 of demo did not load" in message
    assert "Op type not registered 'SentencepieceXp'" in message
    assert "tensorflow/serving:2.20.0" in message


@pytest.mark.parametrize("way", ["rest", "grpc"])
def test_an_unknown_model_is_exit_1_and_names_it(server, way):
    done = client(f"--{way}", getattr(server, way), "--name", "nosuch", "a")
    assert done.returncode == 1
    assert "there is no model named 'nosuch'" in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize("way", ["rest", "grpc"])
def test_an_unknown_signature_is_exit_2_and_lists_the_others(server, way):
    arguments = ["--name", "demo", "--signature", "nosuch", "a"]
    done = client(f"--{way}", getattr(server, way), *arguments)
    assert done.returncode == 2
    assert "demo has no signature 'nosuch'; it has " in done.stderr
    assert "serving_default" in done.stderr and done.stderr.count("\n") == 1


# ---------------------------------------------------------------- what is refused


def test_a_batch_above_the_largest_is_refused(model):
    with pytest.raises(ServingError, match="maximum input batch size 32") as error:
        model().predict("serving_default", {"text": ["a"] * 33})
    assert error.value.code == "INVALID_ARGUMENT"


def test_a_wrong_port_is_an_error_that_asks_for_the_right_one(server):
    connection = {"deadline_seconds": 5, "retries": 0}
    for model in (
        RestModel(Connection(server.grpc, **connection), ModelSpec("demo")),
        GrpcModel(Connection(server.rest, **connection), ModelSpec("demo")),
    ):
        assert "8500 is gRPC's and 8501 is REST's" in explained(model)
        model.close()


@pytest.mark.parametrize(
    "path, body, status, message",
    [
        ("demo:predict", {"instances": []}, 400, "No values in 'instances' array"),
        ("demo:predict", {"instances": ["a"], "inputs": ["a"]}, 400, "only one of"),
        ("demo:predict", {}, 400, "Missing 'inputs' or 'instances' key"),
        ("demo:predict", {"instances": "a"}, 400, "to be an list/array"),
        ("demo:predict", {"instances": [5]}, 400, "not of expected type: string"),
        ("demo:predict", {"instances": [{"nosuch": "a"}]}, 400, "not have named input: nosuch"),
        ("demo:predict", {"inputs": {"nosuch": ["a"]}}, 400, "Missing named input: text"),
        ("demo:predict", {"signature_name": "nosuch", "instances": ["a"]}, 400, "nosuch"),
        ("demo:predict", {"signature_name": 5, "instances": ["a"]}, 400, "must be a string value"),
        ("demo:predict", [], 400, "Is not object"),
        ("nosuch:predict", {"instances": ["a"]}, 404, "Servable not found for request: Latest"),
        ("demo/versions/9:predict", {"instances": ["a"]}, 404, "Specific\\(demo, 9\\)"),
        ("demo/labels/nosuch:predict", {"instances": ["a"]}, 400, "Unrecognized servable version"),
        ("demo:nosuch", {"instances": ["a"]}, 400, "Malformed request: POST"),
    ],
)
def test_rest_refuses_with_a_status_and_a_message(server, path, body, status, message):
    connection = http.client.HTTPConnection(server.rest, timeout=60)
    connection.request("POST", f"/v1/models/{path}", json.dumps(body))
    response = connection.getresponse()
    assert response.status == status
    assert re.search(message, json.loads(response.read())["error"])
    connection.close()


def test_curl_as_in_the_documentation(server, translations):
    connection = http.client.HTTPConnection(server.rest, timeout=60)
    connection.request("POST", "/v1/models/demo:predict", '{"instances": ["你好。"]}'.encode())
    assert json.loads(connection.getresponse().read()) == {"predictions": [translations[0]]}
    connection.request("GET", "/monitoring/prometheus/metrics")  # the health check of Kubernetes
    assert connection.getresponse().status == 200
    connection.close()


@pytest.mark.parametrize(
    "signature, inputs, code",
    [
        ("nosuch", {"text": ["a"]}, "FAILED_PRECONDITION"),
        ("translate", {}, "INVALID_ARGUMENT"),
        ("translate", {"text": ["a"], "more": ["a"]}, "INVALID_ARGUMENT"),
        ("translate", {"other": ["a"]}, "INVALID_ARGUMENT"),
    ],
)
def test_grpc_refuses_with_a_status(server, signature, inputs, code):
    request = predict_pb2.PredictRequest()
    request.model_spec.name = "demo"
    request.model_spec.signature_name = signature
    for name, values in inputs.items():
        request.inputs[name].CopyFrom(tf.make_tensor_proto(values))
    with grpc.insecure_channel(server.grpc) as channel, pytest.raises(grpc.RpcError) as error:
        PredictionServiceStub(channel).Predict(request, timeout=60)
    assert error.value.code().name == code

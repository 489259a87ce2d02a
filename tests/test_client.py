"""The client by itself, against servers that say what a test tells them to.

tests/integration/test_serving.py asks it to translate.
"""

import http.server
import json
import shutil
import ssl
import subprocess
import sys
import threading
import time
from concurrent import futures
from pathlib import Path
from types import SimpleNamespace

import grpc
import pytest

from export import protos
from export.client import __main__ as command
from export.client import model as model_module
from export.client.golden import first_difference, read_golden
from export.client.model import Connection, ModelSpec, ServingError
from export.client.rest import RestModel
from export.client.rpc import from_proto, to_proto

ROOT = Path(__file__).parents[1]
NOWHERE = "127.0.0.1:1"  # a port on which nothing listens
TYPES = {"DT_STRING": 7, "DT_FLOAT": 1, "DT_INT32": 3, "DT_BOOL": 10}
SIGNATURES = {
    "serving_default": {"text": "DT_STRING"},
    "score": {"target": "DT_STRING", "source": "DT_STRING"},
    "sample": {"text": "DT_STRING", "temperature": "DT_FLOAT", "seed": "DT_INT32"},
}
METADATA = {
    "metadata": {
        "signature_def": {
            "signature_def": {
                name: {
                    "inputs": {key: {"dtype": dtype} for key, dtype in inputs.items()},
                    "outputs": {"answer": {}},
                }
                for name, inputs in SIGNATURES.items()
            }
        }
    }
}


class Server(SimpleNamespace):
    """A server: `address`; `failures`, given first, one a request; and the `requests` it got.

    It answers a request with the inputs' values joined by "|", a row each.
    """


def join(inputs):
    return ["|".join(str(value) for value in row) for row in zip(*inputs.values(), strict=True)]


class RestHandler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    script: Server

    def do_GET(self):
        self.reply(200, METADATA)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.script.requests.append((self.path, body))
        if self.script.failures:
            code, message = self.script.failures.pop(0)
            self.reply(code, {"error": message})
        else:
            inputs = {name: body["inputs"][name] for name in sorted(body["inputs"])}
            self.reply(200, {"outputs": join(inputs)})

    def reply(self, status, content):
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def serve_rest():
    """Return a function that starts a server by REST."""
    started = []

    def serve(failures=(), context=None):
        script = Server(requests=[], failures=list(failures))
        handler = type("Handler", (RestHandler,), {"script": script})
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        server.handle_error = lambda *arguments: None  # a client that breaks off is none of ours
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        script.address = f"127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=[0.01])
        thread.start()
        started.append((server, thread))
        return script

    yield serve
    for server, thread in started:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def serve_grpc():
    """Return a function that starts a server by gRPC."""
    started = []

    def serve(failures=(), credentials=None):
        script = Server(requests=[], failures=list(failures))

        def metadata(request, context):
            signatures = protos.SignatureDefMap()
            for name, inputs in SIGNATURES.items():
                for key, dtype in inputs.items():
                    signatures.signature_def[name].inputs[key].dtype = TYPES[dtype]
                signatures.signature_def[name].outputs["answer"].dtype = TYPES["DT_STRING"]
            response = protos.GetModelMetadataResponse()
            response.metadata["signature_def"].value = signatures.SerializeToString()
            return response

        def predict(request, context):
            script.requests.append(request)
            if script.failures:
                code, message = script.failures.pop(0)
                context.abort(grpc.StatusCode[code], message)
            inputs = {name: from_proto(request.inputs[name]) for name in sorted(request.inputs)}
            response = protos.PredictResponse()
            response.outputs["answer"].CopyFrom(to_proto(join(inputs), "DT_STRING"))
            return response

        server = grpc.server(futures.ThreadPoolExecutor(8))
        calls = {
            "GetModelMetadata": (metadata, protos.GetModelMetadataRequest),
            "Predict": (predict, protos.PredictRequest),
        }
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(
                method,
                request_deserializer=request.FromString,
                response_serializer=lambda response: response.SerializeToString(),
            )
            for name, (method, request) in calls.items()
        }
        server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler(protos.PREDICTION_SERVICE, handlers)]
        )
        if credentials is None:
            port = server.add_insecure_port("127.0.0.1:0")
        else:
            port = server.add_secure_port("127.0.0.1:0", credentials)
        server.start()
        started.append(server)
        script.address = f"127.0.0.1:{port}"
        return script

    yield serve
    for server in started:
        server.stop(None).wait()


@pytest.fixture
def waits(monkeypatch):
    """The pauses between repetitions, which take no time."""
    seconds = []
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=seconds.append)
    monkeypatch.setattr(model_module, "time", clock)
    return seconds


def run(capsys, *arguments):
    """Return the exit status, stdout and stderr of the command, run in this process."""
    status = command.main([str(argument) for argument in arguments])
    return SimpleNamespace(status=status, **capsys.readouterr()._asdict())


def test_neither_tensorflow_nor_keras_is_imported():
    code = (
        "import sys, export.client.__main__, export.client.rest, export.client.rpc\n"
        "print({'tensorflow', 'keras', 'tensorflow_text'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\n"


def test_rest_needs_python_alone():
    code = (
        "import sys\n"
        "for name in ('grpc', 'google', 'numpy'): sys.modules[name] = None\n"
        "import export.client.__main__, export.client.rest"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


# ---------------------------------------------------------------- unavailable, late, unreachable


def test_a_request_is_repeated_while_the_server_is_unavailable(
    serve_rest, serve_grpc, waits, capsys
):
    rest = serve_rest([(503, "full")] * 3)
    assert run(capsys, "--rest", rest.address, "--name", "m", "a").out == "a\n"
    assert len(rest.requests) == 4 and len(waits) == 3
    assert all(0.05 * 2**i <= waits[i] <= 0.1 * 2**i for i in range(3))

    waits.clear()
    rpc = serve_grpc([("UNAVAILABLE", "full")] * 3)
    assert run(capsys, "--grpc", rpc.address, "--name", "m", "a").out == "a\n"
    assert len(rpc.requests) == 4 and len(waits) == 3


def test_repetitions_come_to_an_end(serve_rest, serve_grpc, waits, capsys):
    rest = serve_rest([(503, "the queue is full")] * 9)
    done = run(capsys, "--rest", rest.address, "--name", "m", "--retries", 2, "a")
    assert done.status == 1 and len(rest.requests) == 3
    assert done.err == f"error: {rest.address}: the queue is full (UNAVAILABLE)\n"

    rpc = serve_grpc([("UNAVAILABLE", "the queue is full")] * 9)
    done = run(capsys, "--grpc", rpc.address, "--name", "m", "--retries", 2, "a")
    assert done.status == 1 and len(rpc.requests) == 3
    assert done.err == f"error: {rpc.address}: the queue is full (UNAVAILABLE)\n"


def test_repetitions_end_at_the_deadline(serve_rest, waits, monkeypatch):
    clock = iter(range(0, 1000, 10))  # ten seconds pass with each look at it
    monkeypatch.setattr(model_module.time, "monotonic", lambda: next(clock))
    rest = serve_rest([(503, "full")] * 9)
    model = RestModel(Connection(rest.address, deadline_seconds=35, retries=9), ModelSpec("m"))
    with pytest.raises(ServingError, match="full"):
        model.ask({"inputs": {"text": ["a"]}})
    model.close()
    assert len(rest.requests) == 2


@pytest.mark.parametrize(
    "http_status, code",
    [(400, "INVALID_ARGUMENT"), (429, "RESOURCE_EXHAUSTED"), (500, "INTERNAL")],
)
def test_other_errors_are_not_repeated(serve_rest, serve_grpc, waits, capsys, http_status, code):
    for way, server in (
        ("--rest", serve_rest([(http_status, "why")] * 2)),
        ("--grpc", serve_grpc([(code, "why")] * 2)),
    ):
        done = run(capsys, way, server.address, "--name", "m", "a")
        assert done.status == 1 and len(server.requests) == 1
        assert done.err == f"error: {server.address}: why ({code})\n"


@pytest.mark.parametrize("way", ["--rest", "--grpc"])
def test_nothing_that_answers_is_an_error_that_asks_whether_it_runs(way, waits, capsys):
    done = run(capsys, way, NOWHERE, "--name", "m", "--retries", 1, "a")
    assert done.status == 1 and done.err.count("\n") == 1
    assert NOWHERE in done.err and "Is TensorFlow Serving running" in done.err
    assert "refused" in done.err
    assert len(waits) == 1


def test_a_late_answer_is_an_error_that_names_the_option(serve_rest, serve_grpc, capsys):
    late = threading.Event()
    failures = SimpleNamespace(pop=lambda i: late.wait(30) and None or (400, "too late"))
    for way, server in (("--rest", serve_rest()), ("--grpc", serve_grpc())):
        server.failures = failures
        done = run(capsys, way, server.address, "--name", "m", "--deadline", 0.3, "a")
        assert done.status == 1
        assert f"{server.address}: no answer within 0.3 seconds (--deadline)" in done.err
    late.set()


def test_an_op_that_the_server_lacks_is_an_error_that_says_which_server_has_it(
    serve_rest, serve_grpc, capsys
):
    message = "Op type not registered 'SentencepieceOp'\nin binary"
    for way, server in (
        ("--rest", serve_rest([(404, message)])),
        ("--grpc", serve_grpc([("NOT_FOUND", message)])),
    ):
        done = run(capsys, way, server.address, "--name", "m", "a")
        assert done.status == 1 and done.err.count("\n") == 1
        assert "m does not run there: Op type not registered 'SentencepieceOp'" in done.err
        assert "tensorflow/serving:2.20.0" in done.err


def test_a_page_of_a_proxy_is_shown(serve_rest, monkeypatch, capsys):
    def page(handler):
        handler.send_response(403)
        handler.send_header("Content-Length", "11")
        handler.end_headers()
        handler.wfile.write(b"<p>no way\n\n")

    monkeypatch.setattr(RestHandler, "do_GET", page)
    done = run(capsys, "--rest", serve_rest().address, "--name", "m", "a")
    assert done.status == 1 and done.err.endswith(": <p>no way (PERMISSION_DENIED)\n")


# ---------------------------------------------------------------- TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """The files of a certificate for 127.0.0.1 and of its key."""
    if not shutil.which("openssl"):
        pytest.skip("no openssl, which makes the certificate")
    folder = tmp_path_factory.mktemp("tls")
    files = SimpleNamespace(cert=folder / "cert.pem", key=folder / "key.pem")
    subprocess.run(
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 "
        "-subj /CN=localhost -addext subjectAltName=IP:127.0.0.1 "
        f"-keyout {files.key} -out {files.cert}".split(),
        check=True,
        capture_output=True,
    )
    return files


def test_a_connection_is_encrypted_and_the_server_authenticated(
    serve_rest, serve_grpc, certificate, capsys
):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.cert, certificate.key)
    key = (certificate.key.read_bytes(), certificate.cert.read_bytes())
    servers = {
        "--rest": serve_rest(context=context),
        "--grpc": serve_grpc(credentials=grpc.ssl_server_credentials([key])),
    }
    for way, server in servers.items():
        arguments = (way, server.address, "--name", "m", "--retries", 0)
        done = run(capsys, *arguments, "--ca", certificate.cert, "a")
        assert (done.status, done.out) == (0, "a\n"), done.err
        assert run(capsys, *arguments, "--tls", "a").status == 1  # not an authority of the system
        assert run(capsys, *arguments, "a").status == 1
    assert [len(server.requests) for server in servers.values()] == [1, 1]


def test_a_client_shows_its_certificate(serve_rest, serve_grpc, certificate, capsys):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.cert, certificate.key)
    context.load_verify_locations(certificate.cert)
    context.verify_mode = ssl.CERT_REQUIRED
    key = (certificate.key.read_bytes(), certificate.cert.read_bytes())
    credentials = grpc.ssl_server_credentials([key], key[1], require_client_auth=True)
    for way, server in (
        ("--rest", serve_rest(context=context)),
        ("--grpc", serve_grpc(credentials=credentials)),
    ):
        arguments = (way, server.address, "--name", "m", "--retries", 0, "--ca", certificate.cert)
        shown = ("--cert", certificate.cert, "--key", certificate.key)
        assert run(capsys, *arguments, *shown, "a").out == "a\n"
        assert run(capsys, *arguments, "a").status == 1


@pytest.mark.parametrize("way", ["--rest", "--grpc"])
def test_a_missing_certificate_is_exit_2_and_names_the_file(way, tmp_path, capsys):
    done = run(capsys, way, NOWHERE, "--name", "m", "--ca", tmp_path / "no.pem", "a")
    assert done.status == 2 and str(tmp_path / "no.pem") in done.err


# ---------------------------------------------------------------- inputs and outputs


def test_texts_of_several_inputs_are_separated_by_tabs_in_alphabetical_order(
    serve_rest, serve_grpc, capsys
):
    for way, server in (("--rest", serve_rest()), ("--grpc", serve_grpc())):
        arguments = (way, server.address, "--name", "m", "--signature", "score")
        done = run(capsys, *arguments, "a\tb", "c\td")
        assert done.out == '{"answer": "a|b"}\n{"answer": "c|d"}\n'
        done = run(capsys, *arguments, "a")
        assert done.status == 2
        assert done.err == "error: a text must be source TAB target, received 'a'\n"


def test_other_inputs_are_given_by_option_in_their_type(serve_rest, serve_grpc, capsys):
    for way, server in (("--rest", serve_rest()), ("--grpc", serve_grpc())):
        arguments = (way, server.address, "--name", "m", "--signature", "sample")
        given = ("--input", "temperature=0.5", "--input", "seed=3")
        done = run(capsys, *arguments, *given, "a", "b")
        assert done.out == '{"answer": "3|0.5|a"}\n{"answer": "3|0.5|b"}\n' or (
            done.out == '{"answer": "3|a|0.5"}\n{"answer": "3|b|0.5"}\n'
        )


@pytest.mark.parametrize(
    "given, message",
    [
        ([], "signature sample needs --input seed=VALUE (DT_INT32)"),
        (["seed=x"], "--input seed must be of DT_INT32, received 'x'"),
        (["nosuch=1"], "signature sample has no input nosuch; it has ['seed', 'temperature', 'te"),
        (["seed=1", "temperature=1", "text=a"], "signature sample has no input left for the texts"),
    ],
)
def test_a_wrong_input_is_exit_2_and_says_what_is_needed(serve_rest, capsys, given, message):
    options = [word for assignment in given for word in ("--input", assignment)]
    address = serve_rest().address
    done = run(capsys, "--rest", address, "--name", "m", "--signature", "sample", *options, "a")
    assert done.status == 2 and done.err.startswith(f"error: {message}")


def test_a_translation_of_several_lines_is_printed_on_one(serve_rest, capsys):
    assert run(capsys, "--rest", serve_rest().address, "--name", "m", "a\nb").out == "a b\n"


def test_the_version_is_part_of_the_address(serve_rest, serve_grpc, capsys):
    rest, rpc = serve_rest(), serve_grpc()
    for options in ([], ["--version", 3], ["--label", "stable"]):
        run(capsys, "--rest", rest.address, "--name", "zh en", *options, "a")
        run(capsys, "--grpc", rpc.address, "--name", "zh en", *options, "a")
    assert [path for path, _ in rest.requests] == [
        "/v1/models/zh%20en:predict",
        "/v1/models/zh%20en/versions/3:predict",
        "/v1/models/zh%20en/labels/stable:predict",
    ]
    specs = [request.model_spec for request in rpc.requests]
    assert [spec.name for spec in specs] == ["zh en"] * 3
    assert [spec.version.value for spec in specs] == [0, 3, 0]
    assert [spec.version_label for spec in specs] == ["", "", "stable"]


@pytest.mark.parametrize(
    "dtype, values",
    [
        ("DT_STRING", ["a", "你好", ""]),
        ("DT_FLOAT", [-0.35, 0.1, 1e-9]),
        ("DT_DOUBLE", [-0.35]),
        ("DT_INT32", [-1, 2]),
        ("DT_INT64", [2**40]),
        ("DT_BOOL", [True, False]),
        ("DT_STRING", []),
    ],
)
def test_a_tensor_keeps_its_values(dtype, values):
    assert from_proto(to_proto(values, dtype)) == values


def test_a_tensor_is_read_from_its_bytes_too():
    proto = protos.TensorProto(dtype=3, tensor_content=b"\1\0\0\0\2\0\0\0")
    proto.tensor_shape.dim.add(size=2)
    proto.tensor_shape.dim.add(size=1)
    assert from_proto(proto) == [[1], [2]]


# ---------------------------------------------------------------- lines in, lines out


def test_results_come_in_order_with_several_calls_at_once():
    both = threading.Barrier(2, timeout=30)  # passed only by two calls at once
    first_may_end = threading.Event()

    def call(item):
        both.wait()
        if item == 0:
            first_may_end.wait(30)
        else:
            first_may_end.set()
        return item

    assert list(command.pipelined(call, range(2), in_flight=2)) == [0, 1]
    assert list(command.pipelined(str, range(50), in_flight=3)) == [str(i) for i in range(50)]


def test_a_result_does_not_wait_for_the_next_item():
    more = threading.Event()

    def items():
        yield "first"
        assert more.wait(30)
        yield "second"

    results = command.pipelined(str.upper, items(), in_flight=4)
    assert next(results) == "FIRST"
    more.set()
    assert list(results) == ["SECOND"]


def test_items_are_not_read_far_ahead():
    read = []

    def items():
        for i in range(1000):
            read.append(i)
            yield i

    results = command.pipelined(str, items(), in_flight=2)
    assert next(results) == "0"
    assert len(read) < 10
    assert len(list(results)) == 999


@pytest.mark.parametrize("where", ["in a call", "while reading"])
def test_an_error_comes_where_it_happened(where):
    def items():
        yield 1
        if where == "while reading":
            raise OSError("unreadable")
        yield 0

    results = command.pipelined(lambda item: 1 // item, items(), in_flight=2)
    assert next(results) == 1
    with pytest.raises((OSError, ZeroDivisionError)):
        next(results)


def client(*arguments, **options):
    return subprocess.Popen(
        [sys.executable, "-m", "export.client", *map(str, arguments)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,
    )


def test_lines_are_answered_as_they_come(serve_rest):
    server = serve_rest()
    with client("--rest", server.address, "--name", "m", "--batch-size", 2) as process:
        process.stdin.write("一\n\n".encode() + b"\xff\r\n")
        process.stdin.flush()
        assert process.stdout.readline().decode() == "一\n"  # while standard input is open
        assert process.stdout.readline() == b"\n"
        process.stdin.close()
        assert process.stdout.read().decode() == "\ufffd\n"
        assert process.stderr.read() == b""
    assert process.returncode == 0
    assert sorted(len(body["inputs"]["text"]) for _, body in server.requests) == [1, 2]


def test_an_error_ends_the_command_while_standard_input_is_open(serve_rest):
    server = serve_rest([(400, "no")])
    with client("--rest", server.address, "--name", "m", "--batch-size", 1) as process:
        process.stdin.write(b"a\n")
        process.stdin.flush()
        assert process.stderr.read().decode() == (
            f"error: {server.address}: no (INVALID_ARGUMENT)\n"
        )
        assert process.wait(30) == 1


def test_nothing_on_standard_input_is_no_request(serve_rest):
    server = serve_rest()
    with client("--rest", server.address, "--name", "m") as process:
        assert process.communicate(b"", 30) == (b"", b"")
    assert process.returncode == 0 and server.requests == []


# ---------------------------------------------------------------- golden requests


@pytest.mark.parametrize(
    "have, want, message",
    [
        ({"a": [1.0, "x"]}, {"a": [1.0001, "x"]}, None),
        ({"a": [0.0]}, {"a": [1e-5]}, None),
        ({"a": [1.0]}, {"a": [1.1]}, "answer.a[0] is 1.0, expected 1.1"),
        ({"a": "x"}, {"a": "y"}, 'answer.a is "x", expected "y"'),
        ({"a": [1]}, {"a": [1, 2]}, "answer.a is [1], expected [1, 2]"),
        ({"a": 1}, {"b": 1}, 'answer is {"a": 1}, expected {"b": 1}'),
        ([True], [1], "answer[0] is true, expected 1"),
        (["x" * 200], [1], f'answer[0] is "{"x" * 76}..., expected 1'),
    ],
)
def test_answers_are_compared_but_for_rounding(have, want, message):
    assert first_difference(have, want) == message


@pytest.mark.parametrize(
    "text, name, message",
    [
        ("no JSON", None, "is no file of golden requests"),
        ('{"a": 1}', "m", "is no file of golden requests"),
        ('[{"model": "de-en"}]', "zh-en", "has no requests of zh-en; its models are ['de-en']"),
        ("[]", None, "has no requests of any model"),
    ],
)
def test_a_file_without_golden_requests_is_an_error_that_names_it(tmp_path, text, name, message):
    path = tmp_path / "golden.json"
    path.write_text(text)
    with pytest.raises(ValueError) as error:
        read_golden(path, name)
    assert str(error.value).startswith(f"{path}: {message}")


# ---------------------------------------------------------------- a user's mistakes


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([], "one of the arguments --rest --grpc is required"),
        (["--rest", "localhost:1", "--grpc", "localhost:2"], "not allowed with"),
        (["--rest", "localhost"], "must be HOST:PORT, received 'localhost'"),
        (["--rest", "http://localhost:1"], "must be HOST:PORT, received 'http://localhost:1'"),
        (["--rest", "localhost:1"], "--name is required"),
        (["--rest", "localhost:1", "--name", "m", "--version", "x"], "invalid int value: 'x'"),
        (["--rest", "localhost:1", "--name", "m", "--batch-size", "0"], "must be above 0"),
        (["--rest", "localhost:1", "--name", "m", "--deadline", "soon"], "invalid float value"),
        (["--rest", "localhost:1", "--name", "m", "--input", "x"], "must be NAME=VALUE"),
        (["--rest", "localhost:1", "--name", "m", "--cert", "x"], "--cert and --key belong"),
    ],
)
def test_arguments_that_do_not_parse_are_exit_2(arguments, message, capsys):
    with pytest.raises(SystemExit) as exit_:
        command.main(arguments)
    assert exit_.value.code == 2
    assert message in capsys.readouterr().err


def test_a_missing_golden_file_is_exit_2_and_names_it(tmp_path, capsys):
    done = run(capsys, "--rest", NOWHERE, "--verify", tmp_path / "no.json")
    assert done.status == 2 and str(tmp_path / "no.json") in done.err


def test_a_reader_that_has_enough_ends_the_command(serve_rest):
    with client("--rest", serve_rest().address, "--name", "m", "--batch-size", 1) as process:
        process.stdout.close()
        process.stdin.write(b"a\n" * 10)
        process.stdin.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1

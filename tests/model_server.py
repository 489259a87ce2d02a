"""A stand-in for tensorflow_model_server: its contract by gRPC and REST, over the V1 loader.

It takes those flags of the server that the tests give, so that the same tests run against either.
What it loads, it loads as the server does: with the tag `serve` into a Session, and with no ops but
TensorFlow's and SentencePiece's. Neither Keras nor tensorflow_text nor this project can be
imported. The messages are those of tensorflow-serving-api. What is refused, with which status and
words, is as in the sources of TensorFlow Serving; its files are named below. Not here: requests of
different clients are not joined, and a version that appears later is not seen.
"""

import argparse
import base64
import concurrent.futures
import http.server
import importlib.util
import json
import re
import sys
import threading
import traceback
from pathlib import Path
from urllib.parse import unquote

for name in ("keras", "tensorflow_text", "keras_transformer", "export", "training"):
    if name == "tensorflow_text":
        TEXT = Path(importlib.util.find_spec(name).origin).parent
    sys.modules[name] = None  # so that importing it fails

import grpc  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from google.protobuf import json_format, text_format  # noqa: E402
from tensorflow_serving.apis import (  # noqa: E402
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_log_pb2,
    prediction_service_pb2_grpc,
)
from tensorflow_serving.config import model_server_config_pb2  # noqa: E402

tf.load_op_library(str(TEXT / "python/ops/_sentencepiece_tokenizer.so"))

DEFAULT_SIGNATURE = "serving_default"
MAX_WARMUP_RECORDS = 1000
VALUE_FIELDS = {
    tf.float32: "float_val",
    tf.float64: "double_val",
    tf.int32: "int_val",
    tf.int64: "int64_val",
    tf.bool: "bool_val",
    tf.string: "string_val",
}
# model_servers/http_server.cc, ToHTTPStatusCode
HTTP_STATUS = {
    "INVALID_ARGUMENT": 400,
    "FAILED_PRECONDITION": 400,
    "OUT_OF_RANGE": 400,
    "NOT_FOUND": 404,
    "RESOURCE_EXHAUSTED": 429,
    "UNIMPLEMENTED": 501,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}


class StatusError(Exception):
    """A status that is not OK: its name in gRPC, and its message."""

    def __init__(self, code, message):
        super().__init__(message)
        self.code = code
        self.message = message


def invalid(message):
    return StatusError("INVALID_ARGUMENT", message)


# ---------------------------------------------------------------- versions


class Version:
    """One version of a model, loaded and warm."""

    def __init__(self, path, number, batch_sizes):
        self.number = number
        self.batch_sizes = batch_sizes
        graph = tf.Graph()
        with graph.as_default():
            self.session = tf.compat.v1.Session(graph=graph)
            meta_graph = tf.compat.v1.saved_model.load(self.session, ["serve"], str(path))
        self.signatures = dict(meta_graph.signature_def.items())
        self.num_warmup_requests = self.replay(path / "assets.extra/tf_serving_warmup_requests")

    def replay(self, path):
        """servables/tensorflow/saved_model_warmup_util.cc."""
        if not path.exists():
            return 0
        count = 0
        for record in tf.compat.v1.io.tf_record_iterator(str(path)):
            count += 1
            if count > MAX_WARMUP_RECORDS:
                raise invalid(f"Number of warmup records exceeds the maximum ({count})")
            log = prediction_log_pb2.PredictionLog.FromString(record)
            if log.WhichOneof("log_type") != "predict_log":
                raise StatusError("UNIMPLEMENTED", "Unsupported log_type for warmup")
            self.predict(log.predict_log.request)
        return count

    def predict(self, request):
        """servables/tensorflow/predict_util.cc, RunPredict."""
        name = request.model_spec.signature_name or DEFAULT_SIGNATURE
        if name not in self.signatures:
            raise StatusError("FAILED_PRECONDITION", f'Serving signature key "{name}" not found.')
        signature = self.signatures[name]
        given, wanted = sorted(request.inputs), sorted(signature.inputs)
        if given != wanted:
            extra = ",".join(sorted(set(given) - set(wanted)))
            missing = ",".join(sorted(set(wanted) - set(given)))
            raise invalid(
                f"input size does not match signature: {len(given)}!={len(wanted)} "
                f"len({{{','.join(given)}}}) != len({{{','.join(wanted)}}}). "
                f"Sent extra: {{{extra}}}. Missing but required: {{{missing}}}."
            )
        feeds = {}
        for key, info in signature.inputs.items():
            if request.inputs[key].dtype != info.dtype:
                raise invalid(f"Expected {key} to be of another type")
            feeds[info.name] = tf.make_ndarray(request.inputs[key])
        values = self.run(feeds, {key: info.name for key, info in signature.outputs.items()})
        response = predict_pb2.PredictResponse()
        response.model_spec.name = request.model_spec.name
        response.model_spec.signature_name = name
        response.model_spec.version.value = self.number
        for key, value in values.items():
            fill(response.outputs[key], value, signature.outputs[key].dtype)
        return response

    def run(self, feeds, fetches):
        """batching/batching_session.cc, without the requests of others."""
        size = None
        if self.batch_sizes:
            if any(np.ndim(value) == 0 for value in feeds.values()):
                raise invalid(
                    "Batching session Run() input tensors must have at least one dimension"
                )
            sizes = {len(value) for value in feeds.values()}
            if len(sizes) > 1:
                raise invalid(
                    "Batching session Run() input tensors must have equal 0th-dimension size"
                )
            (size,) = sizes
            if size > self.batch_sizes[-1]:
                raise invalid(
                    f"Task size {size} is larger than maximum input batch size "
                    f"{self.batch_sizes[-1]}"
                )
            if size:
                padding = next(allowed for allowed in self.batch_sizes if allowed >= size) - size
                feeds = {
                    name: np.concatenate([value, np.repeat(value[:1], padding, axis=0)])
                    for name, value in feeds.items()
                }
        try:
            values = self.session.run(fetches, feeds)
        except tf.errors.OpError as error:
            raise StatusError(status_name(error.error_code), error.message) from None
        except ValueError as error:  # Python's session looks at shapes, the model otherwise would
            raise invalid(str(error)) from None
        if not size:
            return values
        for name, value in values.items():
            if np.ndim(value) == 0 or len(value) != size + padding:
                raise StatusError(
                    "FAILED_PRECONDITION",
                    f"Batched output tensor's 0th dimension does not equal the sum of the 0th "
                    f"dimension sizes of the input tensors ({name})",
                )
        return {name: value[:size] for name, value in values.items()}


def status_name(number):
    return next(code.name for code in grpc.StatusCode if code.value[0] == number)


def fill(proto, value, dtype):
    """Tensor::AsProtoField: every value in the field of its type."""
    dtype = tf.dtypes.as_dtype(dtype)
    proto.dtype = dtype.as_datatype_enum
    for size in np.shape(value):
        proto.tensor_shape.dim.add().size = size
    getattr(proto, VALUE_FIELDS[dtype]).extend(np.ravel(value).tolist())


class Models:
    """What the server knows: the versions of each model, and their labels."""

    def __init__(self, config, batch_sizes):
        self.versions = {}
        self.failures = {}
        self.labels = {}
        for model in config.model_config_list.config:
            assert model.model_platform == "tensorflow", model
            assert model.model_version_policy.WhichOneof("policy_choice") == "all", model
            self.labels[model.name] = dict(model.version_labels.items())
            loaded, failed = {}, {}
            for path in Path(model.base_path).iterdir():
                if path.name.isdecimal():
                    try:
                        loaded[int(path.name)] = Version(path, int(path.name), batch_sizes)
                    except Exception as error:
                        traceback.print_exc()
                        failed[int(path.name)] = str(error)
            assert loaded, f"Some models did not become available: {model.name} {failed}"
            self.versions[model.name], self.failures[model.name] = loaded, failed

    def find(self, spec):
        """model_servers/server_core.cc, ServableRequestFromModelSpec; core/basic_manager.cc."""
        number, request = None, f"Latest({spec.name})"
        if spec.WhichOneof("version_choice") == "version":
            number = spec.version.value
        elif spec.WhichOneof("version_choice") == "version_label":
            number = self.labels.get(spec.name, {}).get(spec.version_label)
            if number is None:
                raise invalid(f"Unrecognized servable version label: {spec.version_label}")
        if number is not None:
            request = f"Specific({spec.name}, {number})"
        versions = self.versions.get(spec.name, {})
        if number is None and versions:
            number = max(versions)
        if number not in versions:
            raise StatusError("NOT_FOUND", f"Servable not found for request: {request}")
        return versions[number]

    def predict(self, request):
        return self.find(request.model_spec).predict(request)

    def metadata(self, request):
        """servables/tensorflow/get_model_metadata_impl.cc."""
        version = self.find(request.model_spec)
        signatures = get_model_metadata_pb2.SignatureDefMap()
        for name, signature in version.signatures.items():
            signatures.signature_def[name].CopyFrom(signature)
        response = get_model_metadata_pb2.GetModelMetadataResponse()
        response.model_spec.name = request.model_spec.name
        response.model_spec.version.value = version.number
        response.metadata["signature_def"].Pack(signatures)
        return response

    def status(self, request):
        """model_servers/get_model_status_impl.cc."""
        name = request.model_spec.name
        if name not in self.versions:
            raise StatusError("NOT_FOUND", f"Could not find any versions of model {name}")
        response = get_model_status_pb2.GetModelStatusResponse()
        for number in sorted([*self.versions[name], *self.failures[name]], reverse=True):
            failure = self.failures[name].get(number, "")
            status = response.model_version_status.add(version=number)
            status.state = type(status).END if failure else type(status).AVAILABLE
            status.status.error_code = 2 if failure else 0
            status.status.error_message = failure
        return response


# ---------------------------------------------------------------- gRPC


def answer(method):
    def call(self, request, context):
        try:
            return method(self.models, request)
        except StatusError as error:
            context.abort(grpc.StatusCode[error.code], error.message)

    return call


class PredictionService(prediction_service_pb2_grpc.PredictionServiceServicer):
    def __init__(self, models):
        self.models = models

    Predict = answer(Models.predict)
    GetModelMetadata = answer(Models.metadata)


class ModelService(model_service_pb2_grpc.ModelServiceServicer):
    def __init__(self, models):
        self.models = models

    GetModelStatus = answer(Models.status)


# ---------------------------------------------------------------- REST

# model_servers/http_rest_api_util.cc
VERSION = r"(?:/versions/(?P<version>\d+)|/labels/(?P<label>[^/:]+))?"
PREDICT_PATH = re.compile(rf"(?i)/v1/models/(?P<name>[^/:]+){VERSION}:predict")
STATUS_PATH = re.compile(rf"(?i)/v1/models/(?P<name>[^/:]+){VERSION}(?P<metadata>/metadata)?")
METRICS_PATH = "/monitoring/prometheus/metrics"


class RestHandler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    models: Models

    def do_GET(self):
        if self.path == METRICS_PATH:
            self.reply(200, b"# TYPE :tensorflow:serving:request_count counter\n", "text/plain")
            return
        self.respond(STATUS_PATH, self.get)

    def do_POST(self):
        self.respond(PREDICT_PATH, self.predict)

    def respond(self, path, method):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        try:
            match = path.fullmatch(self.path)
            if not match:
                raise invalid(f"Malformed request: {self.command} {self.path}")
            status, content = 200, method(match, body)
        except StatusError as error:
            status, content = HTTP_STATUS.get(error.code, 500), {"error": error.message}
        self.reply(status, json.dumps(content, ensure_ascii=False).encode(), "application/json")

    def reply(self, status, content, kind):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def get(self, match, body):
        if match["metadata"]:
            request = get_model_metadata_pb2.GetModelMetadataRequest()
            fill_spec(request.model_spec, match)
            response = self.models.metadata(request)
            signatures = get_model_metadata_pb2.SignatureDefMap()
            response.metadata["signature_def"].Unpack(signatures)
            return {
                "model_spec": to_dict(response.model_spec),
                "metadata": {"signature_def": to_dict(signatures)},
            }
        request = get_model_status_pb2.GetModelStatusRequest()
        fill_spec(request.model_spec, match)
        return to_dict(self.models.status(request))

    def predict(self, match, body):
        request = predict_pb2.PredictRequest()
        fill_spec(request.model_spec, match)
        is_row = fill_from_json(request, body, self.models)
        outputs = self.models.predict(request).outputs
        arrays = {key: to_json(key, outputs[key]) for key in sorted(outputs)}
        if not is_row:
            return {"outputs": arrays if len(arrays) > 1 else next(iter(arrays.values()))}
        sizes = {len(value) for value in arrays.values()}
        if len(sizes) > 1:
            raise invalid(f"Tensor name: {max(arrays)} has inconsistent batch size")
        rows = zip(*arrays.values(), strict=True)
        if len(arrays) == 1:
            return {"predictions": [row for (row,) in rows]}
        return {"predictions": [dict(zip(arrays, row, strict=True)) for row in rows]}

    def log_message(self, *arguments):
        pass


def to_dict(message):
    return json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )


def fill_spec(spec, match):
    spec.name = unquote(match["name"])
    if match["version"]:
        spec.version.value = int(match["version"])
    elif match["label"]:
        spec.version_label = unquote(match["label"])


def fill_from_json(request, body, models):
    """util/json_tensor.cc, FillPredictRequestFromJson; returns whether the request is of rows."""
    try:
        document = json.loads(body)
    except ValueError as error:
        raise invalid(f"JSON Parse error: {error}") from None
    if not isinstance(document, dict):
        raise invalid(f"JSON Value: {json.dumps(document)} Is not object")
    name = document.get("signature_name", "")
    if not isinstance(name, str):
        raise invalid(
            f"JSON Value: {json.dumps(document)} not formatted correctly. 'signature_name' key "
            "must be a string value."
        )
    request.model_spec.signature_name = name
    signatures = models.find(request.model_spec).signatures
    signature = signatures.get(name or DEFAULT_SIGNATURE)
    if signature is None:
        raise invalid(
            f'Serving signature name: "{name or DEFAULT_SIGNATURE}" not found in signature def'
        )
    types = {key: info.dtype for key, info in signature.inputs.items()}
    if "instances" in document and "inputs" in document:
        raise invalid(
            f"JSON Value: {json.dumps(document)} Not formatted correctly expecting only one of "
            "'inputs' or 'instances' keys to exist "
        )
    if "instances" in document:
        fill_rows(request, document, types)
        return True
    if "inputs" in document:
        fill_columns(request, document["inputs"], types)
        return False
    raise invalid("Missing 'inputs' or 'instances' key")


def fill_rows(request, document, types):
    """FillTensorMapFromInstancesList."""
    rows = document["instances"]
    if not isinstance(rows, list):
        raise invalid(
            f"JSON Value: {json.dumps(document)} Excepting 'instances' to be an list/array"
        )
    if not rows:
        raise invalid(f"JSON Value: {json.dumps(document)} No values in 'instances' array")
    if not isinstance(rows[0], dict) and len(types) > 1:
        raise invalid(
            "instances is a plain list, but expecting list of objects as multiple input tensors "
            "required as per tensorinfo_map"
        )
    are_objects = is_object(rows[0])
    for i, row in enumerate(rows):
        if is_object(row) != are_objects:
            words = "object but got list" if are_objects else "value/list but got object"
            raise invalid(f"Expecting {words} at item {i} of input list")
        if are_objects:
            for key in row:
                if key not in types:
                    raise invalid(
                        f"Failed to process element: {i} key: {key} of 'instances' list. Error: "
                        f"INVALID_ARGUMENT: JSON object: does not have named input: {key}"
                    )
            if row.keys() != types.keys():
                raise invalid(
                    f"Failed to process element: {i} of 'instances' list. JSON object: "
                    f"{json.dumps(row)} keys must be equal to: {','.join(sorted(types))}"
                )
    for key, dtype in types.items():
        values = [row[key] for row in rows] if are_objects else rows
        try:
            fill_tensor(request.inputs[key], values, dtype)
        except StatusError as error:
            raise invalid(
                f"Failed to process element: 0 of 'instances' list. Error: {error.message}"
            ) from None


def fill_columns(request, inputs, types):
    """FillTensorMapFromInputsMap."""
    if not is_object(inputs):
        if len(types) > 1:
            raise invalid(
                "inputs is a plain value/list, but expecting an object as multiple input tensors "
                "required as per tensorinfo_map"
            )
        inputs = dict.fromkeys(types, inputs)
    for key, dtype in types.items():
        if key not in inputs:
            raise invalid(f"Missing named input: {key} in 'inputs' object.")
        fill_tensor(request.inputs[key], inputs[key], dtype)


def is_object(value):
    return isinstance(value, dict) and not is_base64(value)


def is_base64(value):
    return isinstance(value, dict) and list(value) == ["b64"] and isinstance(value["b64"], str)


def fill_tensor(proto, value, dtype):
    """GetDenseTensorShape and FillTensorProto."""
    proto.dtype = dtype
    shape, inner = [], value
    while isinstance(inner, list):
        shape.append(len(inner))
        inner = inner[0] if inner else None
    for size in shape:
        proto.tensor_shape.dim.add().size = size
    add_values(proto, value, tf.dtypes.as_dtype(dtype), shape, 0)


def add_values(proto, value, dtype, shape, level):
    if isinstance(value, list):
        if level >= len(shape):
            raise invalid(f"Encountered list at unexpected level: {level} expected < {len(shape)}")
        if len(value) != shape[level]:
            raise invalid(
                f"Encountered list at unexpected size: {len(value)} at level: {level} expected "
                f"size: {shape[level]}"
            )
        for item in value:
            add_values(proto, item, dtype, shape, level + 1)
        return
    text = json.dumps(value, ensure_ascii=False)
    if level != len(shape):
        raise invalid(
            f"JSON Value: {text} found at incorrect level: {level + 1} in the JSON DOM. Expected "
            f"at level: {len(shape)}"
        )
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if dtype == tf.string and is_base64(value):
        proto.string_val.append(base64.b64decode(value["b64"]))
    elif dtype == tf.string and isinstance(value, str):
        proto.string_val.append(value.encode())
    elif dtype.is_floating and is_number or dtype.is_integer and isinstance(value, int):
        getattr(proto, VALUE_FIELDS[dtype]).append(value)
    elif dtype == tf.bool and isinstance(value, bool):
        proto.bool_val.append(value)
    else:
        kind = {str: "String", bool: str(value), dict: "Object"}.get(type(value), "Number")
        raise invalid(f"JSON Value: {text} Type: {kind} is not of expected type: {dtype.name}")


def to_json(name, proto):
    """AddTensorValues."""
    value = tf.make_ndarray(proto)
    if value.dtype == object:
        is_bytes = name.endswith("_bytes")
        return np.frompyfunc(base64_object if is_bytes else bytes.decode, 1, 1)(value).tolist()
    if value.dtype == np.float32:
        return np.frompyfunc(to_decimal, 1, 1)(value).tolist()
    return value.tolist()


def base64_object(content):
    return {"b64": base64.b64encode(content).decode()}


def to_decimal(value):
    """WriteDecimal: six digits where they are exact, else nine."""
    six = f"{value:.6g}"
    return float(six if np.float32(six) == np.float32(value) else f"{value:.9g}")


# ---------------------------------------------------------------- command


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--rest_api_port", type=int, required=True)
    parser.add_argument("--model_config_file", required=True)
    parser.add_argument("--enable_batching")
    parser.add_argument("--batching_parameters_file", required=True)
    parser.add_argument("--monitoring_config_file", required=True)
    parser.add_argument("--allow_version_labels_for_unavailable_models")
    parser.add_argument("--max_num_load_retries")
    flags = parser.parse_args()
    config = text_format.Parse(
        Path(flags.model_config_file).read_text(), model_server_config_pb2.ModelServerConfig()
    )
    batching = Path(flags.batching_parameters_file).read_text()
    sizes = re.findall(r"(?m)^allowed_batch_sizes: (\d+)$", batching)
    models = Models(config, [int(size) for size in sizes])

    # The ports open when everything is loaded, as the server's do.
    grpc_server = grpc.server(concurrent.futures.ThreadPoolExecutor(8))
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(
        PredictionService(models), grpc_server
    )
    model_service_pb2_grpc.add_ModelServiceServicer_to_server(ModelService(models), grpc_server)
    grpc_server.add_insecure_port(f"127.0.0.1:{flags.port}")
    grpc_server.start()
    RestHandler.models = models
    rest_server = http.server.ThreadingHTTPServer(("127.0.0.1", flags.rest_api_port), RestHandler)
    threading.Thread(target=rest_server.serve_forever, daemon=True).start()
    grpc_server.wait_for_termination()


if __name__ == "__main__":
    main()

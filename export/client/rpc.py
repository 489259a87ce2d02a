"""A model asked by gRPC."""

import grpc
import numpy as np

from export import protos
from export.client.model import (
    Connection,
    ModelSpec,
    ServedModel,
    ServingError,
    Signature,
    Tls,
    VersionStatus,
    unreachable,
)

# tensorflow.DataType by name: its number, NumPy's type, and the field of a TensorProto.
DTYPES: dict[str, tuple[int, type, str]] = {
    "DT_FLOAT": (1, np.float32, "float_val"),
    "DT_DOUBLE": (2, np.float64, "double_val"),
    "DT_INT32": (3, np.int32, "int_val"),
    "DT_STRING": (7, np.object_, "string_val"),
    "DT_INT64": (9, np.int64, "int64_val"),
    "DT_BOOL": (10, np.bool_, "bool_val"),
}
DTYPE_NAMES = {number: name for name, (number, _, _) in DTYPES.items()}
STATES = {10: "START", 20: "LOADING", 30: "AVAILABLE", 40: "UNLOADING", 50: "END"}


class GrpcModel(ServedModel):
    """A model asked by gRPC; see `ServedModel`."""

    forms = ("column",)

    def __init__(self, connection: Connection, spec: ModelSpec):
        super().__init__(connection, spec)
        options = [
            ("grpc.max_receive_message_length", -1),
            ("grpc.enable_retries", 0),  # ours are the same for REST
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.min_reconnect_backoff_ms", 100),
            ("grpc.enable_http_proxy", 0),
        ]
        if connection.tls is None:
            self._channel = grpc.insecure_channel(connection.address, options)
        else:
            credentials = _credentials(connection.tls)
            self._channel = grpc.secure_channel(connection.address, credentials, options)
        self._predict = self._channel.unary_unary(
            f"/{protos.PREDICTION_SERVICE}/Predict",
            request_serializer=protos.PredictRequest.SerializeToString,
            response_deserializer=protos.PredictResponse.FromString,
        )
        self._get_model_metadata = self._channel.unary_unary(
            f"/{protos.PREDICTION_SERVICE}/GetModelMetadata",
            request_serializer=protos.GetModelMetadataRequest.SerializeToString,
            response_deserializer=protos.GetModelMetadataResponse.FromString,
        )
        self._get_model_status = self._channel.unary_unary(
            f"/{protos.MODEL_SERVICE}/GetModelStatus",
            request_serializer=protos.GetModelStatusRequest.SerializeToString,
            response_deserializer=protos.GetModelStatusResponse.FromString,
        )

    def close(self) -> None:
        """End the connection."""
        self._channel.close()

    def predict(self, signature: str, inputs: dict[str, list]) -> dict[str, list]:
        """Ask a signature; see `ServedModel.predict`."""
        request = protos.PredictRequest()
        self._fill(request.model_spec)
        request.model_spec.signature_name = signature
        types = self.signatures[signature].inputs
        for name, values in inputs.items():
            request.inputs[name].CopyFrom(to_proto(values, types[name]))
        outputs = self._call(self._predict, request).outputs
        return {name: from_proto(outputs[name]) for name in sorted(outputs)}

    def ask(self, request: dict) -> dict:
        """Return the answer to a request in columns; see `ServedModel.ask`."""
        outputs = self.predict(request["signature_name"], request["inputs"])
        return {"outputs": next(iter(outputs.values())) if len(outputs) == 1 else outputs}

    def _get_signatures(self) -> dict[str, Signature]:
        request = protos.GetModelMetadataRequest(metadata_field=["signature_def"])
        self._fill(request.model_spec)
        metadata = self._call(self._get_model_metadata, request).metadata["signature_def"]
        signatures = protos.SignatureDefMap.FromString(metadata.value).signature_def
        return {
            name: Signature(
                {
                    key: DTYPE_NAMES.get(info.dtype, str(info.dtype))
                    for key, info in sorted(signature.inputs.items())
                },
                sorted(signature.outputs),
            )
            for name, signature in signatures.items()
        }

    def _get_status(self) -> list[VersionStatus]:
        request = protos.GetModelStatusRequest()
        request.model_spec.name = self.spec.name
        versions = self._call(self._get_model_status, request).model_version_status
        return [
            VersionStatus(v.version, STATES.get(v.state, "UNKNOWN"), v.status.error_message)
            for v in versions
        ]

    def _fill(self, spec) -> None:
        spec.name = self.spec.name
        if self.spec.version is not None:
            spec.version.value = self.spec.version
        elif self.spec.label is not None:
            spec.version_label = self.spec.label

    def _call(self, method, request):
        def call(seconds):
            try:
                return method(request, timeout=seconds)
            except grpc.RpcError as error:
                code, details = error.code().name, error.details()
                # No status of the server's own, whose UNAVAILABLE says that its queue is full.
                if code == "UNAVAILABLE" and "connect" in details.lower():
                    raise unreachable(details) from None
                raise ServingError(code, details) from None

        return self._with_retries(call)


def to_proto(values: list, dtype: str):
    """Return the TensorProto of a list with one value for each row.

    Raises:
        ValueError: There is no such type here.
    """
    if dtype not in DTYPES:
        raise ValueError(f"a value of {dtype} can't be sent; of {', '.join(DTYPES)} it can")
    number, _, field = DTYPES[dtype]
    proto = protos.TensorProto(dtype=number)
    proto.tensor_shape.dim.add(size=len(values))
    encoded = [value.encode() for value in values] if dtype == "DT_STRING" else values
    getattr(proto, field).extend(encoded)
    return proto


def from_proto(proto) -> list:
    """Return the nested lists of a TensorProto; floats have the digits that tell them apart."""
    _, numpy_type, field = DTYPES[DTYPE_NAMES[proto.dtype]]
    if proto.tensor_content:
        flat: np.ndarray = np.frombuffer(proto.tensor_content, numpy_type)
    else:
        flat = np.array(list(getattr(proto, field)), numpy_type)
    if numpy_type is np.object_:
        flat = np.array([value.decode() for value in flat], np.object_)
    elif numpy_type is np.float32:  # -0.35, not -0.3499999940395355
        flat = np.array([float(str(value)) for value in flat], np.float64)
    return flat.reshape([dim.size for dim in proto.tensor_shape.dim]).tolist()


def _credentials(tls: Tls):
    def read(path):
        return None if path is None else path.read_bytes()

    return grpc.ssl_channel_credentials(read(tls.ca), read(tls.key), read(tls.certificate))

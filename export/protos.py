"""The messages of TensorFlow Serving that are written, sent and read here.

They are described with their field numbers, so that neither TensorFlow nor tensorflow-serving-api,
whose modules load all of TensorFlow, is needed to speak with a server. Fields of no use here are
left out, as protocol buffers allow; an enumeration is its number.
"""

from typing import Any

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

PREDICTION_SERVICE = "tensorflow.serving.PredictionService"
MODEL_SERVICE = "tensorflow.serving.ModelService"

# {message: {field: (number, type)}}. The keys of a map are strings.
_MESSAGES: dict[str, dict[str, tuple[int, str]]] = {
    # google/protobuf/
    "Any": {"type_url": (1, "string"), "value": (2, "bytes")},
    "Int64Value": {"value": (1, "int64")},
    # tensorflow/core/framework/, tensorflow/core/protobuf/
    "Dim": {"size": (1, "int64")},
    "TensorShapeProto": {"dim": (2, "repeated Dim"), "unknown_rank": (3, "bool")},
    "TensorProto": {
        "dtype": (1, "int32"),
        "tensor_shape": (2, "TensorShapeProto"),
        "tensor_content": (4, "bytes"),
        "float_val": (5, "repeated float"),
        "double_val": (6, "repeated double"),
        "int_val": (7, "repeated int32"),
        "string_val": (8, "repeated bytes"),
        "int64_val": (10, "repeated int64"),
        "bool_val": (11, "repeated bool"),
    },
    "TensorInfo": {"dtype": (2, "int32"), "tensor_shape": (3, "TensorShapeProto")},
    "SignatureDef": {"inputs": (1, "map TensorInfo"), "outputs": (2, "map TensorInfo")},
    # tensorflow_serving/apis/
    "ModelSpec": {
        "name": (1, "string"),
        "version": (2, "Int64Value"),
        "version_label": (4, "string"),
        "signature_name": (3, "string"),
    },
    "PredictRequest": {"model_spec": (1, "ModelSpec"), "inputs": (2, "map TensorProto")},
    "PredictResponse": {"model_spec": (2, "ModelSpec"), "outputs": (1, "map TensorProto")},
    "PredictLog": {"request": (1, "PredictRequest")},
    "PredictionLog": {"predict_log": (6, "PredictLog")},
    "GetModelMetadataRequest": {
        "model_spec": (1, "ModelSpec"),
        "metadata_field": (2, "repeated string"),
    },
    "GetModelMetadataResponse": {"metadata": (2, "map Any")},
    "SignatureDefMap": {"signature_def": (1, "map SignatureDef")},
    "GetModelStatusRequest": {"model_spec": (1, "ModelSpec")},
    "StatusProto": {"error_code": (1, "int32"), "error_message": (2, "string")},
    "ModelVersionStatus": {
        "version": (1, "int64"),
        "state": (2, "int32"),
        "status": (3, "StatusProto"),
    },
    "GetModelStatusResponse": {"model_version_status": (1, "repeated ModelVersionStatus")},
    # tensorflow_serving/config/
    "All": {},
    "ServableVersionPolicy": {"all": (101, "All")},
    "ModelConfig": {
        "name": (1, "string"),
        "base_path": (2, "string"),
        "model_platform": (4, "string"),
        "model_version_policy": (7, "ServableVersionPolicy"),
        "version_labels": (8, "map int64"),
    },
    "ModelConfigList": {"config": (1, "repeated ModelConfig")},
    "ModelServerConfig": {"model_config_list": (1, "ModelConfigList")},
    # tensorflow_serving/servables/tensorflow/session_bundle_config.proto
    "BatchingParameters": {
        "max_batch_size": (1, "Int64Value"),
        "allowed_batch_sizes": (6, "repeated int64"),
    },
}
_PACKAGE = "keras_transformer.serving"


def _describe(message: DescriptorProto, name: str, number: int, kind: str) -> None:
    """Add one field to a message's description."""
    *label, of = kind.split()
    is_map = label == ["map"]
    field = message.field.add(
        name=name,
        number=number,
        label=FieldDescriptorProto.LABEL_REPEATED if label else FieldDescriptorProto.LABEL_OPTIONAL,
    )
    if is_map:  # a map is a repeated message of keys and values
        entry = message.nested_type.add(name="".join(map(str.title, name.split("_"))) + "Entry")
        entry.options.map_entry = True
        _describe(entry, "key", 1, "string")
        _describe(entry, "value", 2, of)
        of = f"{message.name}.{entry.name}"
    if is_map or of in _MESSAGES:
        field.type = FieldDescriptorProto.TYPE_MESSAGE
        field.type_name = f".{_PACKAGE}.{of}"
    else:
        field.type = FieldDescriptorProto.Type.Value(f"TYPE_{of.upper()}")


def _make_classes() -> dict[str, Any]:
    file = FileDescriptorProto(name="serving.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            _describe(message, field, number, kind)
    # A pool of their own: TensorFlow's messages of the same names may be loaded too.
    pool = DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return {
        name: GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
        for name in _MESSAGES
    }


_classes = _make_classes()
BatchingParameters = _classes["BatchingParameters"]
GetModelMetadataRequest = _classes["GetModelMetadataRequest"]
GetModelMetadataResponse = _classes["GetModelMetadataResponse"]
GetModelStatusRequest = _classes["GetModelStatusRequest"]
GetModelStatusResponse = _classes["GetModelStatusResponse"]
ModelServerConfig = _classes["ModelServerConfig"]
PredictionLog = _classes["PredictionLog"]
PredictRequest = _classes["PredictRequest"]
PredictResponse = _classes["PredictResponse"]
SignatureDefMap = _classes["SignatureDefMap"]
TensorProto = _classes["TensorProto"]

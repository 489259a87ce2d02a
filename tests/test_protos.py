"""The messages described here give the same bytes as those of tensorflow-serving-api."""

import pytest
import tensorflow as tf
from google.protobuf import text_format
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    get_model_status_pb2,
    predict_pb2,
    prediction_log_pb2,
)
from tensorflow_serving.config import model_server_config_pb2

from export import protos

TENSORS = {
    "text": ["你好。", ""],
    "temperature": [0.5, 1.0],
    "seed": [1, -2],
    "flag": [True, False],
    "scalar": 3,
}


def fill_predict_request(request):
    request.model_spec.name = "demo"
    request.model_spec.version.value = 2**40
    request.model_spec.signature_name = "translate"
    for name, value in TENSORS.items():
        content = tf.make_tensor_proto(value).SerializeToString()
        request.inputs[name].ParseFromString(content)


def fill_label(request):
    request.model_spec.name = "demo"
    request.model_spec.version_label = "stable"


def fill_prediction_log(record):
    fill_predict_request(record.predict_log.request)


def fill_predict_response(response):
    response.model_spec.version.value = 1
    response.outputs["score"].CopyFrom(type(response.outputs["score"])(float_val=[0.5, -1]))


def fill_metadata_request(request):
    request.model_spec.name = "demo"
    request.metadata_field.append("signature_def")


def fill_metadata(response):
    response.metadata["signature_def"].value = b"123"


def fill_signatures(signatures):
    signature = signatures.signature_def["translate"]
    signature.inputs["text"].dtype = 7
    signature.inputs["text"].tensor_shape.dim.add().size = -1
    signature.outputs["score"].dtype = 1


def fill_status(response):
    status = response.model_version_status.add(version=1)
    status.state = 50
    status.status.error_code = 2
    status.status.error_message = "Op type not registered"


def fill_config(config):
    model = config.model_config_list.config.add()
    model.name, model.base_path, model.model_platform = "demo", "/models/demo", "tensorflow"
    model.model_version_policy.all.SetInParent()
    model.version_labels.update({"stable": 1, "canary": 2})


@pytest.mark.parametrize(
    "fill, ours, theirs",
    [
        (fill_predict_request, protos.PredictRequest, predict_pb2.PredictRequest),
        (fill_label, protos.PredictRequest, predict_pb2.PredictRequest),
        (fill_prediction_log, protos.PredictionLog, prediction_log_pb2.PredictionLog),
        (fill_predict_response, protos.PredictResponse, predict_pb2.PredictResponse),
        (
            fill_metadata_request,
            protos.GetModelMetadataRequest,
            get_model_metadata_pb2.GetModelMetadataRequest,
        ),
        (
            fill_metadata,
            protos.GetModelMetadataResponse,
            get_model_metadata_pb2.GetModelMetadataResponse,
        ),
        (fill_signatures, protos.SignatureDefMap, get_model_metadata_pb2.SignatureDefMap),
        (fill_label, protos.GetModelStatusRequest, get_model_status_pb2.GetModelStatusRequest),
        (fill_status, protos.GetModelStatusResponse, get_model_status_pb2.GetModelStatusResponse),
        (fill_config, protos.ModelServerConfig, model_server_config_pb2.ModelServerConfig),
    ],
)
def test_the_bytes_are_those_of_the_service(fill, ours, theirs):
    mine, its = ours(), theirs()
    fill(mine)
    fill(its)
    content = its.SerializeToString(deterministic=True)
    assert content
    assert mine.SerializeToString(deterministic=True) == content
    assert ours.FromString(content) == mine


def test_a_configuration_reads_as_the_service_s_own():
    mine, its = protos.ModelServerConfig(), model_server_config_pb2.ModelServerConfig()
    fill_config(its)
    fill_config(mine)
    text = text_format.MessageToString(mine)
    assert text_format.Parse(text, model_server_config_pb2.ModelServerConfig()) == its

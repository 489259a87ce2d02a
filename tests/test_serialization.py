"""Facts about saved models: what comes back, in a fresh process too, and what stays tied."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import build_transformer
from keras_transformer.model import StepDecoder

ROOT = Path(__file__).resolve().parents[1]
SOURCE_IDS = np.array([[4, 9, 5, 17, 3], [6, 3, 0, 0, 0]], "int32")
TARGET_IDS = np.array([[2, 8, 19], [2, 11, 0]], "int32")
INPUTS = {"source_ids": SOURCE_IDS, "target_ids": TARGET_IDS}

SHORT = {"num_encoder_layers": 1, "num_decoder_layers": 1}
CASES = {
    "tied": {},
    "separate_vocabularies": {**SHORT, "source_vocab_size": 18},
    "untied": {**SHORT, "tie_weights": False},
    "all_options": {
        **SHORT,
        "attention_dropout": 0.1,
        "activation_dropout": 0.1,
        "activation": "gelu",
        "pre_norm": True,
        "learned_positions": True,
    },
}

# What a reader of the files runs: load each model whole, and build it anew for its weights.
READER = """
import json, sys
from pathlib import Path
import keras, numpy as np
from keras_transformer import ModelConfig, build_transformer
from keras_transformer.model import StepDecoder

folder = Path(sys.argv[1])
inputs = dict(np.load(folder / "inputs.npz"))
outputs = {}
for path in sorted(folder.glob("*.keras")):
    name = path.stem
    model = keras.models.load_model(path)
    outputs[f"{name} whole"] = keras.ops.convert_to_numpy(model(inputs))
    built = build_transformer(ModelConfig.from_json((folder / f"{name}.json").read_text()))
    built.load_weights(folder / f"{name}.weights.h5")
    outputs[f"{name} weights"] = keras.ops.convert_to_numpy(built(inputs))
    step, cache = StepDecoder(model).start(inputs["source_ids"])
    first = inputs["target_ids"][:, :1]
    logits, _ = step(first, np.zeros_like(first), 0, cache)
    outputs[f"{name} step"] = keras.ops.convert_to_numpy(logits)
    outputs[f"{name} weight_count"] = len(model.weights)
    outputs[f"{name} policy"] = str(model.get_layer("encoder").dtype_policy.name)
np.savez(folder / "outputs.npz", **outputs)
"""


def values(x):
    return ops.convert_to_numpy(x)


@pytest.fixture(scope="module")
def models(tiny_config, tiny_model):
    models = {name: tiny_model(**case) for name, case in CASES.items()}
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        models["mixed_bfloat16"] = build_transformer(tiny_config(**SHORT))
    finally:
        keras.config.set_dtype_policy(before)
    return models


@pytest.fixture(scope="module")
def read_back(models, tiny_config, tmp_path_factory):
    """What a fresh process computes from the saved files."""
    folder = tmp_path_factory.mktemp("saved")
    np.savez(folder / "inputs.npz", **INPUTS)
    for name, model in models.items():
        model.save(folder / f"{name}.keras")
        model.save_weights(folder / f"{name}.weights.h5")
        config = tiny_config(**CASES.get(name, SHORT))
        (folder / f"{name}.json").write_text(config.to_json())
    process = subprocess.run(
        [sys.executable, "-c", READER, str(folder)], cwd=ROOT, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr
    return dict(np.load(folder / "outputs.npz"))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("way", ["whole", "weights"])
def test_a_fresh_process_computes_the_same_bits(models, read_back, name, way):
    np.testing.assert_array_equal(read_back[f"{name} {way}"], values(models[name](INPUTS)))


@pytest.mark.parametrize("name", CASES)
def test_a_fresh_process_can_decode_step_by_step(models, read_back, name):
    step, cache = StepDecoder(models[name]).start(SOURCE_IDS)
    logits, _ = step(TARGET_IDS[:, :1], np.zeros_like(TARGET_IDS[:, :1]), 0, cache)
    np.testing.assert_array_equal(read_back[f"{name} step"], values(logits))


def test_a_saved_model_keeps_its_precision(models, read_back):
    assert read_back["mixed_bfloat16 policy"] == "mixed_bfloat16"
    expected = values(models["mixed_bfloat16"](INPUTS))
    # Not bit for bit: a functional model itself has the policy of the process, and on it depends
    # whether a layer with autocast=False, as the embedding, is given its weights rounded.
    np.testing.assert_allclose(read_back["mixed_bfloat16 whole"], expected, atol=0.03)


@pytest.mark.parametrize("name", CASES)
def test_a_fresh_process_finds_no_more_weights(models, read_back, name):
    assert read_back[f"{name} weight_count"] == len(models[name].weights)


@pytest.mark.parametrize("name", CASES)
def test_a_model_survives_its_config(models, name):
    model = models[name]
    restored = keras.Model.from_config(json.loads(json.dumps(model.get_config())))
    restored.set_weights(model.get_weights())
    np.testing.assert_array_equal(values(restored(INPUTS)), values(model(INPUTS)))
    assert [weight.path for weight in restored.weights] == [weight.path for weight in model.weights]


def test_a_config_saved_beside_the_model_is_the_config(tiny_config):
    config = tiny_config(**CASES["all_options"])
    assert dataclasses.asdict(type(config).from_json(config.to_json())) == config.to_dict()


def embedding_matrices(model):
    """Returns source embedding, target embedding and output projection, as the model uses them.

    Measured on the layers' outputs, not read from their weights.
    """
    names = {layer.name for layer in model.layers}
    source, target = (
        model.get_layer("embedding" if "embedding" in names else f"{side}_embedding")
        for side in ("source", "target")
    )
    scale = target.output_dim**0.5
    unit_vectors = np.eye(target.output_dim, dtype="float32")
    return (
        values(source(np.arange(source.input_dim))) / scale,
        values(target(np.arange(target.input_dim))) / scale,
        values(target(unit_vectors, reverse=True)).T,
    )


def assert_tied(model, name):
    source, target, output = embedding_matrices(model)
    matrices = [weight for weight in model.trainable_variables if "embeddings" in weight.path]
    if name == "tied":
        assert len(matrices) == 1
        np.testing.assert_allclose(source, target, rtol=1e-5)
        np.testing.assert_allclose(output, target, rtol=1e-5)
    elif name == "separate_vocabularies":
        assert len(matrices) == 2
        assert source.shape == (18, 12)
        np.testing.assert_allclose(output, target, rtol=1e-5)
        assert not np.allclose(source, target[:18], atol=1e-2)
    else:
        assert len(matrices) == 2
        np.testing.assert_allclose(source, target, rtol=1e-5)
        assert not np.allclose(target, output, atol=1e-2)


@pytest.mark.parametrize("name", ["tied", "separate_vocabularies", "untied"])
def test_weights_are_tied_as_configured_after_loading_and_after_a_further_step(
    tiny_config, tmp_path, name
):
    config = tiny_config(**{**CASES[name], **SHORT, "dropout": 0.0})
    model = build_transformer(config)
    assert_tied(model, name)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert_tied(loaded, name)
    before = embedding_matrices(loaded)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    loaded.compile(keras.optimizers.SGD(0.5), loss, run_eagerly=True)  # quicker for one step
    loaded.fit(INPUTS, TARGET_IDS, verbose=0)
    assert_tied(loaded, name)
    for old, new in zip(before, embedding_matrices(loaded), strict=True):
        assert not np.allclose(old, new, atol=1e-3)

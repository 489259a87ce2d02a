"""Facts about ModelConfig: the paper's presets, validation, round trips."""

import dataclasses
import json

import pytest

from keras_transformer import ModelConfig
from keras_transformer.config import ACTIVATIONS, END_ID, PAD_ID, PRESETS, START_ID, UNKNOWN_ID


def test_special_ids_are_the_first_four_and_padding_is_zero():
    assert PAD_ID == 0
    assert sorted((PAD_ID, UNKNOWN_ID, START_ID, END_ID)) == [0, 1, 2, 3]


# Vaswani et al. 2017, table 3: N, d_model, d_ff, h, d_k, P_drop.
@pytest.mark.parametrize(
    ("name", "row"),
    [("base", (6, 512, 2048, 8, 64, 0.1)), ("big", (6, 1024, 4096, 16, 64, 0.3))],
)
def test_presets_are_the_rows_of_table_3(name, row):
    config = ModelConfig.preset(name, vocab_size=37000)
    assert row == (
        config.num_encoder_layers,
        config.d_model,
        config.d_ff,
        config.num_heads,
        config.key_dim,
        config.dropout,
    )
    assert config.num_decoder_layers == config.num_encoder_layers
    assert config.attention_dropout == config.activation_dropout == 0
    assert config.activation == "relu"
    assert not config.pre_norm
    assert not config.learned_positions
    assert config.tie_weights
    assert config.shares_vocabulary


def test_the_defaults_are_the_base_model():
    assert ModelConfig(100) == ModelConfig.preset("base", 100)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_valid_and_a_config_of_its_own(name):
    config = ModelConfig.preset(name, vocab_size=100)
    assert config.vocab_size == 100
    others = [ModelConfig.preset(other, vocab_size=100) for other in PRESETS if other != name]
    assert config not in others


def test_preset_overrides_replace_single_fields():
    config = ModelConfig.preset("big", 100, dropout=0.2, pre_norm=True, source_vocab_size=50)
    assert config == dataclasses.replace(
        ModelConfig.preset("big", 100), dropout=0.2, pre_norm=True, source_vocab_size=50
    )
    assert config.d_model == 1024
    assert not config.shares_vocabulary


def test_unknown_preset_is_an_error_that_lists_the_presets():
    with pytest.raises(ValueError, match="preset must be one of tiny, small, base, big, .*'huge'"):
        ModelConfig.preset("huge", 100)


def test_unknown_preset_override_is_an_error_that_names_it():
    with pytest.raises(ValueError, match="unknown model option 'layers'"):
        ModelConfig.preset("tiny", 100, layers=3)


def test_preset_overrides_are_validated():
    with pytest.raises(ValueError, match="num_heads must divide d_model.*num_heads=3.*d_model=128"):
        ModelConfig.preset("tiny", 100, num_heads=3)


def test_a_target_may_be_50_tokens_longer_than_the_longest_source():  # paper 6.1
    assert ModelConfig(100, max_length=30).max_target_length == 80


INVALID = [
    *[("vocab_size", value) for value in (0, 3, -5, 10.0, "100", True, None)],
    *[("source_vocab_size", value) for value in (3, 2.5, "100", False)],
    *[
        (name, value)
        for name in (
            "num_encoder_layers",
            "num_decoder_layers",
            "d_model",
            "num_heads",
            "d_ff",
            "max_length",
        )
        for value in (0, -1, 1.5, "2", True, None)
    ],
    ("d_model", 511),
    ("num_heads", 7),
    *[
        (name, value)
        for name in ("dropout", "attention_dropout", "activation_dropout")
        for value in (-0.1, 1, 1.5, "0.1", True, None, float("nan"))
    ],
    *[("activation", value) for value in ("tanh", "ReLU", None, 1)],
    *[
        (name, value)
        for name in ("pre_norm", "learned_positions", "tie_weights")
        for value in (1, 0, "true", None)
    ],
]


@pytest.mark.parametrize(("name", "value"), INVALID)
def test_an_invalid_value_is_an_error_that_names_argument_and_value(name, value):
    with pytest.raises(ValueError) as error:
        ModelConfig(**{"vocab_size": 100, "num_heads": 1, name: value})
    message = str(error.value)
    assert message.startswith(name)
    shown = repr(value) if name != "num_heads" or value != 7 else "num_heads=7"
    assert f"received {shown}" in message


def test_d_model_must_be_even():
    with pytest.raises(ValueError, match="d_model must be even.*received 7"):
        ModelConfig(100, d_model=7, num_heads=1)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_limits_themselves_are_valid(activation):
    ModelConfig(
        4,
        source_vocab_size=4,
        num_encoder_layers=1,
        num_decoder_layers=1,
        d_model=2,
        num_heads=1,
        d_ff=1,
        dropout=0,
        attention_dropout=0.999,
        activation=activation,
        max_length=1,
    )


def test_a_config_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        ModelConfig(100).d_model = 3


NO_DEFAULTS = {
    "vocab_size": 21,
    "source_vocab_size": 22,
    "num_encoder_layers": 1,
    "num_decoder_layers": 2,
    "d_model": 8,
    "num_heads": 2,
    "d_ff": 12,
    "dropout": 0.25,
    "attention_dropout": 0.125,
    "activation_dropout": 0.375,
    "activation": "silu",
    "pre_norm": True,
    "learned_positions": True,
    "tie_weights": False,
    "max_length": 17,
}


def test_json_round_trip_keeps_every_field():
    assert set(NO_DEFAULTS) == {field.name for field in dataclasses.fields(ModelConfig)}
    config = ModelConfig(**NO_DEFAULTS)
    assert json.loads(config.to_json()) == NO_DEFAULTS
    assert config.to_dict() == NO_DEFAULTS
    assert ModelConfig.from_json(config.to_json()) == config
    assert ModelConfig.from_json(ModelConfig(100).to_json()) == ModelConfig(100)


def test_json_with_an_unknown_key_is_an_error_that_lists_the_known_ones():
    text = json.dumps({**NO_DEFAULTS, "d_mdoel": 8})
    with pytest.raises(ValueError, match="unknown model option 'd_mdoel'; known: vocab_size, .*"):
        ModelConfig.from_json(text)


def test_json_without_vocab_size_is_an_error():
    with pytest.raises(ValueError, match="vocab_size is missing"):
        ModelConfig.from_json('{"d_model": 8}')


def test_json_values_are_validated():
    with pytest.raises(ValueError, match="dropout must be a number .*received '0.1'"):
        ModelConfig.from_json('{"vocab_size": 100, "dropout": "0.1"}')

"""The options of a run: defaults, TOML, the command line, and what each mistake is told."""

import dataclasses
import json
import re
from pathlib import Path

import pytest

import training
from keras_transformer.config import PRESETS
from training.config import RunConfig, TrainingConfig

CONFIGS = sorted((Path(training.__file__).parent / "configs").glob("*.toml"))


@pytest.fixture
def toml(tmp_path):
    """Return a function that writes a TOML file and gives its path."""

    def write(text):
        path = tmp_path / "options.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def load(path, training=None, model=None):
    return RunConfig.load(path, training or {}, model or {})


def error_of(path, training=None, model=None):
    """Return the message of the ValueError, which must be one line."""
    with pytest.raises(ValueError) as raised:
        load(path, training, model)
    message = str(raised.value)
    assert "\n" not in message
    return message


def test_without_a_file_all_is_the_default_and_the_model_is_small():
    config = load(None)
    assert config.training == TrainingConfig()
    assert config.model == {"preset": "small"}


def test_the_defaults_are_those_of_the_paper_where_it_has_any():
    config = TrainingConfig()
    assert (config.warmup_steps, config.label_smoothing) == (4000, 0.1)
    assert config.learning_rate_scale == 1.0 and config.shared_vocabulary


def test_a_file_overrides_single_defaults(toml):
    path = toml(
        '[model]\npreset = "tiny"\ndropout = 0.3\n[training]\nbatch_tokens = 512\nseed = 7\n'
    )
    config = load(path)
    assert config.training == dataclasses.replace(TrainingConfig(), batch_tokens=512, seed=7)
    assert config.model == {"preset": "tiny", "dropout": 0.3}
    model = config.model_config(1000, None)
    assert (model.d_model, model.dropout, model.vocab_size) == (128, 0.3, 1000)


def test_an_empty_file_is_the_default(toml):
    assert load(toml("")) == load(None)


def test_what_is_given_on_the_command_line_wins_over_the_file(toml):
    path = toml('[model]\npreset = "tiny"\n[training]\nmax_steps = 5\nseed = 7\n')
    config = load(path, {"max_steps": 9}, {"preset": "base"})
    assert (config.training.max_steps, config.training.seed) == (9, 7)
    assert config.model["preset"] == "base"


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_makes_a_model(preset):
    assert load(None, model={"preset": preset}).model_config(500, 400).source_vocab_size == 400


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_every_file_that_comes_with_the_package_loads_and_sets_something(path):
    config = load(path)
    assert config.training != TrainingConfig()
    config.model_config(config.training.vocab_size, None)


def test_files_come_with_the_package():
    assert "phrasebook.toml" in [path.name for path in CONFIGS]  # `make demo` needs it


@pytest.mark.parametrize(
    "text, key",
    [
        ("[trainig]\nseed = 1\n", "trainig"),
        ("seed = 1\n", "seed"),
        ("training = 3\n", "training"),
        ("[training]\nbatch_size = 3\n", "batch_size"),
        ("[model]\nlayers = 3\n", "layers"),
    ],
)
def test_an_unknown_table_or_key_is_an_error_that_names_file_and_key(toml, text, key):
    path = toml(text)
    message = error_of(path)
    assert str(path) in message and repr(key) in message and "known: " in message


@pytest.mark.parametrize("name", ["vocab_size", "source_vocab_size"])
def test_a_vocabulary_size_under_model_is_an_error_that_says_where_it_belongs(toml, name):
    path = toml(f"[model]\n{name} = 500\n")
    message = error_of(path)
    assert str(path) in message and repr(name) in message and "[training]" in message


@pytest.mark.parametrize(
    "line, name, kind",
    [
        ('batch_tokens = "4096"', "batch_tokens", "an integer"),
        ("batch_tokens = 4096.0", "batch_tokens", "an integer"),
        ("batch_tokens = true", "batch_tokens", "an integer"),
        ("seed = false", "seed", "an integer"),
        ('max_minutes = "30"', "max_minutes", "a number"),
        ("max_minutes = true", "max_minutes", "a number"),
        ("label_smoothing = []", "label_smoothing", "a number"),
        ("train = 3", "train", "a string"),
        ('tags = "<2en>"', "tags", "a list of strings"),
        ("tags = [2]", "tags", "a list of strings"),
        ("shared_vocabulary = 1", "shared_vocabulary", "true or false"),
        ('shared_vocabulary = "yes"', "shared_vocabulary", "true or false"),
    ],
)
def test_a_value_of_another_type_is_an_error_that_names_file_option_and_type(
    toml, line, name, kind
):
    path = toml(f"[training]\n{line}\n")
    assert error_of(path).startswith(f"{path}: {name} must be {kind}, received ")


def test_an_integer_is_a_number(toml):
    path = toml("[training]\nmax_minutes = 30\nlearning_rate_scale = 2\nlabel_smoothing = 0\n")
    assert load(path).training.max_minutes == 30


@pytest.mark.parametrize(
    "name, value",
    [
        *((name, 0) for name in ("vocab_size", "batch_tokens", "warmup_steps", "max_steps")),
        *((name, -1) for name in ("evaluation_sentences", "log_every_steps", "max_minutes")),
        *((name, -1) for name in ("evaluate_every_steps", "seed")),
        *(("learning_rate_scale", value) for value in (0.0, float("nan"), float("inf"))),
        *(("max_minutes", value) for value in (-0.5, float("nan"), float("inf"))),
        *(("label_smoothing", value) for value in (-0.1, 1.0, float("nan"))),
        *(("character_coverage", value) for value in (0.9, 1.1, float("nan"))),
        *((name, 0) for name in ("gradient_accumulation_steps", "subword_nbest_size")),
        *(("average_decay", value) for value in (-0.1, 1.0, float("nan"))),
        *(("subword_alpha", value) for value in (-0.1, float("nan"), float("inf"))),
        *(("weight_decay", value) for value in (-0.1, float("nan"), float("inf"))),
        ("average_checkpoints", 0),
        ("patience", -1),
        ("mixed_precision", "float16"),
        ("select_by", "accuracy"),
        ("optimizer", "sgd"),
        ("init_vocabulary", "copy"),
    ],
)
def test_a_value_outside_its_range_is_an_error_that_names_option_and_value(name, value):
    with pytest.raises(ValueError, match=rf"^{name} must .*received {re.escape(repr(value))}$"):
        TrainingConfig(**{name: value})


@pytest.mark.parametrize("tag", ["", " ", "<2 en>", "<2en>\n"])
def test_a_tag_must_be_visible_and_without_spaces(tag):
    with pytest.raises(ValueError, match=rf"^tags must .*received {re.escape(repr(tag))}$"):
        TrainingConfig(tags=("<2de>", tag))


def test_there_is_one_average_at_the_most():
    message = "^average_decay and average_checkpoints .* received 0.9 and 5$"
    with pytest.raises(ValueError, match=message):
        TrainingConfig(average_decay=0.9, average_checkpoints=5)


def test_tags_are_a_list_in_the_file(toml):
    path = toml('[training]\ntags = ["<2en>", "<2zh>"]\n')
    assert load(path).training.tags == ("<2en>", "<2zh>")


@pytest.mark.parametrize(
    "name", ["max_minutes", "evaluate_every_steps", "patience", "subword_alpha", "seed"]
)
def test_an_option_that_may_be_0_may_be_0(name):
    assert getattr(TrainingConfig(**{name: 0}), name) == 0


@pytest.mark.parametrize("given, missing", [("train", "valid"), ("valid", "train")])
def test_training_without_validation_corpus_is_an_error_and_the_other_way_round(given, missing):
    assert error_of(None, {given: "pairs.tsv"}).startswith(f"{missing} is missing")


def test_a_corpus_may_come_half_from_the_file_and_half_from_the_command_line(toml):
    path = toml('[training]\nvalid = "valid.tsv"\n')
    config = load(path, {"train": "train.tsv"}).training
    assert (config.train, config.valid) == ("train.tsv", "valid.tsv")


def test_an_unknown_preset_is_an_error_that_lists_the_known_ones(toml):
    path = toml('[model]\npreset = "huge"\n')
    message = error_of(path)
    assert message.startswith(f"{path}: preset must be one of {', '.join(PRESETS)}")
    assert "'huge'" in message


def test_a_bad_value_under_model_is_an_error_that_names_file_and_field(toml):
    path = toml("[model]\nnum_heads = 5\n")
    assert error_of(path).startswith(f"{path}: num_heads must divide d_model")


def test_a_vocabulary_without_room_for_the_special_pieces_is_an_error():
    assert error_of(None, {"vocab_size": 3}).startswith("vocab_size must be")


def test_a_file_that_is_missing_or_no_file_is_an_error_that_names_it(tmp_path):
    missing = tmp_path / "missing.toml"
    assert error_of(missing) == f"{missing}: No such file or directory"
    assert error_of(tmp_path) == f"{tmp_path}: Is a directory"


@pytest.mark.parametrize(
    "content", [b"[training\n", b"seed: 1\n", b"\xff\xfe[\0", b"[training]\nseed = 1\nseed = 2\n"]
)
def test_a_file_that_is_no_toml_is_an_error_that_names_it(tmp_path, content):
    path = tmp_path / "options.toml"
    path.write_bytes(content)
    assert error_of(path).startswith(f"{path}: no TOML file: ")


# The model of an earlier run


@pytest.fixture
def earlier(tmp_path):
    """Return a run directory with a configuration."""
    folder = tmp_path / "earlier"
    folder.mkdir()
    model = RunConfig(model={"preset": "tiny", "dropout": 0.3}).model_config(500, 400)
    (folder / "config.json").write_text(json.dumps({"model": model.to_dict(), "training": {}}))
    return folder


def test_a_warm_start_has_the_model_of_the_earlier_run(earlier):
    model = load(None, {"init_from": str(earlier)}).model_config(700, None)
    assert (model.d_model, model.dropout) == (128, 0.3)
    assert (model.vocab_size, model.source_vocab_size) == (700, None)


def test_what_the_file_or_the_command_line_says_wins_over_the_earlier_run(earlier, toml):
    path = toml(f'[model]\ndropout = 0.1\n[training]\ninit_from = "{earlier}"\n')
    model = load(path, model={"preset": "small"}).model_config(700, None)
    assert (model.d_model, model.dropout, model.num_encoder_layers) == (256, 0.1, 3)


def test_a_warm_started_run_is_resumed_without_the_earlier_one(tmp_path):
    path = tmp_path / "config.json"
    model = RunConfig(model={"preset": "tiny"}).model_config(500, None).to_dict()
    path.write_text(
        json.dumps({"model": model, "training": {"init_from": "gone", "tags": ["<x>"]}})
    )
    config = load(path)
    assert config.model_config(500, None).d_model == 128
    assert (config.training.init_from, config.training.tags) == ("gone", ("<x>",))


@pytest.mark.parametrize("content", [None, "{", "{}", '{"model": 3}'])
def test_an_earlier_run_without_a_configuration_is_named(tmp_path, content):
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    message = error_of(None, {"init_from": str(tmp_path)})
    assert message.startswith(f"init_from: {tmp_path / 'config.json'}: ")

"""Warm start: the weights of a run, with its vocabulary or another, and what does not fit."""

import json

import keras
import numpy as np
import pytest

from keras_transformer import ModelConfig, build_transformer
from keras_transformer.tokenizer import Tokenizer
from training.vocabulary import extend_vocabulary, pieces_of, train_vocabulary
from training.warm_start import copy_weights, read_vocabularies

CHINESE = ["你好。", "我喜欢喝茶。", "他在学校学习中文。", "车站在哪里？"]
ENGLISH = ["Hello.", "I like to drink tea.", "He studies Chinese at school.", "Where is it?"]
GERMAN = ["Guten Tag.", "Ich trinke gern Tee.", "Er studiert Chinesisch.", "Wo ist der Bahnhof?"]
SIZES = {
    "num_encoder_layers": 1,
    "num_decoder_layers": 1,
    "d_model": 8,
    "num_heads": 2,
    "d_ff": 12,
    "max_length": 20,
}


def values(variable):
    return keras.ops.convert_to_numpy(variable)


def make_config(vocabularies, **options):
    sizes = [Tokenizer(vocabulary).vocab_size for vocabulary in vocabularies]
    source = sizes[0] if len(sizes) == 2 else None
    return ModelConfig(sizes[-1], source, **{**SIZES, **options})


def make_run(folder, vocabularies, **options):
    """Write a run directory; return it with its model."""
    folder.mkdir()
    config = make_config(vocabularies, **options)
    (folder / "config.json").write_text(json.dumps({"model": config.to_dict()}))
    names = ["source_tokenizer.model", "tokenizer.model"][-len(vocabularies) :]
    for name, vocabulary in zip(names, vocabularies, strict=True):
        (folder / name).write_bytes(vocabulary)
    model = build_transformer(config)
    model.save_weights(folder / "model.weights.h5")
    return folder, model


@pytest.fixture(scope="module")
def old():
    return train_vocabulary([*CHINESE, *ENGLISH], 320)


@pytest.fixture(scope="module")
def new():
    return train_vocabulary([*ENGLISH, *GERMAN], 340, tags=["<2de>"])


def assert_embeddings_follow_the_pieces(table, earlier_table, pieces, earlier_pieces, random_table):
    common = 0
    for row, piece in enumerate(pieces):
        if piece in earlier_pieces:
            common += 1
            np.testing.assert_array_equal(table[row], earlier_table[earlier_pieces.index(piece)])
        else:
            np.testing.assert_array_equal(table[row], random_table[row])
    assert 260 < common < len(pieces)
    return common


def test_with_the_same_vocabulary_every_weight_is_the_runs(tmp_path, old):
    run, earlier = make_run(tmp_path / "run", [old], pre_norm=True)
    vocabularies = read_vocabularies(run)
    assert vocabularies == [old]
    config = make_config(vocabularies, pre_norm=True, dropout=0.3, max_length=30)
    model = build_transformer(config)
    assert copy_weights(model, config, vocabularies, run) == len(pieces_of(old))
    for one, other in zip(model.trainable_variables, earlier.trainable_variables, strict=True):
        np.testing.assert_array_equal(values(one), values(other))


@pytest.mark.parametrize("tie_weights", [True, False])
def test_with_a_new_vocabulary_the_pieces_that_both_have_keep_their_embeddings(
    tmp_path, old, new, tie_weights
):
    run, earlier = make_run(tmp_path / "run", [old], tie_weights=tie_weights)
    config = make_config([new], tie_weights=tie_weights)
    model = build_transformer(config)
    before = [values(variable).copy() for variable in model.trainable_variables]
    common = copy_weights(model, config, [new], run)
    tables = 0
    for variable, other, random in zip(
        model.trainable_variables, earlier.trainable_variables, before, strict=True
    ):
        found, source = values(variable), values(other)
        if found.shape == source.shape:
            np.testing.assert_array_equal(found, source)
            continue
        tables += 1
        if found.shape[0] == 8:  # the output projection: a column for each piece
            found, source, random = found.T, source.T, random.T
        assert common == assert_embeddings_follow_the_pieces(
            found, source, pieces_of(new), pieces_of(old), random
        )
    assert tables == (1 if tie_weights else 2)


def test_each_side_has_its_own_pieces_with_separate_vocabularies(tmp_path, old, new):
    chinese, english = train_vocabulary(CHINESE, 290), train_vocabulary(ENGLISH, 300)
    run, earlier = make_run(tmp_path / "run", [chinese, english])
    assert read_vocabularies(run) == [chinese, english]
    config = make_config([old, new])
    model = build_transformer(config)
    names = ("source_embedding", "target_embedding")
    before = [values(model.get_layer(name).embeddings).copy() for name in names]
    common = copy_weights(model, config, [old, new], run)
    for name, random, pieces, earlier_pieces in zip(
        names, before, (old, new), (chinese, english), strict=True
    ):
        found = assert_embeddings_follow_the_pieces(
            values(model.get_layer(name).embeddings),
            values(earlier.get_layer(name).embeddings),
            pieces_of(pieces),
            pieces_of(earlier_pieces),
            random,
        )
    assert common == found


def test_an_extended_vocabulary_keeps_all_embeddings(tmp_path, old, new):
    run, earlier = make_run(tmp_path / "run", [old])
    extended = extend_vocabulary(old, new)
    config = make_config([extended])
    model = build_transformer(config)
    assert copy_weights(model, config, [extended], run) == len(pieces_of(old))
    table = values(model.get_layer("embedding").embeddings)
    np.testing.assert_array_equal(
        table[: len(pieces_of(old))], values(earlier.get_layer("embedding").embeddings)
    )


@pytest.mark.parametrize(
    "name, value",
    [
        ("d_model", 12),
        ("num_heads", 4),
        ("num_decoder_layers", 2),
        ("pre_norm", True),
        ("tie_weights", False),
        ("activation", "gelu"),
    ],
)
def test_another_shape_is_an_error_that_names_the_option_and_the_run(tmp_path, old, name, value):
    run, _ = make_run(tmp_path / "run", [old])
    config = make_config([old], **{name: value})
    model = build_transformer(config)
    with pytest.raises(ValueError) as raised:
        copy_weights(model, config, [old], run)
    assert str(raised.value).startswith(f"init_from {run}: {name} must be ")
    assert str(raised.value).endswith(f"received {value!r}")


def test_learned_positions_must_be_as_many(tmp_path, old):
    run, _ = make_run(tmp_path / "run", [old], learned_positions=True)
    config = make_config([old], learned_positions=True, max_length=30)
    with pytest.raises(ValueError, match="max_length must be 20 as in that run, received 30"):
        copy_weights(build_transformer(config), config, [old], run)


def test_shared_and_separate_vocabularies_do_not_mix(tmp_path, old, new):
    run, _ = make_run(tmp_path / "run", [old])
    config = make_config([old, new])
    with pytest.raises(ValueError, match="shared_vocabulary must be true, as in that run"):
        copy_weights(build_transformer(config), config, [old, new], run)


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.model", "model.weights.h5"])
def test_a_run_that_is_not_whole_is_an_error_that_names_the_file(tmp_path, old, missing):
    run, _ = make_run(tmp_path / "run", [old])
    (run / missing).unlink()
    config = make_config([old])
    with pytest.raises(ValueError) as raised:
        read_vocabularies(run)
        copy_weights(build_transformer(config), config, [old], run)
    assert str(run / missing) in str(raised.value)

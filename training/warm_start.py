"""Starts a model from the weights of an earlier run (fine-tuning), also with other pieces."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import keras
import numpy as np

from keras_transformer.config import (
    SOURCE_TOKENIZER_FILE,
    TOKENIZER_FILE,
    ModelConfig,
)
from keras_transformer.embedding import TokenEmbedding
from keras_transformer.translator import Translator, read_model_config
from training.vocabulary import pieces_of

# What does not decide the shape of a weight.
FREE_OPTIONS = (
    "vocab_size",
    "source_vocab_size",
    "dropout",
    "attention_dropout",
    "activation_dropout",
)


def read_vocabularies(run: Path) -> list[bytes]:
    """Return the SentencePiece model of a run: one for both languages, or source and target.

    Raises:
        ValueError: A file is missing; the message names it.
    """
    shared = read_model_config(run).shares_vocabulary
    names = [TOKENIZER_FILE] if shared else [SOURCE_TOKENIZER_FILE, TOKENIZER_FILE]
    try:
        return [(run / name).read_bytes() for name in names]
    except OSError as error:
        raise ValueError(f"{error.filename}: {error.strerror}") from None


def copy_weights(
    model: keras.Model, config: ModelConfig, vocabularies: Sequence[bytes], run: Path
) -> int:
    """Give a model the best weights of a run; pieces that are new keep their random embeddings.

    Args:
        model: From `build_transformer`.
        config: Of `model`.
        vocabularies: The SentencePiece models of `model`, as `read_vocabularies` returns a run's.
        run: The run directory.

    Returns:
        How many pieces (of the target, with separate vocabularies) have embeddings from the run.

    Raises:
        ValueError: The run is not whole, or its model has another shape; the message names the
            option.
    """
    check_shape(config, run)
    earlier = Translator.from_run(run).model
    ids = [
        _common_ids(pieces_of(old), pieces_of(new))
        for old, new in zip(read_vocabularies(run), vocabularies, strict=True)
    ]
    rows = {}  # of a variable with a row for each piece: the ids, and whether rows are columns
    for layer in model.layers:
        if isinstance(layer, TokenEmbedding):
            side = 0 if layer.name == "source_embedding" else -1
            for variable in layer.trainable_variables:
                rows[id(variable)] = (*ids[side], variable is not layer.embeddings)
    weights = [keras.ops.convert_to_numpy(v) for v in earlier.trainable_variables]
    for variable, value in zip(model.trainable_variables, weights, strict=True):
        if id(variable) in rows:
            old_ids, new_ids, are_columns = rows[id(variable)]
            old = value.T if are_columns else value
            value = np.array(keras.ops.convert_to_numpy(variable))
            (value.T if are_columns else value)[new_ids] = old[old_ids]
        variable.assign(value)
    return len(ids[-1][0])


def _common_ids(old: list[str], new: list[str]) -> tuple[list[int], list[int]]:
    """Return the ids of the pieces both have, in the old vocabulary and in the new one."""
    old_ids = {piece: i for i, piece in enumerate(old)}
    common = [(old_ids[piece], i) for i, piece in enumerate(new) if piece in old_ids]
    return [i for i, _ in common], [i for _, i in common]


def check_shape(config: ModelConfig, run: Path) -> None:
    """Check that the weights of a run fit a model.

    Args:
        config: Of the model; the sizes of its vocabularies don't matter.
        run: The run directory.

    Raises:
        ValueError: They don't fit, or there is no run; the message names the option or the file.
    """
    earlier = read_model_config(run)
    if config.shares_vocabulary != earlier.shares_vocabulary:
        raise ValueError(
            f"init_from {run}: shared_vocabulary must be "
            f"{str(earlier.shares_vocabulary).lower()}, as in that run"
        )
    for field in dataclasses.fields(ModelConfig):
        new, old = getattr(config, field.name), getattr(earlier, field.name)
        is_free = field.name in FREE_OPTIONS or (
            field.name == "max_length" and not config.learned_positions
        )
        if new != old and not is_free:
            raise ValueError(
                f"init_from {run}: {field.name} must be {old!r} as in that run, received {new!r}"
            )

"""The options of one training run: a frozen TrainingConfig, read from TOML and the command line."""

import dataclasses
import json
import math
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from keras_transformer.config import CONFIG_FILE, PRESETS, ModelConfig

STRATEGIES = ("", "mirrored", "data_parallel")
VOCABULARY_SIZES = ("vocab_size", "source_vocab_size")


class Process(NamedTuple):
    """One of the processes that train a model together.

    Attributes:
        number: From 0, the first, which writes the run directory.
        num_processes: Of all of them.
        coordinator: "HOST:PORT" at which the first one can be reached by the others.
    """

    number: int
    num_processes: int
    coordinator: str

    @classmethod
    def parse(cls, text: str) -> "Process":
        """Read "NUMBER/COUNT@HOST:PORT".

        Raises:
            ValueError: It is none.
        """
        match = re.fullmatch(r"(\d+)/(\d+)@(\S+:\d+)", text)
        if not match or not int(match[1]) < int(match[2]):
            raise ValueError(
                "--process must be NUMBER/COUNT@HOST:PORT with NUMBER from 0 to COUNT - 1, as "
                f"0/2@host1:9876, received {text!r}"
            )
        return cls(int(match[1]), int(match[2]), match[3])

    def __str__(self):
        return f"{self.number}/{self.num_processes}@{self.coordinator}"


@dataclasses.dataclass(frozen=True)
class TrainingConfig:
    """Everything about a run but the model's shape; the only place where it has defaults.

    Args:
        train: Training corpus, a TSV or "SOURCE,TARGET" files; empty means the phrasebook.
        valid: Validation corpus, likewise.
        vocab_size: Pieces of the SentencePiece vocabulary; fewer if the corpus has no more.
        shared_vocabulary: One vocabulary for both languages (3.4), or one each.
        character_coverage: Share of the corpus's characters that get pieces of their own; the
            others are spelt as bytes. 0.9995 suits Chinese and Japanese.
        tags: Symbols that the vocabulary keeps whole, such as "<2en>" before each source sentence
            of a multilingual corpus.
        subword_nbest_size: While training, draw each sentence's segmentation anew in each pass from
            so many best ones (Kudo 2018: l); 1 always takes the best.
        subword_alpha: How far the draw prefers likely ones: probabilities are raised to this power.
        batch_tokens: Budget of a batch, padding included, on its longer side. The paper's batches
            hold 25,000 tokens.
        gradient_accumulation_steps: Batches whose gradients make one optimizer step, which is the
            step of one batch as large as all of them.
        optimizer: "adam" (the paper's, 5.3), or "muon", which learns faster at first.
        warmup_steps: Steps of growing learning rate (5.3).
        learning_rate_scale: Factor on the paper's learning rate.
        weight_decay: A step takes this share, times the learning rate, from the kernels of all
            layers (Loshchilov and Hutter 2019); 0 means none, as in the paper.
        label_smoothing: Epsilon of 5.4.
        average_decay: Evaluate and keep an exponential moving average of the weights with this
            decay a step, close to 1; 0 means none.
        average_checkpoints: Evaluate and keep the mean of the weights at the last so many
            evaluations (6.1); 1 means the weights themselves.
        max_steps: Optimizer steps at the most.
        max_minutes: Wall-clock limit of the whole run, vocabulary and evaluation included, and what
            was before a resume; 0 means none.
        evaluate_every_steps: Steps between evaluations; 0 means once for each pass over the
            corpus, but at least every 1,000 steps.
        evaluation_sentences: The first so many validation pairs are translated for BLEU and chrF.
        select_by: What the best weights are best in: "bleu", "chrf" or "loss", on the validation
            corpus.
        patience: Stop after so many evaluations without a better one; 0 means never.
        log_every_steps: Steps between TensorBoard points.
        attention_every_steps: Steps between snapshots of attention for TensorBoard; 0 means none.
        attention_probes: Sentences whose attention is watched, one "source TAB target" a line, with
            gold links between words behind another TAB, or without; empty means four of the
            validation corpus.
        mixed_precision: Compute in 16 bits: "" (no), "mixed_float16" or "mixed_bfloat16".
        strategy: How many devices train: "" (one), "mirrored" (all of this machine, on the
            TensorFlow backend) or "data_parallel" (all of all machines, on the JAX backend).
        vocabulary_shards: With data_parallel: among how many devices the embedding and the output
            matrix are divided, row by row of the vocabulary; 1 means each device has them whole.
        seed: Of initial weights, dropout, data order, segmentations and vocabulary.
        init_from: Run directory whose best weights the training starts from; "" means random ones.
        init_vocabulary: With init_from: "keep" that run's vocabulary, "extend" it by pieces of the
            new corpus, or make a "new" one; embeddings are taken over for the pieces both have.

    Raises:
        ValueError: A value is outside its range; the message names the option.
    """

    train: str = ""
    valid: str = ""
    vocab_size: int = 8000
    shared_vocabulary: bool = True
    character_coverage: float = 0.9995
    tags: tuple[str, ...] = ()
    subword_nbest_size: int = 1
    subword_alpha: float = 0.1
    batch_tokens: int = 4096
    gradient_accumulation_steps: int = 1
    optimizer: str = "adam"
    warmup_steps: int = 4000
    learning_rate_scale: float = 1.0
    weight_decay: float = 0.0
    label_smoothing: float = 0.1
    average_decay: float = 0.0
    average_checkpoints: int = 1
    max_steps: int = 100_000
    max_minutes: float = 0.0
    evaluate_every_steps: int = 0
    evaluation_sentences: int = 1000
    select_by: str = "bleu"
    patience: int = 0
    log_every_steps: int = 50
    attention_every_steps: int = 300
    attention_probes: str = ""
    mixed_precision: str = ""
    strategy: str = ""
    vocabulary_shards: int = 1
    seed: int = 1
    init_from: str = ""
    init_vocabulary: str = "keep"

    def __post_init__(self) -> None:
        """Check every field."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            kind, is_kind = _KINDS[field.type]
            if not is_kind(value):
                raise ValueError(f"{field.name} must be {kind}, received {value!r}")
        for name in ("learning_rate_scale", "weight_decay", "max_minutes", "subword_alpha"):
            if not math.isfinite(getattr(self, name)):
                raise ValueError(f"{name} must be finite, received {getattr(self, name)!r}")
        for name in (
            "vocab_size",
            "subword_nbest_size",
            "batch_tokens",
            "gradient_accumulation_steps",
            "warmup_steps",
            "learning_rate_scale",
            "average_checkpoints",
            "max_steps",
            "evaluation_sentences",
            "log_every_steps",
            "vocabulary_shards",
        ):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be above 0, received {getattr(self, name)!r}")
        for name in (
            "subword_alpha",
            "weight_decay",
            "max_minutes",
            "evaluate_every_steps",
            "patience",
            "attention_every_steps",
            "seed",
        ):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, received {getattr(self, name)!r}")
        for name in ("label_smoothing", "average_decay"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be in [0, 1), received {getattr(self, name)!r}")
        if not 0.98 <= self.character_coverage <= 1:
            raise ValueError(
                f"character_coverage must be in [0.98, 1], received {self.character_coverage!r}"
            )
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                known = ", ".join(choice or "empty" for choice in choices)
                raise ValueError(
                    f"{name} must be one of: {known}, received {getattr(self, name)!r}"
                )
        for tag in self.tags:
            if not tag or not tag.isprintable() or any(map(str.isspace, tag)):
                raise ValueError(f"tags must be visible symbols without spaces, received {tag!r}")
        if self.average_decay and self.average_checkpoints > 1:
            raise ValueError(
                "average_decay and average_checkpoints are two ways to one end: set one of them, "
                f"received {self.average_decay!r} and {self.average_checkpoints!r}"
            )
        if bool(self.train) != bool(self.valid):
            missing, given = ("valid", "train") if self.train else ("train", "valid")
            raise ValueError(f"{missing} is missing: {given} is given, so both must be")


_CHOICES = {
    "optimizer": ("adam", "muon"),
    "select_by": ("bleu", "chrf", "loss"),
    "mixed_precision": ("", "mixed_float16", "mixed_bfloat16"),
    "strategy": STRATEGIES,
    "init_vocabulary": ("keep", "extend", "new"),
}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# How a value of each type of option is called, and told.
_KINDS: dict[Any, tuple[str, Callable[[Any], bool]]] = {
    int: ("an integer", lambda value: _is_number(value) and isinstance(value, int)),
    float: ("a number", _is_number),
    str: ("a string", lambda value: isinstance(value, str)),
    bool: ("true or false", lambda value: isinstance(value, bool)),
    tuple[str, ...]: (
        "a list of strings",
        lambda value: isinstance(value, tuple) and all(isinstance(item, str) for item in value),
    ),
}


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """A whole run: what to train, and how.

    Args:
        training: Options of the run.
        model: Fields of ModelConfig by name, without the vocabulary sizes, which come from the
            trained vocabulary; "preset" names what the others override. `load` fills in what a run
            named by init_from has.

    Raises:
        ValueError: An option does not exist or has a bad value.
    """

    training: TrainingConfig = TrainingConfig()
    model: dict[str, Any] = dataclasses.field(default_factory=lambda: {"preset": "small"})

    def __post_init__(self) -> None:
        """Check the model's options, before a vocabulary is there."""
        for name in VOCABULARY_SIZES:
            if name in self.model:
                raise ValueError(
                    f"model option {name!r} follows from the vocabulary; set vocab_size under "
                    "[training]"
                )
        self.model_config(self.training.vocab_size, None)

    def model_config(self, vocab_size: int, source_vocab_size: int | None) -> ModelConfig:
        """Return the model's configuration, given the sizes of the trained vocabularies."""
        options = {"preset": "small", **self.model}
        return ModelConfig.preset(
            options.pop("preset"), vocab_size, source_vocab_size=source_vocab_size, **options
        )

    @classmethod
    def load(
        cls, path: str | Path | None, training: dict[str, Any], model: dict[str, Any]
    ) -> "RunConfig":
        """Read a file with the tables [model] and [training], then override single options.

        Args:
            path: A TOML file, or the `config.json` of a run; None starts from the defaults.
            training: Options of TrainingConfig that win over the file's.
            model: Options of the model that win over the file's.

        Raises:
            ValueError: The file is missing, is no such file, or has an unknown key or a bad value.
        """
        tables: dict[str, Any] = {}
        is_json = path is not None and Path(path).suffix == ".json"
        if path is not None:
            try:
                text = Path(path).read_text(encoding="utf-8")
                tables = json.loads(text) if is_json else tomllib.loads(text)
            except OSError as error:
                raise ValueError(f"{path}: {error.strerror}") from None
            except ValueError as error:
                kind = "JSON" if is_json else "TOML"
                raise ValueError(f"{path}: no {kind} file: {error}") from None
            if is_json:  # what a run wrote holds the sizes of its vocabulary too
                for name in VOCABULARY_SIZES:
                    tables["model"].pop(name, None)
        origin = f"{path}: " if path is not None else ""
        known = {field.name for field in dataclasses.fields(TrainingConfig)}
        for name, table in tables.items():
            if name not in ("model", "training") or not isinstance(table, dict):
                raise ValueError(f"{origin}unknown key {name!r}; known: [model], [training]")
        for key in tables.get("training", {}):
            if key not in known:
                raise ValueError(
                    f"{origin}unknown option {key!r} in [training]; known: "
                    f"{', '.join(sorted(known))}"
                )
        try:
            training = {**tables.get("training", {}), **training}
            if isinstance(training.get("tags"), list):  # TOML and JSON have no tuples
                training["tags"] = tuple(training["tags"])
            options = TrainingConfig(**training)
            model = {**tables.get("model", {}), **model}
            if options.init_from and not is_json:
                preset = PRESETS.get(str(model.get("preset")), {})
                model = {**_model_of_run(options.init_from), **preset, **model}
            return cls(options, {"preset": "small", **model})
        except ValueError as error:
            raise ValueError(f"{origin}{error}") from None


def _model_of_run(run: str) -> dict[str, Any]:
    """Return the model's options of a run directory, without the sizes of its vocabulary."""
    path = Path(run) / CONFIG_FILE
    try:
        model = dict(json.loads(path.read_text(encoding="utf-8"))["model"])
    except OSError as error:
        raise ValueError(f"init_from: {path}: {error.strerror}") from None
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"init_from: {path}: no configuration of a run: {error}") from None
    return {name: value for name, value in model.items() if name not in VOCABULARY_SIZES}

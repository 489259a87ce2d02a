"""The options of one training run: a frozen TrainingConfig, read from TOML and the command line."""

import dataclasses
import json
import math
import tomllib
from pathlib import Path
from typing import Any

from keras_transformer.config import ModelConfig

VOCABULARY_SIZES = ("vocab_size", "source_vocab_size")


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
        batch_tokens: Budget of a batch, padding included, on its longer side. The paper's batches
            hold 25,000 tokens.
        warmup_steps: Steps of growing learning rate (5.3).
        learning_rate_scale: Factor on the paper's learning rate.
        label_smoothing: Epsilon of 5.4.
        max_steps: Optimizer steps at the most.
        max_minutes: Wall-clock limit of the whole run, vocabulary and evaluation included; 0 means
            none.
        evaluate_every_steps: Steps between evaluations; 0 means once for each pass over the
            corpus, but at least every 1,000 steps.
        evaluation_sentences: The first so many validation pairs are translated for BLEU.
        log_every_steps: Steps between TensorBoard points.
        attention_every_steps: Steps between snapshots of attention for TensorBoard; 0 means none.
        attention_probes: Sentences whose attention is watched, one "source TAB target" a line, with
            gold links between words behind another TAB, or without; empty means four of the
            validation corpus.
        mixed_precision: Compute in 16 bits: "" (no), "mixed_float16" or "mixed_bfloat16".
        seed: Of initial weights, dropout, data order and vocabulary.

    Raises:
        ValueError: A value is outside its range; the message names the option.
    """

    train: str = ""
    valid: str = ""
    vocab_size: int = 8000
    shared_vocabulary: bool = True
    character_coverage: float = 0.9995
    batch_tokens: int = 4096
    warmup_steps: int = 4000
    learning_rate_scale: float = 1.0
    label_smoothing: float = 0.1
    max_steps: int = 100_000
    max_minutes: float = 0.0
    evaluate_every_steps: int = 0
    evaluation_sentences: int = 1000
    log_every_steps: int = 50
    attention_every_steps: int = 300
    attention_probes: str = ""
    mixed_precision: str = ""
    seed: int = 1

    def __post_init__(self) -> None:
        """Check every field."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            expected = (int, float) if field.type is float else field.type
            is_bool = isinstance(value, bool)
            if not isinstance(value, expected) or (is_bool and field.type is not bool):  # type: ignore[arg-type]
                kind = {
                    int: "an integer",
                    float: "a number",
                    str: "a string",
                    bool: "true or false",
                }
                raise ValueError(f"{field.name} must be {kind[field.type]}, received {value!r}")  # type: ignore[index]
        for name in ("learning_rate_scale", "max_minutes"):
            if not math.isfinite(getattr(self, name)):
                raise ValueError(f"{name} must be finite, received {getattr(self, name)!r}")
        for name in (
            "vocab_size",
            "batch_tokens",
            "warmup_steps",
            "learning_rate_scale",
            "max_steps",
            "evaluation_sentences",
            "log_every_steps",
        ):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be above 0, received {getattr(self, name)!r}")
        for name in ("max_minutes", "evaluate_every_steps", "attention_every_steps", "seed"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, received {getattr(self, name)!r}")
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(
                f"label_smoothing must be in [0, 1), received {self.label_smoothing!r}"
            )
        if not 0.98 <= self.character_coverage <= 1:
            raise ValueError(
                f"character_coverage must be in [0.98, 1], received {self.character_coverage!r}"
            )
        if self.mixed_precision not in ("", "mixed_float16", "mixed_bfloat16"):
            raise ValueError(
                "mixed_precision must be empty, mixed_float16 or mixed_bfloat16, "
                f"received {self.mixed_precision!r}"
            )
        if bool(self.train) != bool(self.valid):
            missing, given = ("valid", "train") if self.train else ("train", "valid")
            raise ValueError(f"{missing} is missing: {given} is given, so both must be")


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """A whole run: what to train, and how.

    Args:
        training: Options of the run.
        model: Fields of ModelConfig by name, without the vocabulary sizes, which come from the
            trained vocabulary; "preset" names what the others override.

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
        if path is not None:
            is_json = Path(path).suffix == ".json"
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
            return cls(
                TrainingConfig(**{**tables.get("training", {}), **training}),
                {"preset": "small", **tables.get("model", {}), **model},
            )
        except ValueError as error:
            raise ValueError(f"{origin}{error}") from None

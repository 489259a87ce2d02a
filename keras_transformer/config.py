"""The shape of a model, the options of decoding, and what all parts agree on."""

import dataclasses
import json
from typing import Any

# Ids of the special pieces: fixed when the vocabulary is trained, checked when it is loaded.
PAD_ID = 0
UNKNOWN_ID = 1
START_ID = 2
END_ID = 3

# The files of a run directory: written by `training`, read by `Translator` and `export`.
CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.weights.h5"
TOKENIZER_FILE = "tokenizer.model"
SOURCE_TOKENIZER_FILE = "source_tokenizer.model"  # only with separate vocabularies
RESULTS_FILE = "results.json"

SAVED_MODEL_FILE = "saved_model.pb"  # what makes a folder a SavedModel

# A translation may be this many tokens longer than its source (6.1).
EXTRA_TARGET_LENGTH = 50

ACTIVATIONS = ("relu", "gelu", "silu")


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """Sizes and options of one model; the only place where they have defaults.

    The defaults are the base model of the paper (Vaswani et al. 2017, table 3).

    Args:
        vocab_size: Number of pieces of the (shared or target) vocabulary, special ids included.
        source_vocab_size: Number of pieces of a separate source vocabulary; None (default) means
            that source and target share one vocabulary, as in the paper.
        num_encoder_layers: Encoder layers N.
        num_decoder_layers: Decoder layers N.
        d_model: Width of every layer's output.
        num_heads: Attention heads h; must divide d_model (d_k = d_v = d_model / h).
        d_ff: Inner width of the feed-forward network.
        dropout: Rate on every sub-layer output and on the sums of embeddings and positions (5.4).
        attention_dropout: Rate on the attention weights; the paper has none.
        activation_dropout: Rate inside the feed-forward network; the paper has none.
        activation: "relu" (the paper), "gelu" or "silu".
        pre_norm: Normalise before each sub-layer instead of after it (the paper: after).
        learned_positions: Learn the position vectors instead of computing sinusoids (3.5).
        tie_weights: Use the target embedding as the output projection (3.4). A shared vocabulary
            has one embedding of both sides in any case.
        max_length: Longest source in tokens, and the number of learned positions.

    Raises:
        ValueError: An argument is outside its range; the message names it.
    """

    vocab_size: int
    source_vocab_size: int | None = None
    num_encoder_layers: int = 6
    num_decoder_layers: int = 6
    d_model: int = 512
    num_heads: int = 8
    d_ff: int = 2048
    dropout: float = 0.1
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0
    activation: str = "relu"
    pre_norm: bool = False
    learned_positions: bool = False
    tie_weights: bool = True
    max_length: int = 256

    def __post_init__(self) -> None:
        """Check every field."""
        for name in ("vocab_size", "source_vocab_size"):
            size = getattr(self, name)
            if size is None and name == "source_vocab_size":
                continue
            if not _is_int(size) or size <= END_ID:
                raise ValueError(
                    f"{name} must be an integer above {END_ID} (ids 0 to {END_ID} are special), "
                    f"received {size!r}"
                )
        for name in ("num_encoder_layers", "num_decoder_layers", "d_model", "num_heads", "d_ff"):
            _check_positive_int(name, getattr(self, name))
        _check_positive_int("max_length", self.max_length)
        if self.d_model % self.num_heads:
            raise ValueError(
                f"num_heads must divide d_model, received num_heads={self.num_heads}, "
                f"d_model={self.d_model}"
            )
        if self.d_model % 2:
            raise ValueError(f"d_model must be even (sine and cosine), received {self.d_model}")
        for name in ("dropout", "attention_dropout", "activation_dropout"):
            rate = getattr(self, name)
            if not isinstance(rate, int | float) or isinstance(rate, bool) or not 0 <= rate < 1:
                raise ValueError(f"{name} must be a number in [0, 1), received {rate!r}")
        if self.activation not in ACTIVATIONS:
            raise ValueError(
                f"activation must be one of {', '.join(ACTIVATIONS)}, received {self.activation!r}"
            )
        for name in ("pre_norm", "learned_positions", "tie_weights"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} must be true or false, received {getattr(self, name)!r}")

    @property
    def key_dim(self) -> int:
        """Width of one head, d_k in the paper."""
        return self.d_model // self.num_heads

    @property
    def shares_vocabulary(self) -> bool:
        """Whether source and target use one vocabulary."""
        return self.source_vocab_size is None

    @property
    def max_target_length(self) -> int:
        """Longest target in tokens: a source of `max_length` may become 50 longer (6.1)."""
        return self.max_length + EXTRA_TARGET_LENGTH

    @classmethod
    def preset(cls, name: str, vocab_size: int, **overrides: Any) -> "ModelConfig":
        """Return a named configuration, with single fields replaced by `overrides`.

        Args:
            name: "tiny", "small", or the paper's "base" and "big" (table 3).
            vocab_size: Number of pieces of the vocabulary.
            **overrides: Fields of ModelConfig to set otherwise.

        Raises:
            ValueError: No such preset, or no such field.
        """
        if not isinstance(name, str) or name not in PRESETS:
            raise ValueError(f"preset must be one of {', '.join(PRESETS)}, received {name!r}")
        return cls.from_dict({"vocab_size": vocab_size, **PRESETS[name], **overrides})

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "ModelConfig":
        """Return the configuration with these fields.

        Raises:
            ValueError: A key is no field, or a required field is missing.
        """
        known = [field.name for field in dataclasses.fields(cls)]
        for key in values:
            if key not in known:
                raise ValueError(f"unknown model option {key!r}; known: {', '.join(known)}")
        if "vocab_size" not in values:
            raise ValueError("model option vocab_size is missing")
        return cls(**values)

    @classmethod
    def from_json(cls, text: str) -> "ModelConfig":
        """Return the configuration that `to_json` wrote."""
        return cls.from_dict(json.loads(text))

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain values."""
        return dataclasses.asdict(self)

    def to_json(self) -> str:
        """Return all fields as a JSON object."""
        return json.dumps(self.to_dict(), indent=2)


@dataclasses.dataclass(frozen=True)
class DecodingConfig:
    """How a translator searches; the only place where these options have defaults.

    Args:
        beam_size: Hypotheses to keep; 1 searches greedily.
        length_penalty: Alpha of the length penalty (paper 6.1), 0 for none.
        num_best: Hypotheses that `n_best` gives; None means `beam_size`.
        coverage_penalty: Beta of the coverage penalty (Wu et al. 2016, equation 14): costs source
            words that the translation did not look at; 0 for none.
        no_repeat_ngram: Never produce the same this many tokens in a row twice; 0 allows it.
        max_source_length: Longest source in tokens with the end token, what is longer is cut; None
            means as long as the model's `max_length`.
        max_target_length: Longest translation in tokens with the end token; None means 50 more than
            its source (6.1).
        segment: Split each text at its sentence ends, translate the sentences and join them.

    Raises:
        ValueError: An option is outside its range; the message names it.
    """

    beam_size: int = 4
    length_penalty: float = 0.6
    num_best: int | None = None
    coverage_penalty: float = 0.0
    no_repeat_ngram: int = 0
    max_source_length: int | None = None
    max_target_length: int | None = None
    segment: bool = False

    def __post_init__(self) -> None:
        """Check every field."""
        _check_positive_int("beam_size", self.beam_size)
        for name in ("length_penalty", "coverage_penalty"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0 <= value < float("inf"):
                raise ValueError(f"{name} must be a number, 0 or more, received {value!r}")
        for name in ("num_best", "max_source_length", "max_target_length"):
            if getattr(self, name) is not None:
                _check_positive_int(name, getattr(self, name))
        if self.num_best is not None and self.num_best > self.beam_size:
            raise ValueError(
                f"num_best must not exceed beam_size, {self.beam_size}, received {self.num_best}"
            )
        if not _is_int(self.no_repeat_ngram) or self.no_repeat_ngram < 0:
            raise ValueError(
                f"no_repeat_ngram must be an integer, 0 or more, received {self.no_repeat_ngram!r}"
            )
        if self.coverage_penalty and self.beam_size == 1:
            raise ValueError("coverage_penalty needs a beam_size above 1: it ranks hypotheses")


# Differences to ModelConfig's defaults. `tiny` is the 4-layer, 128-wide shape of the small-corpus
# literature (Multi30k), `small` suits tens of thousands of pairs on a CPU. Both are pre-norm, which
# in their minutes learns far more (benchmarks/RESULTS.md).
PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {
        "num_encoder_layers": 4,
        "num_decoder_layers": 4,
        "d_model": 128,
        "num_heads": 4,
        "d_ff": 256,
        "pre_norm": True,
    },
    "small": {
        "num_encoder_layers": 3,
        "num_decoder_layers": 3,
        "d_model": 256,
        "num_heads": 4,
        "d_ff": 1024,
        "pre_norm": True,
    },
    "base": {},
    "big": {"d_model": 1024, "num_heads": 16, "d_ff": 4096, "dropout": 0.3},
}


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_positive_int(name: str, value: object) -> None:
    if not _is_int(value) or value < 1:  # type: ignore[operator]
        raise ValueError(f"{name} must be a positive integer, received {value!r}")

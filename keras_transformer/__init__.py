"""The Transformer of "Attention Is All You Need" (Vaswani et al. 2017) in Keras."""

from typing import TYPE_CHECKING, Any

from keras_transformer.config import ModelConfig
from keras_transformer.model import build_attention_model, build_transformer

if TYPE_CHECKING:
    from keras_transformer.translator import Translator

__all__ = ["ModelConfig", "Translator", "build_attention_model", "build_transformer"]


def __getattr__(name: str) -> Any:
    """Import Translator when it is asked for: it needs TensorFlow, the model does not."""
    if name == "Translator":
        from keras_transformer.translator import Translator

        return Translator
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

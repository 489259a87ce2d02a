"""The Transformer of "Attention Is All You Need" (Vaswani et al. 2017) in Keras."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from keras_transformer.config import DecodingConfig, ModelConfig

if TYPE_CHECKING:
    from keras_transformer.model import build_attention_model, build_transformer
    from keras_transformer.translator import Translator

__all__ = [
    "DecodingConfig",
    "ModelConfig",
    "Translator",
    "build_attention_model",
    "build_transformer",
]

# Imported when asked for: a command's --help waits for no Keras, a model for no TensorFlow.
_MODULES = {
    "Translator": "translator",
    "build_attention_model": "model",
    "build_transformer": "model",
}


def __getattr__(name: str) -> Any:
    """Import a public name's module at its first use (PEP 562)."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)

"""The Transformer of "Attention Is All You Need" (Vaswani et al. 2017) in Keras."""

from keras_transformer.config import ModelConfig
from keras_transformer.model import build_attention_model, build_transformer

__all__ = ["ModelConfig", "build_attention_model", "build_transformer"]

"""Attention viewer: a TensorBoard plugin and a page that show what a Transformer looked at."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attention_viewer.page import show_attention

__all__ = ["show_attention"]


def __getattr__(name: str) -> Any:
    """Import a public name's module at its first use (PEP 562): TensorBoard needs none of it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.page"), name)

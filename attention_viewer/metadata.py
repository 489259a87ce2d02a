"""What writer, plugin and page agree on: names, the format's version, the content of a series."""

import json
import math
from typing import Any

import numpy as np

PLUGIN_NAME = "attention"
VERSION = 1

# A probe has two series: snapshots under its own tag, a number per head and measure under this.
MEASURES_SUFFIX = "/measures"

# Numbers of each head, in the order of the written arrays; `measures.py` says what they are.
MEASURES = (
    "entropy",
    "confidence",
    "diagonal",
    "previous",
    "same",
    "next",
    "special",
    "punctuation",
    "alignment_error",
)


def to_content(source: str, maps: list[dict[str, Any]]) -> bytes:
    """Return what TensorBoard keeps once for each series of a probe.

    Args:
        source: The probe's source text, to name it by.
        maps: {"name", "layers", "heads"} of each attention map, in the order of the arrays.
    """
    content = {"version": VERSION, "source": source, "maps": maps, "measures": MEASURES}
    return json.dumps(content, ensure_ascii=False).encode()


def from_content(content: bytes) -> dict[str, Any]:
    """Return what `to_content` was given, with "measures".

    Raises:
        ValueError: It is damaged, or of a later version.
    """
    try:
        parsed = json.loads(content)
        version = int(parsed["version"])
        if version <= VERSION:
            heads = [(str(m["name"]), int(m["layers"]), int(m["heads"])) for m in parsed["maps"]]
            return {
                "source": str(parsed["source"]),
                "maps": [dict(zip(("name", "layers", "heads"), h, strict=True)) for h in heads],
                "measures": [str(measure) for measure in parsed["measures"]],
            }
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"damaged metadata ({type(error).__name__}: {error})") from None
    raise ValueError(f"format {version}; this viewer reads formats up to {VERSION}")


def finite(measures: np.ndarray) -> list[float | None]:
    """Return measures for JSON, one after the other; NaN, which has no meaning, as None."""
    return [round(v, 4) if math.isfinite(v) else None for v in measures.ravel().tolist()]

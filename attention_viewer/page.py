"""The viewer as one self-contained page, and in notebooks."""

import base64
import html
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from attention_viewer.metadata import MEASURES, finite
from attention_viewer.models import inspect
from attention_viewer.summary import Snapshot, describe_maps, encode, measure

if TYPE_CHECKING:
    from keras_transformer.translator import Translator

STATIC_FOLDER = Path(__file__).parent / "static"

# The policy lets nothing in or out: script, style and data are in the page.
PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; \
script-src 'unsafe-inline' data:; style-src 'unsafe-inline'; img-src blob: data:">
<title>{title}</title>
<style>
{style}</style>
<script type="importmap">{modules}</script>
</head>
<body>
<script type="application/json" id="attention-data">{data}</script>
<script type="module">import "attention/page.js";</script>
</body>
</html>
"""


def write_page(snapshots: Sequence[Snapshot], title: str) -> str:
    """Return a page with the same views as in TensorBoard; it needs nothing but a browser.

    Args:
        snapshots: One for each sentence.
        title: What was looked at, such as the run's name.
    """
    tags = {f"text-{number}": snapshot for number, snapshot in enumerate(snapshots, start=1)}
    data = {
        "runs": {
            title: {
                tag: {
                    "source": snapshot.texts["source"],
                    "maps": describe_maps(snapshot),
                    "measures": MEASURES,
                    "last_step": 0,
                    "last_time": 0,
                }
                for tag, snapshot in tags.items()
            }
        },
        "series": {
            tag: {
                "steps": [{"step": 0, "time": 0}],
                "measures": {"steps": [0], "values": [finite(measure(snapshot))]},
            }
            for tag, snapshot in tags.items()
        },
        "payloads": {
            tag: base64.b64encode(encode(snapshot)).decode() for tag, snapshot in tags.items()
        },
    }
    return PAGE.format(
        title=html.escape(f"Attention of {title}"),
        style=(STATIC_FOLDER / "style.css").read_text(encoding="utf-8"),
        modules=_json({"imports": _modules()}),
        data=_json(data),
    )


class Page:
    """A page that notebooks show in a frame.

    Attributes:
        html: The page.
        height: Of the frame, in pixels.
    """

    def __init__(self, text: str, height: int):
        self.html = text
        self.height = height

    def _repr_html_(self) -> str:
        return (
            f'<iframe srcdoc="{html.escape(self.html)}" width="100%" height="{self.height}" '
            'style="border: 0"></iframe>'
        )


def show_attention(
    model: "str | Path | Translator",
    *texts: str,
    references: Sequence[str] | None = None,
    height: int = 760,
) -> Page:
    """Translate texts and show the attention, in a notebook.

    Args:
        model: A translator, a run directory, or an exported SavedModel.
        *texts: Source texts.
        references: A translation of each, to see the attention for these too; not of an export.
        height: Of the frame, in pixels.

    Example:
        >>> show_attention(translator, "你好。")
    """
    if not texts:
        raise ValueError("texts: give at least one text")
    title = str(model) if isinstance(model, str | Path) else "translator"
    return Page(write_page(inspect(model, texts, references), title), height)


def _modules() -> dict[str, str]:
    """Return the import map: modules as data URLs, which import each other by bare names."""
    modules = {}
    for file in sorted(STATIC_FOLDER.glob("*.js")):
        code = re.sub(r'from "\./(\w+\.js)"', r'from "attention/\1"', file.read_text("utf-8"))
        encoded = base64.b64encode(code.encode()).decode()
        modules[f"attention/{file.name}"] = f"data:text/javascript;base64,{encoded}"
    return modules


def _json(value: object) -> str:
    """Return JSON that ends no script element, whatever the tokens are."""
    return json.dumps(value).replace("<", "\\u003c")

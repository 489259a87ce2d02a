"""Writes each notebook from its Python source: `python notebooks/build.py`, or `make notebook`."""

from pathlib import Path

import jupytext

FOLDER = Path(__file__).parent
SOURCES = [path for path in sorted(FOLDER.glob("*.py")) if path != Path(__file__)]


def build(source: Path) -> str:
    """Return the notebook of a source in jupytext's percent form: JSON, without outputs."""
    notebook = jupytext.read(source)
    for number, cell in enumerate(notebook.cells, start=1):
        cell.id = f"cell-{number}"  # not a random one, which would change each time
    return jupytext.writes(notebook, fmt="ipynb")


if __name__ == "__main__":
    for source in SOURCES:
        source.with_suffix(".ipynb").write_text(build(source), encoding="utf-8")

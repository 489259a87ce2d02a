"""Shows the attention for texts: `python -m attention_viewer MODEL --text T --output F.html`."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m attention_viewer",
        description="Translate texts and write a self-contained page that shows the attention.",
    )
    parser.add_argument("model", help="a run directory, or an exported SavedModel (DIR/N/V)")
    parser.add_argument(
        "--text", action="append", required=True, metavar="T", help="source text; may be repeated"
    )
    parser.add_argument(
        "--reference", action="append", metavar="T", help="its translation, of a run only"
    )
    parser.add_argument("--output", required=True, metavar="F", help="HTML file to write")
    options = parser.parse_args(argv)
    # Loaded here, so that --help and a mistake in the arguments answer at once.
    from attention_viewer.models import inspect
    from attention_viewer.page import write_page

    try:
        snapshots = inspect(options.model, options.text, options.reference)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    output = Path(options.output)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(write_page(snapshots, options.model), encoding="utf-8")
    except OSError as error:
        print(f"error: {output}: {error.strerror}", file=sys.stderr)
        return 1
    for snapshot in snapshots:
        print(snapshot.texts["translation"])
    print(output)
    return 0


if __name__ == "__main__":
    sys.exit(main())

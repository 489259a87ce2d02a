"""Translates from the command line: `python -m keras_transformer RUN_OR_SAVEDMODEL TEXT...`."""

import argparse
import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m keras_transformer",
        description="Translate texts, or the lines of standard input, one translation a line.",
    )
    parser.add_argument("model", help="folder of a run, SavedModel (DIR/N/V) or CTranslate2")
    parser.add_argument("text", nargs="*", help="texts; none: read standard input")
    parser.add_argument("--beam-size", type=int, help="default 4; not for a SavedModel")
    parser.add_argument(
        "--length-penalty", type=float, metavar="ALPHA", help="default 0.6; not for a SavedModel"
    )
    options = parser.parse_intermixed_args(argv)  # RUN --beam-size 2 TEXT, too
    # Loaded here, so that --help and a mistake in the arguments answer at once.
    from keras_transformer.exported import load_translator

    try:
        translator = load_translator(options.model, options.beam_size, options.length_penalty)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    # Lines as in a corpus: they end at \n alone; bytes that are not UTF-8 are read as U+FFFD.
    texts = options.text or [
        line.decode(errors="replace").rstrip("\r\n") for line in sys.stdin.buffer
    ]
    for translation in translator(texts):
        print(" ".join(translation.splitlines()))
    return 0


if __name__ == "__main__":
    sys.exit(main())

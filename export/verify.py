"""Checks an exported folder as a stranger would: `python -m export.verify FOLDER < EXPECTED.json`.

It runs in a process of its own, which loads TensorFlow and tensorflow-text's op library and
neither Keras nor this project's model, so that nothing can hide what the folder lacks.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import tensorflow as tf
import tensorflow_text  # noqa: F401  registers the ops that TF Serving has built in

# Of tensorflow-text, TF Serving links these.
SENTENCEPIECE_OPS = {"SentencepieceOp", "SentencepieceTokenizeOp", "SentencepieceDetokenizeOp"}
# TensorFlow's own that a server can't run: they call Python.
PYTHON_OPS = {"EagerPyFunc", "PyFunc", "PyFuncStateless"}


class VerificationError(Exception):
    """The export does not do what it should; the message says what."""


def allowed_ops() -> set[str]:
    """Return the names of the ops that an export may hold: TensorFlow's own and SentencePiece's."""
    core = {name for name in dir(tf.raw_ops) if not name.startswith(("_", "Xla"))}
    return (core - PYTHON_OPS) | SENTENCEPIECE_OPS


def check_graph(folder: Path) -> None:
    """Check what the folder's graph is made of.

    Raises:
        VerificationError: It holds an op outside the list, must be compiled by XLA, or refers to a
            file outside of the folder.
    """
    # Into a session, as a server does it; TensorFlow has no other public reader of the file.
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        meta_graph = tf.compat.v1.saved_model.load(session, ["serve"], str(folder))
    if meta_graph.asset_file_def:
        names = ", ".join(asset.filename for asset in meta_graph.asset_file_def)
        raise VerificationError(f"{folder} refers to files: {names}")
    library = meta_graph.graph_def.library.function
    for function in library:
        if function.attr["_XlaMustCompile"].b:
            raise VerificationError(f"function {function.signature.name} needs XLA")
    nodes = [*meta_graph.graph_def.node, *(n for f in library for n in f.node_def)]
    functions = {function.signature.name for function in library}
    unknown = {node.op for node in nodes} - allowed_ops() - functions
    if unknown:
        raise VerificationError(f"ops that TF Serving may lack: {', '.join(sorted(unknown))}")


def check_translations(folder: Path, texts: Sequence[str], translations: Sequence[str]) -> None:
    """Check that every signature answers, with the strings that Python's Translator gave.

    Raises:
        VerificationError: An answer differs, or a signature is missing.
    """
    signatures = tf.saved_model.load(str(folder)).signatures
    batch = tf.constant(texts)
    for name, output in (
        ("serving_default", "translation"),
        ("translate", "translation"),
        ("n_best", "translations"),
    ):
        if name not in signatures:
            raise VerificationError(f"signature {name} is missing")
        answer = signatures[name](text=batch)[output].numpy()
        got = [line.decode() for line in (answer[:, 0] if answer.ndim == 2 else answer)]
        for text, want, have in zip(texts, translations, got, strict=True):
            if want != have:
                raise VerificationError(
                    f"signature {name} translates {text!r} to {have!r}, the run to {want!r}"
                )


def main() -> int:
    """Check the folder named on the command line; return the exit status."""
    folder = Path(sys.argv[1])
    expected = json.load(sys.stdin)
    try:
        check_graph(folder)
        check_translations(folder, expected["text"], expected["translation"])
    except VerificationError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except tf.errors.OpError as error:  # of many lines, and the last says least
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

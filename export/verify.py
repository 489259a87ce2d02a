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
from google.protobuf.message import DecodeError

from export.warmup import MAX_RECORDS, WARMUP_FILE, read_warmup

OPS_FILE = Path(__file__).with_name("serving_ops.txt")


class VerificationError(Exception):
    """The export does not do what it should; the message says what."""


def allowed_ops() -> set[str]:
    """Return the names of the ops that an export may hold: those of TensorFlow Serving."""
    lines = OPS_FILE.read_text(encoding="utf-8").splitlines()
    return {line for line in lines if not line.startswith("#")}


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


def check_warmup(folder: Path) -> None:
    """Check that the warm-up asks every signature, and that all its requests are answered.

    A server counts a broken file as one without requests, in silence.

    Raises:
        VerificationError: A signature is left out, or there are more requests than a server reads.
    """
    loaded = tf.saved_model.load(str(folder))
    try:
        requests = list(read_warmup(folder))
    except (tf.errors.OpError, DecodeError) as error:
        raise VerificationError(f"{WARMUP_FILE} can't be read: {_in_one_line(error)}") from None
    if len(requests) > MAX_RECORDS:
        raise VerificationError(
            f"{WARMUP_FILE} has {len(requests)} requests, a server takes {MAX_RECORDS}"
        )
    for name, inputs in requests:
        try:
            loaded.signatures[name](**inputs)
        except (tf.errors.OpError, KeyError, TypeError, ValueError) as error:
            raise VerificationError(
                f"{WARMUP_FILE} asks {name}, which fails: {_in_one_line(error)}"
            ) from None
    missing = set(loaded.signatures) - {name for name, _ in requests}
    if missing:
        raise VerificationError(f"{WARMUP_FILE} leaves out {', '.join(sorted(missing))}")


def main() -> int:
    """Check the folder named on the command line; return the exit status."""
    folder = Path(sys.argv[1])
    expected = json.load(sys.stdin)
    try:
        check_graph(folder)
        check_translations(folder, expected["text"], expected["translation"])
        check_warmup(folder)
    except VerificationError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except tf.errors.OpError as error:  # of many lines, and the last says least
        print(f"error: {_in_one_line(error)}", file=sys.stderr)
        return 1
    return 0


def _in_one_line(error: Exception) -> str:
    return " ".join(str(error).split())


if __name__ == "__main__":
    sys.exit(main())

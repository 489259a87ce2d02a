"""Golden requests: what to ask a server by REST, and the answer that the export itself gave.

They stand in the version's folder; `DIR/serving/golden_requests.json` has those of the versions
with a label, and the names of model and version: `python -m export.client --verify` asks them.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from export.examples import example_inputs

GOLDEN_FILE = Path("assets.extra/golden_requests.json")


def write_golden(folder: Path, signatures: Mapping, sentences: Sequence[str]) -> None:
    """Write one request for every signature, as rows and as columns, with its answers.

    Args:
        folder: The exported version.
        signatures: Of `tf.saved_model.load(folder)`.
        sentences: What the requests ask, one batch.

    Raises:
        ValueError: A signature has an input for which there is no example.
    """
    golden = []
    for name, signature in sorted(signatures.items()):
        inputs = example_inputs(name, signature, sentences)
        outputs = signature(**{key: tf.constant(value) for key, value in inputs.items()})
        columns = {key: _to_json(value) for key, value in inputs.items()}
        answers = {key: _to_json(value.numpy()) for key, value in outputs.items()}
        golden.append(
            {
                "signature": name,
                "row": {
                    "request": {"signature_name": name, "instances": _rows(columns)},
                    "response": {"predictions": _rows(answers)},
                },
                "column": {
                    "request": {"signature_name": name, "inputs": columns},
                    "response": {"outputs": _without_a_single_name(answers)},
                },
            }
        )
    path = folder / GOLDEN_FILE
    path.parent.mkdir(exist_ok=True)
    path.write_text(format_golden(golden), encoding="utf-8")


def format_golden(golden: list[dict]) -> str:
    """Return the text of a file of golden requests: JSON, one request a line."""
    lines = [json.dumps(request, ensure_ascii=False) for request in golden]
    return "[\n" + ",\n".join(lines) + "\n]\n"


def _without_a_single_name(values: dict):
    """Return as the server does: the value alone where there is only one."""
    return next(iter(values.values())) if len(values) == 1 else values


def _rows(columns: dict[str, list]) -> list:
    rows = zip(*columns.values(), strict=True)
    return [_without_a_single_name(dict(zip(columns, row, strict=True))) for row in rows]


def _to_json(value: np.ndarray) -> list:
    """Return nested lists; numbers have the six digits that agree from machine to machine."""
    if value.dtype == object:
        return np.vectorize(bytes.decode, otypes=[object])(value).tolist()
    if np.issubdtype(value.dtype, np.floating):
        return np.vectorize(lambda x: float(f"{x:.6g}"), otypes=[object])(value).tolist()
    return value.tolist()

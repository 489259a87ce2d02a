"""Checks a server against golden requests: it must answer as the export did."""

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path

from export.client.model import ModelSpec, ServedModel

# Other processors round otherwise.
RELATIVE_TOLERANCE = 1e-3
ABSOLUTE_TOLERANCE = 1e-4


def read_golden(path: Path, name: str | None) -> list[dict]:
    """Return the golden requests of a file, all or those of one model.

    Raises:
        ValueError: The file is none, or has none of this model.
        OSError: It can't be read.
    """
    try:
        golden = json.loads(path.read_text(encoding="utf-8"))
        chosen = [request for request in golden if name in (None, request["model"])]
    except (ValueError, TypeError, KeyError):
        raise ValueError(f"{path}: is no file of golden requests") from None
    if not chosen:
        models = sorted({request["model"] for request in golden})
        raise ValueError(
            f"{path}: has no requests of {name or 'any model'}; its models are {models}"
        )
    return chosen


def verify(
    golden: list[dict], connect: Callable[[ModelSpec], ServedModel]
) -> Iterator[tuple[str, str | None]]:
    """Ask the golden requests.

    Args:
        golden: From `read_golden`.
        connect: Gives the model to ask.

    Yields:
        What was asked, and in what the answer differs; None if it is as expected.

    Raises:
        ServingError: There is no answer.
    """
    models: dict[ModelSpec, ServedModel] = {}
    for request in golden:
        spec = ModelSpec(request["model"], request["version"])
        if spec not in models:
            models[spec] = connect(spec)
        for form in models[spec].forms:
            answer = models[spec].ask(request[form]["request"])
            difference = first_difference(answer, request[form]["response"])
            yield f"{spec}, signature {request['signature']}, as {form}s", difference


def first_difference(have: object, want: object, path: str = "answer") -> str | None:
    """Return where two JSON values differ, None if they agree but for rounding."""
    if isinstance(want, dict) and isinstance(have, dict) and have.keys() == want.keys():
        pairs = [(f"{path}.{key}", have[key], want[key]) for key in want]
    elif isinstance(want, list) and isinstance(have, list) and len(have) == len(want):
        pairs = [(f"{path}[{i}]", have[i], want[i]) for i in range(len(want))]
    elif isinstance(want, float) and isinstance(have, float):
        is_close = math.isclose(have, want, rel_tol=RELATIVE_TOLERANCE, abs_tol=ABSOLUTE_TOLERANCE)
        return None if is_close else f"{path} is {have}, expected {want}"
    else:
        same = type(have) is type(want) and have == want
        return None if same else f"{path} is {_short(have)}, expected {_short(want)}"
    differences = (first_difference(mine, its, where) for where, mine, its in pairs)
    return next(filter(None, differences), None)


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}..."

"""Numbers that say what an attention head does: entropy, where its weight lies, alignment error."""

from collections.abc import Collection

import numpy as np

from attention_viewer.alignment import Link, alignment_error_rate, strongest_links
from attention_viewer.metadata import MEASURES
from attention_viewer.tokens import Tokens


def measure_heads(
    weights: np.ndarray,
    rows: Tokens,
    columns: Tokens,
    is_causal: bool = False,
    links: Collection[Link] | None = None,
) -> np.ndarray:
    """Return the measures of each head, means over the rows unless said otherwise.

    entropy: of a row, over that of equal weights; 0 looks at one token, 1 at all alike.
    confidence: the largest weight of a row.
    diagonal: weight within one column of the (scaled) diagonal.
    previous, same, next: weight on the token before the row's own, on itself, on the one after.
    special: weight on the start and end of sentence.
    punctuation: weight on punctuation.
    alignment_error: of each row's largest weight, against gold links between words.

    Args:
        weights: float (layers, heads, rows, columns); rows add up to 1.
        rows: Tokens that attend.
        columns: Tokens attended to; the same object in self-attention.
        is_causal: Row i sees columns 0 to i only.
        links: Gold links between source words (columns) and target words (rows).

    Returns:
        float32 (layers, heads, measures) in the order of `metadata.MEASURES`; NaN where a measure
        has no meaning.
    """
    weights = np.asarray(weights, np.float32)
    row, column = np.arange(len(rows))[:, np.newaxis], np.arange(len(columns))
    center = row * (len(columns) - 1) / max(len(rows) - 1, 1)

    def weight_on(chosen):  # bool (rows or 1, columns) or (columns,)
        return np.mean(np.sum(weights * chosen, axis=3), axis=2)

    measures = {
        "entropy": _relative_entropy(weights, is_causal),
        "confidence": np.mean(np.max(weights, axis=3), axis=2),
        "diagonal": weight_on(np.abs(column - center) <= 1),
        "special": weight_on(columns.is_special()),
        "punctuation": weight_on(columns.is_punctuation()),
    }
    if rows is columns:
        measures["previous"] = weight_on(column == row - 1)
        measures["same"] = weight_on(column == row)
        if not is_causal:
            measures["next"] = weight_on(column == row + 1)
    if links is not None:
        measures["alignment_error"] = np.array(
            [
                [alignment_error_rate(strongest_links(h, columns, rows), links) for h in layer]
                for layer in weights
            ]
        )
    nothing = np.full(weights.shape[:2], np.nan)
    return np.stack([measures.get(name, nothing) for name in MEASURES], axis=2).astype(np.float32)


def _relative_entropy(weights: np.ndarray, is_causal: bool) -> np.ndarray:
    """Return the mean of entropy over its maximum, of the rows that see more than one token."""
    num_rows, num_columns = weights.shape[2:]
    visible = np.arange(1, num_rows + 1) if is_causal else np.full(num_rows, num_columns)
    weights, visible = weights[:, :, visible > 1], visible[visible > 1]
    if not len(visible):
        return np.zeros(weights.shape[:2])
    logs = np.log(np.where(weights > 0, weights, 1))
    entropy = -np.sum(weights * logs, axis=3)  # (layers, heads, rows)
    return np.mean(entropy / np.log(visible), axis=2)

"""Made-up attention for tests: sentences, and heads of which it is known what they do."""

import numpy as np

from attention_viewer.summary import AttentionMap, Snapshot
from attention_viewer.tokens import Tokens

SOURCE = ("▁我", "想", "买", "两", "张", "火车", "票", "。", "</s>")
REFERENCE = ("▁I", "▁want", "▁to", "▁buy", "▁two", "▁train", "▁tick", "ets", ".", "</s>")
TRANSLATION = ("▁I", "▁would", "▁like", "▁two", "▁train", "▁tickets", ".", "</s>")


def snapshot(
    source=SOURCE, reference=REFERENCE, translation=TRANSLATION, layers=2, heads=4, sharpness=1.0
):
    """Return all four maps; the first heads of each layer look at known places.

    In the encoder, heads 1 to 3 look at the previous token, at themselves and at the end; in the
    decoder, heads 1 to 3 at the previous token, themselves and the start; of the cross-attention,
    head 1 follows the diagonal and head 2 looks at the end. The others are drawn at random.

    Args:
        source: Pieces of the source, with the end token; so the other two.
        reference: Pieces that the decoder should predict.
        translation: Pieces that the model predicts.
        layers: Layers of encoder and decoder.
        heads: Heads of each.
        sharpness: 0 is equal weights; at 1 all weight is where the known heads look.
    """
    target_input = ("<s>", *reference[:-1])
    sequences = {
        "source": Tokens(source, [len(source) - 1]),
        "target_input": Tokens(target_input, [0]),
        "target": Tokens(reference, [len(reference) - 1]),
        "translation": Tokens(translation, [len(translation) - 1]),
    }
    rng = np.random.default_rng(1)
    shape = (layers, heads)

    def attention(rows, columns, places, is_causal=False):
        num_rows, num_columns = len(sequences[rows]), len(sequences[columns])
        logits = 3 * sharpness * rng.standard_normal((*shape, num_rows, num_columns))
        visible = np.tri(num_rows, num_columns) if is_causal else np.ones((num_rows, num_columns))
        weights = np.exp(logits) * visible
        weights /= weights.sum(axis=-1, keepdims=True)
        equal = visible / visible.sum(axis=-1, keepdims=True)
        for head, place in enumerate(places[:heads]):
            known = np.eye(num_columns)[np.clip(place(np.arange(num_rows)), 0, num_columns - 1)]
            weights[:, head] = sharpness * known + (1 - sharpness) * equal
        return weights

    def previous(row):
        return row - 1

    def same(row):
        return row

    def start(row):
        return 0 * row

    def end(row):
        return 0 * row + len(source) - 1

    def diagonal(length):
        return lambda row: np.rint(row * (len(source) - 1) / max(length - 1, 1)).astype(int)

    maps = [
        ("encoder", "source", "source", [previous, same, end]),
        ("decoder", "target_input", "target_input", [previous, same, start]),
        ("cross", "target", "source", [diagonal(len(reference)), end]),
        ("translation", "translation", "source", [diagonal(len(translation)), end]),
    ]
    texts = {"source": source, "reference": reference, "translation": translation}
    return Snapshot(
        texts={name: "".join(p[:-1]).replace("▁", " ").strip() for name, p in texts.items()},
        sequences=sequences,
        maps=[
            AttentionMap(
                name,
                rows,
                columns,
                attention(rows, columns, places, name == "decoder"),
                is_causal=name == "decoder",
            )
            for name, rows, columns, places in maps
        ],
    )

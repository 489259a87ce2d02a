"""Snapshots of attention: their compact format, and how they get into TensorBoard's event files.

A payload is gzip of: "ATTN", the header's length (uint32, little-endian), the header (UTF-8 JSON),
then the maps one after the other, each layers x heads x rows x columns bytes. Byte b stands for the
weight (b / 255)^2: an error of at most 0.004, and less for small weights, which a linear code would
lose. The header says what the maps are, see `Snapshot`.
"""

import gzip
import json
import struct
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attention_viewer.alignment import Link, parse_links
from attention_viewer.measures import measure_heads
from attention_viewer.metadata import MEASURES, MEASURES_SUFFIX, PLUGIN_NAME, VERSION, to_content
from attention_viewer.tokens import Tokens

if TYPE_CHECKING:  # Keras and TensorFlow stay out of this module
    from keras_transformer.inspection import Attention

# All that a writer needs.
__all__ = [
    "AttentionMap",
    "Link",
    "Snapshot",
    "Tokens",
    "encode",
    "parse_links",
    "write_entropies",
    "write_plain_views",
    "write_snapshot",
]

MAGIC = b"ATTN"


@dataclass(frozen=True)
class AttentionMap:
    """The attention weights of all heads of one kind.

    Attributes:
        name: "encoder", "decoder", "cross" or "translation": the first three with the reference as
            the target, the last is the cross-attention of the model's own translation.
        rows: Name of the sequence that attends.
        columns: Name of the sequence attended to.
        weights: float (layers, heads, rows, columns), without padding.
        is_causal: Row i sees columns 0 to i only.
    """

    name: str
    rows: str
    columns: str
    weights: np.ndarray
    is_causal: bool = False


@dataclass(frozen=True)
class Snapshot:
    """The attention for one sentence at one step.

    Attributes:
        texts: By name: "source", "reference", "translation".
        sequences: By name, what the maps' `rows` and `columns` refer to.
        maps: Some of the kinds of AttentionMap, in the same order at each step.
        links: Gold links between the words of source and reference.
    """

    texts: dict[str, str]
    sequences: dict[str, Tokens]
    maps: Sequence[AttentionMap]
    links: Collection[Link] | None = None

    def __post_init__(self) -> None:
        """Check that shapes and tokens fit."""
        for name, tokens in self.sequences.items():
            if not len(tokens):
                raise ValueError(f"sequence {name!r} must have a token")
        for attention in self.maps:
            expected = tuple(
                len(self.sequences[name]) for name in (attention.rows, attention.columns)
            )
            if attention.weights.ndim != 4 or attention.weights.shape[2:] != expected:
                raise ValueError(
                    f"weights of {attention.name!r} must be (layers, heads, {expected[0]}, "
                    f"{expected[1]}), received {attention.weights.shape}"
                )

    @classmethod
    def of(
        cls,
        texts: dict[str, str],
        translation: "Attention",
        reference: "Attention | None" = None,
        links: Collection[Link] | None = None,
    ) -> "Snapshot":
        """Return the snapshot of what a model did with one source.

        Args:
            texts: See the class.
            translation: For the model's own translation.
            reference: For the reference, if there is one.
            links: See the class.
        """
        sequences = {
            "source": _with_end(translation.source),
            "translation": _with_end(translation.target),
        }
        maps = [AttentionMap("encoder", "source", "source", translation.encoder)]
        if reference:
            sequences["target_input"] = Tokens(reference.target_input, [0])
            sequences["target"] = _with_end(reference.target)
            maps += [
                AttentionMap(
                    "decoder", "target_input", "target_input", reference.decoder, is_causal=True
                ),
                AttentionMap("cross", "target", "source", reference.cross),
            ]
        maps.append(AttentionMap("translation", "translation", "source", translation.cross))
        return cls(texts, sequences, maps, links)


def encode(snapshot: Snapshot) -> bytes:
    """Return the payload of a snapshot."""
    header = {
        "version": VERSION,
        "texts": snapshot.texts,
        "sequences": {
            name: {"pieces": list(tokens.pieces), "special": list(tokens.special)}
            for name, tokens in snapshot.sequences.items()
        },
        "maps": [
            {
                "name": attention.name,
                "rows": attention.rows,
                "columns": attention.columns,
                "shape": attention.weights.shape,
                "causal": attention.is_causal,
            }
            for attention in snapshot.maps
        ],
    }
    text = json.dumps(header, ensure_ascii=False).encode(errors="replace")
    weights = [_to_bytes(attention.weights) for attention in snapshot.maps]
    return gzip.compress(
        b"".join([MAGIC, struct.pack("<I", len(text)), text, *weights]), 6, mtime=0
    )


def measure(snapshot: Snapshot) -> np.ndarray:
    """Return the measures of all heads: float32 (heads of all maps, measures)."""
    measures = [
        measure_heads(
            attention.weights,
            snapshot.sequences[attention.rows],
            snapshot.sequences[attention.columns],
            attention.is_causal,
            snapshot.links if attention.name == "cross" else None,
        )
        for attention in snapshot.maps
    ]
    return np.concatenate([m.reshape(-1, m.shape[-1]) for m in measures])


def describe_maps(snapshot: Snapshot) -> list[dict[str, Any]]:
    """Return {"name", "layers", "heads"} of each map."""
    return [
        {"name": m.name, "layers": m.weights.shape[0], "heads": m.weights.shape[1]}
        for m in snapshot.maps
    ]


def write_snapshot(tag: str, snapshot: Snapshot, step: int) -> None:
    """Write a snapshot and its measures with TensorFlow's default summary writer.

    Args:
        tag: Name of the probe, the same at each step.
        snapshot: What to write.
        step: Of training.
    """
    import tensorflow as tf  # here, since the plugin and the page must not need it

    def metadata(data_class):
        return tf.compat.v1.SummaryMetadata(
            plugin_data=tf.compat.v1.SummaryMetadata.PluginData(
                plugin_name=PLUGIN_NAME,
                content=to_content(snapshot.texts.get("source", ""), describe_maps(snapshot)),
            ),
            data_class=data_class,  # without it TensorBoard drops the series in silence
        )

    # A blob sequence is a string tensor of rank 1: TensorBoard's Rust loader drops rank 0.
    blob_sequence, tensor = 3, 2  # values of the DataClass enum
    tf.summary.write(tag, [encode(snapshot)], step, metadata(blob_sequence))
    tf.summary.write(tag + MEASURES_SUFFIX, measure(snapshot), step, metadata(tensor))


def write_plain_views(tag: str, snapshot: Snapshot, step: int) -> None:
    """Write the texts and a heat map for TensorBoards without the plugin, with the default writer.

    The heat map is the mean of the heads of the last layer with cross-attention.
    """
    import tensorflow as tf

    from attention_viewer.images import draw_heat_map

    # Indented, markdown shows text as it is.
    lines = [f"    {name}: {' '.join(text.split())}" for name, text in snapshot.texts.items()]
    tf.summary.text(f"translation/{tag}", "\n".join(lines), step)
    attention = snapshot.maps[-1]
    image = draw_heat_map(
        attention.weights[-1].mean(axis=0),
        snapshot.sequences[attention.rows],
        snapshot.sequences[attention.columns],
        f"{attention.name}, layer {len(attention.weights)}, mean of heads, step {step}",
    )
    tf.summary.image(f"attention/{tag}", image[np.newaxis], step)


def write_entropies(snapshots: Sequence[Snapshot], step: int) -> None:
    """Write the entropy of each head, the mean of some snapshots, as scalars."""
    import tensorflow as tf

    means = np.mean([measure(snapshot)[:, MEASURES.index("entropy")] for snapshot in snapshots], 0)
    values = iter(means.tolist())
    for attention in snapshots[0].maps:
        for layer, head in np.ndindex(attention.weights.shape[:2]):
            name = f"attention_entropy/{attention.name}_layer_{layer + 1}_head_{head + 1}"
            tf.summary.scalar(name, next(values), step)


def _with_end(pieces: Sequence[str]) -> Tokens:
    return Tokens(pieces, [len(pieces) - 1])


def _to_bytes(weights: np.ndarray) -> bytes:
    return np.rint(255 * np.sqrt(np.clip(weights, 0, 1))).astype(np.uint8).tobytes()

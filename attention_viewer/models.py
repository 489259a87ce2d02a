"""Snapshots of what a model does with texts: a run or a translator, or an exported SavedModel."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from attention_viewer.summary import AttentionMap, Snapshot, Tokens

if TYPE_CHECKING:
    from keras_transformer.exported import ExportedTranslator
    from keras_transformer.translator import Translator

END_PIECE = "</s>"


def inspect(
    model: "str | Path | Translator",
    texts: Sequence[str],
    references: Sequence[str] | None = None,
) -> list[Snapshot]:
    """Translate texts and return the attention.

    Args:
        model: A run directory, an exported SavedModel, or a translator.
        texts: Source texts.
        references: A translation of each, to show the attention for these too.

    Raises:
        ValueError: There is no such model, or an export can't give what is asked; the message says
            what.
    """
    # Here, since TensorBoard's plugin and the writer must be importable without them.
    from keras_transformer.exported import ExportedTranslator, load_translator
    from keras_transformer.inspection import Inspector
    from keras_transformer.translator import Translator

    if references is not None and len(references) != len(texts):
        raise ValueError(
            f"references must be one for each text, received {len(references)} for {len(texts)}"
        )
    translator = load_translator(model) if isinstance(model, str | Path) else model
    if isinstance(translator, ExportedTranslator):
        if references is not None:
            raise ValueError("references need a run directory: an export has only its translations")
        return _of_export(translator, texts)
    if not isinstance(translator, Translator):
        raise ValueError(f"{model}: gives no attention; a run directory or a SavedModel does")
    inspector = Inspector(translator)
    translations = inspector.translations(texts)
    if references is None:
        return [
            Snapshot.of({"source": text, "translation": translation.text}, translation)
            for text, translation in zip(texts, translations, strict=True)
        ]
    return [
        Snapshot.of(
            {"source": text, "reference": reference, "translation": translation.text},
            translation,
            attention,
        )
        for text, reference, translation, attention in zip(
            texts, references, translations, inspector.references(texts, references), strict=True
        )
    ]


def _of_export(translator: "ExportedTranslator", texts: Sequence[str]) -> list[Snapshot]:
    """Return what the signature `attention` gives: the cross-attention of translations."""
    import tensorflow as tf

    outputs = translator.signature("attention")(text=tf.constant(texts))
    answer = {name: output.numpy() for name, output in outputs.items()}
    snapshots = []
    for i, text in enumerate(texts):
        source = _tokens(answer["source_tokens"][i])
        target = _tokens(answer["target_tokens"][i])
        weights = answer["cross_attention"][i, :, :, : len(target), : len(source)]
        snapshots.append(
            Snapshot(
                {"source": text, "translation": answer["translation"][i].decode()},
                {"source": source, "translation": target},
                [AttentionMap("translation", "translation", "source", weights)],
            )
        )
    return snapshots


def _tokens(row: Sequence[bytes]) -> Tokens:
    """Return the tokens of a row that is padded with empty strings."""
    pieces = [piece.decode(errors="replace") for piece in row if piece]
    return Tokens(pieces, [len(pieces) - 1] if pieces[-1:] == [END_PIECE] else [])

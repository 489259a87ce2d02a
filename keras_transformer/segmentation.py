"""In-graph splitting of texts into sentences, and joining of their translations."""

import tensorflow as tf

# A sentence ends after these marks and the closing quotes and brackets that follow: after the
# full-width ones wherever they stand, after the Latin ones before a blank, so that 3.14 and
# example.org stay whole.
_ENDS = r"""([。！？；…]+["'”’」』）】)\]]*|[.!?]+["'”’)\]]*\s)"""
# Not an end: a title or an initial before a name.
_ABBREVIATIONS = r"\b(Mr|Mrs|Ms|Dr|Prof|St|vs|[A-Z])\.\s"
# Marks of our own, which are removed from the texts first.
_BREAK, _BLANK = "\x00", "\x01"


def split_sentences(text: tf.Tensor) -> tf.RaggedTensor:
    """Split each text after its sentence ends, Chinese and Latin ones.

    Args:
        text: string (batch,), UTF-8.

    Returns:
        string (batch, ragged), no blank sentence and no blanks around one; a text without any
        sentence is one empty sentence.
    """
    text = tf.strings.regex_replace(text, f"[{_BREAK}{_BLANK}]", " ")
    text = tf.strings.regex_replace(text, _ABBREVIATIONS, rf"\1.{_BLANK}")
    text = tf.strings.regex_replace(text, _ENDS, rf"\1{_BREAK}")
    text = tf.strings.regex_replace(text, _BLANK, " ")
    sentences = tf.strings.split(text, _BREAK)
    sentences = tf.ragged.map_flat_values(tf.strings.strip, sentences)
    sentences = tf.ragged.boolean_mask(sentences, sentences != "")
    missing = tf.cast(sentences.row_lengths() == 0, tf.int64)
    empty = tf.RaggedTensor.from_row_lengths(tf.fill([tf.reduce_sum(missing)], ""), missing)
    return tf.concat([sentences, empty], axis=1)


def join_sentences(sentences: tf.RaggedTensor) -> tf.Tensor:
    """Join the sentences of each text: with a space, but for one after a full-width mark.

    Args:
        sentences: string (batch, ragged).

    Returns:
        string (batch,).
    """
    joined = tf.strings.reduce_join(sentences, axis=-1, separator=" ")
    return tf.strings.regex_replace(joined, r"([。！？；…][”’」』）】]*) ", r"\1")

"""In-graph text <-> ids: a SentencePiece model run by tensorflow-text."""

import hashlib
from pathlib import Path

import tensorflow as tf
import tensorflow_text as tf_text

from keras_transformer.config import END_ID, PAD_ID, START_ID, UNKNOWN_ID

SPECIAL_PIECES = {PAD_ID: "<pad>", UNKNOWN_ID: "<unk>", START_ID: "<s>", END_ID: "</s>"}


class Tokenizer(tf.Module):
    """Text <-> ids, the same in training and in an exported graph.

    Seed before making one: `keras.utils.set_random_seed` and `tf.random.set_seed` destroy the
    resource of a tokenizer that exists (tensorflow-text 2.21).

    Args:
        model: The bytes of a SentencePiece model whose special ids are those of
            `keras_transformer.config`.

    Raises:
        ValueError: `model` is no SentencePiece model, or has other special ids.
    """

    def __init__(self, model: bytes):
        super().__init__(name="tokenizer")
        self.model = model
        # The op keeps its resource under its name: two of one name in a process, or in one
        # SavedModel, would share the vocabulary of the first.
        name = f"sentencepiece_{hashlib.sha256(model).hexdigest()[:16]}"
        try:
            self._sentencepiece = tf_text.SentencepieceTokenizer(
                model=model, out_type=tf.int32, name=name
            )
            self.vocab_size = int(self._sentencepiece.vocab_size().numpy())
            # A table in the graph, since it needs no op that a server might lack.
            self._pieces = self._sentencepiece.id_to_string(tf.range(self.vocab_size))
        except tf.errors.OpError:
            raise ValueError(f"model is no SentencePiece model ({len(model)} bytes)") from None
        found = [piece.decode() for piece in self._pieces[: len(SPECIAL_PIECES)].numpy()]
        if found != list(SPECIAL_PIECES.values()):
            raise ValueError(
                f"model must have the pieces {list(SPECIAL_PIECES.values())} at ids 0 to 3, "
                f"received {found}"
            )

    @classmethod
    def from_file(cls, path: str | Path) -> "Tokenizer":
        """Return the tokenizer of a `tokenizer.model` file.

        Raises:
            ValueError: The file is missing or no such model; the message names it.
        """
        try:
            return cls(Path(path).read_bytes())
        except OSError as error:
            raise ValueError(f"{path}: {error.strerror}") from None
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    def tokenize(self, text: tf.Tensor) -> tf.RaggedTensor:
        """Return the ids of each text, without special ones.

        Args:
            text: string (batch,), UTF-8; bytes that are not are read as U+FFFD.

        Returns:
            int32 (batch, ragged).
        """
        text = tf.strings.unicode_transcode(
            text, "UTF-8", "UTF-8", errors="replace", replacement_char=0xFFFD
        )
        return self._sentencepiece.tokenize(text)

    def encode(self, text: tf.Tensor, max_length: int) -> tuple[tf.Tensor, tf.Tensor]:
        """Return ids for the encoder.

        Args:
            text: string (batch,).
            max_length: Longest sequence with the end token; longer ones are cut.

        Returns:
            Ids int32 (batch, source): tokens, end token, padding; and bool (batch,), whether the
            text was cut.
        """
        tokens = self.tokenize(text)
        is_cut = tokens.row_lengths() > max_length - 1
        tokens = tokens[:, : max_length - 1]
        ends = tf.fill([tokens.nrows(out_type=tf.int32), 1], END_ID)
        return tf.concat([tokens, ends], axis=1).to_tensor(PAD_ID), is_cut

    def decode(self, ids: tf.Tensor) -> tf.Tensor:
        """Return the texts, string (batch,), of int32 (batch, length); special ids are left out."""
        tokens = tf.ragged.boolean_mask(ids, ids > END_ID)
        return self._sentencepiece.detokenize(tokens)

    def pieces(self, ids: tf.Tensor) -> tf.Tensor:
        """Return the piece of each id, string of the same shape; " " is shown as U+2581."""
        return tf.gather(self._pieces, ids)

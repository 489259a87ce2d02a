"""The module that is saved: tokenizer, weights, and the serving signatures."""

import tensorflow as tf

from keras_transformer.translator import Translator


class ServingModule(tf.Module):
    """A plain tf.Module, since TensorFlow's C++ loader does not find a Keras model's variables.

    It holds what the graph needs and no Keras object: the tokenizers and the weights' tensors.

    Args:
        translator: What to export; its decoding options become part of the graph.
    """

    def __init__(self, translator: Translator):
        super().__init__(name="serving")
        self.tokenizer = translator.tokenizer
        self.source_tokenizer = translator.source_tokenizer
        self.weights = [variable.value for variable in translator.model.weights]

        def serving_default(text):
            return {"translation": translator.translate(text)["translation"]}

        def n_best(text):
            best = translator.n_best(text)
            # Where there are fewer hypotheses the score is -inf, which JSON can't write.
            scores = tf.maximum(best["scores"], tf.float32.min)
            return {"translations": best["translations"], "scores": scores}

        text = {"text": tf.string}
        options = {"temperature": tf.float32, "top_k": tf.int32, "top_p": tf.float32}
        self.functions = {
            "serving_default": _signature(serving_default, text),
            "translate": _signature(translator.translate, text),
            "n_best": _signature(n_best, text),
            "score": _signature(translator.score, {"source": tf.string, "target": tf.string}),
            "attention": _signature(translator.attention, text),
            "sample": _signature(translator.sample, {**text, **options, "seed": tf.int32}),
        }


def _signature(function, inputs: dict[str, tf.DType]):
    """Return `function` as a graph of inputs (batch,) with these names and types."""

    def checked(*tensors):
        # The session does not check what a client feeds: ensure_shape does.
        return function(*(tf.ensure_shape(tensor, [None]) for tensor in tensors))

    specs = [tf.TensorSpec([None], dtype, name) for name, dtype in inputs.items()]
    return tf.function(checked, input_signature=specs, autograph=False)


def save(translator: Translator, path: str) -> None:
    """Write the SavedModel of a translator to the folder `path`."""
    module = ServingModule(translator)
    tf.saved_model.save(module, path, signatures=dict(module.functions))

"""The module that is saved: tokenizer, weights, and the serving signatures."""

import tensorflow as tf

from keras_transformer.translator import Translator


class ServingModule(tf.Module):
    """A plain tf.Module, since TensorFlow's C++ loader does not find a Keras model's variables.

    It holds what the graph needs and no Keras object: the tokenizers and the weights' tensors.

    Args:
        translator: What to export; its beam size and length penalty become part of the graph.
    """

    def __init__(self, translator: Translator):
        super().__init__(name="serving")
        self.tokenizer = translator.tokenizer
        self.source_tokenizer = translator.source_tokenizer
        self.weights = [variable.value for variable in translator.model.weights]
        text = tf.TensorSpec([None], tf.string, name="text")

        # The session does not check what a client feeds: ensure_shape does.
        def serving_default(text):
            text = tf.ensure_shape(text, [None])
            return {"translation": translator.translate(text)["translation"]}

        def translate(text):
            return translator.translate(tf.ensure_shape(text, [None]))

        def n_best(text):
            best = translator.n_best(tf.ensure_shape(text, [None]))
            return {name: best[name] for name in ("translations", "scores")}

        self.functions = {
            function.__name__: tf.function(function, input_signature=[text], autograph=False)
            for function in (serving_default, translate, n_best)
        }


def save(translator: Translator, path: str) -> None:
    """Write the SavedModel of a translator to the folder `path`."""
    module = ServingModule(translator)
    tf.saved_model.save(module, path, signatures=dict(module.functions))

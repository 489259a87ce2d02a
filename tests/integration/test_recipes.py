"""What the options of training are for, each on a task that takes seconds."""

import keras
import pytest

from keras_transformer import DecodingConfig, ModelConfig, Translator, build_transformer
from keras_transformer.tokenizer import Tokenizer
from training import phrasebook
from training.averaging import swapped_weights
from training.config import TrainingConfig
from training.data import Batches, tokenize_corpus
from training.loss import MaskedCrossentropy
from training.metrics import Perplexity
from training.run import compile_model
from training.vocabulary import train_vocabulary

SIZES = {
    "num_encoder_layers": 1,
    "num_decoder_layers": 1,
    "d_model": 64,
    "num_heads": 4,
    "d_ff": 128,
    "dropout": 0.0,
    "max_length": 64,
}


def prepare(pairs, tags=(), **options):
    """Return a tokenizer, batches and a compiled model for a few pairs."""
    tokenizer = Tokenizer(
        train_vocabulary([text for pair in pairs for text in pair], 1000, tags=tags)
    )
    config = ModelConfig(vocab_size=tokenizer.vocab_size, **SIZES)
    corpus = tokenize_corpus(pairs, tokenizer, tokenizer, config.max_length, progress=False)
    model = build_transformer(config)
    compile_model(
        model, config, TrainingConfig(**{"warmup_steps": 40, "learning_rate_scale": 0.2, **options})
    )
    return tokenizer, Batches(corpus, batch_tokens=1024, seed=1), model


def train(batches, model, steps):
    model.fit(batches.dataset(), steps_per_epoch=steps, shuffle=False, verbose=0)


def perplexity_of(model, batches):
    measured = keras.Model(model.inputs, model.outputs)
    measured.compile(loss=MaskedCrossentropy(0.0), metrics=[Perplexity()], jit_compile=False)
    return measured.evaluate(batches.one_pass(), verbose=0, return_dict=True)["perplexity"]


def test_the_tag_decides_into_which_language_a_model_of_both_ways_translates():
    chinese, english = zip(*phrasebook.load("train")[:12], strict=True)
    both_ways = [
        *((f"<2en> {zh}", en) for zh, en in zip(chinese, english, strict=True)),
        *((f"<2zh> {en}", zh) for zh, en in zip(chinese, english, strict=True)),
        # Into its own language, so that the source alone does not tell.
        *((f"<2zh> {zh}", zh) for zh in chinese),
        *((f"<2en> {en}", en) for en in english),
    ]
    tokenizer, batches, model = prepare(both_ways, tags=["<2en>", "<2zh>"])
    train(batches, model, 300)
    translator = Translator(model, tokenizer, decoding=DecodingConfig(beam_size=1))
    for tag, wanted in (("<2en>", english), ("<2zh>", chinese)):
        normal = [text.replace("，", ",").replace("？", "?") for text in wanted]  # NFKC
        for source in (chinese, english):
            assert translator([f"{tag} {text}" for text in source]) == normal


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision_learns_as_well_as_float32(policy):
    pairs = phrasebook.load("train")[:20]
    sources, targets = map(list, zip(*pairs, strict=True))
    perplexities = {}
    for name in ("float32", policy):
        keras.config.set_dtype_policy(name)
        try:
            tokenizer, batches, model = prepare(pairs)
        finally:
            keras.config.set_dtype_policy("float32")
        assert model.get_layer("encoder").compute_dtype == name.removeprefix("mixed_")
        is_scaled = isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
        assert is_scaled == (name == "mixed_float16")
        train(batches, model, 200)
        assert (
            Translator(model, tokenizer, decoding=DecodingConfig(beam_size=1))(sources) == targets
        )
        assert {variable.dtype for variable in model.trainable_variables} == {"float32"}
        perplexities[name] = perplexity_of(model, batches)
    assert perplexities[policy] == pytest.approx(perplexities["float32"], rel=0.02)


@pytest.mark.slow
def test_averaged_weights_are_better_than_those_of_the_last_steps():
    """At a rate too large for the end of training the weights shake; their average does not."""
    pairs = phrasebook.load("train")[:200]
    _, batches, model = prepare(pairs, average_decay=0.95, learning_rate_scale=1.0)
    train(batches, model, 200)
    own = perplexity_of(model, batches)
    with swapped_weights(model, model.optimizer.average()):
        averaged = perplexity_of(model, batches)
    assert averaged < 0.98 * own

"""A run directory with random weights, and the export command: what tests of exports start from."""

import contextlib
import dataclasses
import io
import json
from types import SimpleNamespace

import numpy as np

from export.__main__ import main
from keras_transformer import ModelConfig, build_transformer
from keras_transformer.config import END_ID
from keras_transformer.tokenizer import Tokenizer
from training.config import TrainingConfig
from training.vocabulary import train_vocabulary

CHINESE = """
你好。 你好吗？ 我很好，谢谢你。 你叫什么名字？ 今天天气很好。 明天会下雨吗？ 我喜欢喝茶。
他在学校学习中文。 她是我的朋友。 请问，车站在哪里？ 现在几点了？ 这个多少钱？ 太贵了！ 再见。
""".split()
ENGLISH = [
    "Hello.",
    "How are you?",
    "I am fine, thank you.",
    "What is your name?",
    "The weather is good today.",
    "Will it rain tomorrow?",
    "I like to drink tea.",
    "He studies Chinese at school.",
    "She is my friend.",
    "Excuse me, where is the station?",
    "What time is it now?",
    "How much is this?",
    "Too expensive!",
    "Goodbye.",
]


def write_run(folder, separate_vocabularies=False, **model_options):
    """Write a run directory as training does, with random weights that end most sentences soon."""
    folder.mkdir()
    vocabularies = {"tokenizer.model": train_vocabulary([*CHINESE, *ENGLISH], 380)}
    if separate_vocabularies:
        vocabularies["source_tokenizer.model"] = train_vocabulary(CHINESE, 320)
    sizes = {name: Tokenizer(model).vocab_size for name, model in vocabularies.items()}
    for name, model in vocabularies.items():
        (folder / name).write_bytes(model)
    shape = {"num_encoder_layers": 1, "num_decoder_layers": 1, "d_model": 16, "num_heads": 2}
    config = ModelConfig(
        vocab_size=sizes["tokenizer.model"],
        source_vocab_size=sizes.get("source_tokenizer.model"),
        d_ff=24,
        max_length=24,
        **shape | model_options,
    )
    model = build_transformer(config)
    rng = np.random.default_rng(1)
    for weight in model.trainable_variables:
        mean = 1.0 if weight.name == "gamma" else 0.0
        weight.assign(rng.normal(mean, 0.5, weight.shape))
    # A longer vector for the end token: some translations end at once, others late.
    embedding = next(w for w in model.trainable_variables if w.shape == (config.vocab_size, 16))
    longer = np.where(np.arange(config.vocab_size) == END_ID, 1.5, 1.0)
    embedding.assign(embedding.numpy() * longer[:, np.newaxis])
    model.save_weights(folder / "model.weights.h5")
    effective = {"model": config.to_dict(), "training": dataclasses.asdict(TrainingConfig())}
    (folder / "config.json").write_text(json.dumps(effective))
    results = {"best_bleu": 0.0, "validation_sources": CHINESE[6:10]}
    (folder / "results.json").write_text(json.dumps(results), encoding="utf-8")
    return folder


def run_main(*arguments):
    """Return the exit status, stdout and stderr of the export command, run in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main([str(argument) for argument in arguments])
    return SimpleNamespace(status=status, out=out.getvalue(), err=err.getvalue())

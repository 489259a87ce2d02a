"""The main job by its commands: train, resume, export, reload in a fresh process, translate."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from keras_transformer import DecodingConfig, ModelConfig, Translator, build_transformer
from keras_transformer.tokenizer import Tokenizer
from training import phrasebook
from training.config import TrainingConfig
from training.data import Batches, tokenize_corpus
from training.run import compile_model
from training.vocabulary import train_vocabulary

ROOT = Path(__file__).parents[2]
CONFIG = """
[model]
preset = "tiny"
num_encoder_layers = 1
num_decoder_layers = 1
d_model = 32
d_ff = 64

[training]
vocab_size = 900
batch_tokens = 256
warmup_steps = 50
evaluate_every_steps = 4
evaluation_sentences = 16
log_every_steps = 2
"""


def run(*arguments, stdin=""):
    return subprocess.run(
        [sys.executable, "-m", *map(str, arguments)],
        cwd=ROOT,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=280,
    )


def weights(path):
    arrays = {}

    def collect(name, item):
        if isinstance(item, h5py.Dataset):
            arrays[name] = np.asarray(item)

    with h5py.File(path) as file:
        file.visititems(collect)
    return arrays


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A small corpus: line-aligned and gzipped for training, a TSV with bad lines to validate."""
    folder = tmp_path_factory.mktemp("corpus")
    pairs = phrasebook.load("train")[:240]
    for side, name in enumerate(("train.zh.gz", "train.en.gz")):
        text = "".join(pair[side] + "\n" for pair in pairs[:200])
        (folder / name).write_bytes(gzip.compress(text.encode()))
    lines = ["\t".join(pair) for pair in pairs[200:]]
    (folder / "test.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    lines.insert(3, "no tab here")
    (folder / "valid.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "config.toml").write_text(CONFIG)
    return folder


def train(corpus, output, max_steps, *more):
    done = run(
        "training",
        *("--config", corpus / "config.toml", "--valid", corpus / "valid.tsv"),
        *("--train", f"{corpus}/train.zh.gz,{corpus}/train.en.gz"),
        *("--output", output, "--max-steps", max_steps, *more),
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def resumed(corpus):
    """A run of 6 steps, stopped between two evaluations, and gone on with to 10."""
    output = corpus / "resumed"
    first = train(corpus, output, 6)
    assert "valid.tsv:4: no tab here" in first.stdout
    second = train(corpus, output, 10, "--resume")
    assert "step-00000006" in second.stdout
    return output


@pytest.fixture(scope="module")
def exported(resumed):
    done = run("export", resumed, "--output", resumed.parent / "exports", "--name", "zh-en")
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.splitlines()[-1])


def test_the_run_directory_holds_what_the_contract_says(resumed):
    assert {path.name for path in resumed.iterdir()} == {
        "config.json",
        "tokenizer.model",
        "model.weights.h5",
        "checkpoints",
        "logs",
        "results.json",
    }
    assert weights(resumed / "model.weights.h5")
    assert json.loads((resumed / "results.json").read_text())["steps"] == 10


def test_the_export_scores_as_the_run_does(corpus, resumed, exported):
    results = []
    for model in (resumed, exported):
        done = run("training.evaluate", model, "--test", corpus / "test.tsv")
        assert done.returncode == 0, done.stderr
        results.append(json.loads(done.stdout.splitlines()[-1]))
    assert results[0].keys() >= {"bleu", "chrf", "signature", "sentences", "seconds"}
    assert results[0]["sentences"] == 40
    for key in ("bleu", "chrf", "signature"):
        assert results[0][key] == results[1][key]


def test_a_fresh_process_translates_with_run_and_export_alike(resumed, exported):
    texts = "你好。\n\n我想买两张地铁票。\n"
    answers = [run("keras_transformer", model, stdin=texts) for model in (resumed, exported.parent)]
    assert [answer.returncode for answer in answers] == [0, 0]
    lines = answers[0].stdout.split("\n")
    assert lines == answers[1].stdout.split("\n")
    assert len(lines) == 4
    assert lines[1] == ""


def test_a_time_limit_ends_the_run_with_weights_saved(corpus):
    output = corpus / "limited"
    done = train(corpus, output, 100_000, "--max-minutes", "0.01")
    assert "done: " in done.stdout
    assert (output / "model.weights.h5").is_file()
    steps = json.loads((output / "results.json").read_text())["steps"]
    done = train(corpus, output, 100_000, "--max-minutes", "0.01", "--resume")
    assert "max_minutes, 0.01, is used up" in done.stdout
    assert json.loads((output / "results.json").read_text())["steps"] == steps


def test_translation_reproduces_pairs_that_were_learned_by_heart():
    pairs = phrasebook.load("train")[:20]
    sources, targets = zip(*pairs, strict=True)
    tokenizer = Tokenizer(train_vocabulary([*sources, *targets], 500))
    config = ModelConfig(
        vocab_size=tokenizer.vocab_size,
        num_encoder_layers=1,
        num_decoder_layers=1,
        d_model=64,
        num_heads=4,
        d_ff=128,
        dropout=0.0,
        max_length=64,
    )
    corpus = tokenize_corpus(pairs, tokenizer, tokenizer, config.max_length)
    assert corpus.num_too_long == 0
    model = build_transformer(config)
    compile_model(model, config, TrainingConfig(warmup_steps=40, learning_rate_scale=0.2))
    batches = Batches(corpus, batch_tokens=1024, seed=1)
    model.fit(batches.dataset(), steps_per_epoch=200, shuffle=False, verbose=0)
    assert Translator(model, tokenizer, decoding=DecodingConfig(beam_size=1))(sources) == list(
        targets
    )

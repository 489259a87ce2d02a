# ---
# jupyter:
#   accelerator: GPU
#   colab:
#     provenance: []
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Train a Transformer to translate
#
# From a parallel corpus to a model that TensorFlow Serving loads, with plain Keras:
# `build_transformer`, `model.compile`, `model.fit`. By default it learns Chinese to English from
# the phrasebook that comes with the project, in 5 to 7 minutes on two CPU cores.
#
# **Run all.** After a disconnect, run all again: it goes on from the last epoch, and what is done
# is not done again.

# %% [markdown]
# ## Install
#
# `PROJECT` is `git+https://…` with the address of the repository, or a folder, or a zip file. Leave
# it empty if this notebook lies in a checkout.

# %%
import importlib.metadata
import shutil
import subprocess
import sys
from pathlib import Path

PROJECT = ""  # @param {type: "string"}

try:
    importlib.metadata.version("keras-transformer")
except importlib.metadata.PackageNotFoundError:
    project = PROJECT or ".."
    if "://" not in project:
        if not Path(project).is_file() and not Path(project, "pyproject.toml").is_file():
            raise FileNotFoundError(f"no project in {project!r}: set PROJECT") from None
        project = Path(project).resolve().as_uri()
    packages = [f"keras-transformer[notebook] @ {project}"]
    if shutil.which("nvidia-smi"):
        packages.append("tensorflow[and-cuda]")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", *packages]
    installed = subprocess.run(pip, capture_output=True, text=True)
    if installed.returncode:
        raise RuntimeError(f"pip install has failed:\n{installed.stderr}") from None
    importlib.invalidate_caches()

# Colab brings a TensorFlow of its own. If it was in use already, the new one needs a new process.
for package, module in {
    "tensorflow": "tensorflow",
    "keras": "keras",
    "numpy": "numpy",
    "protobuf": "google.protobuf",
}.items():
    version = importlib.metadata.version(package)
    if module in sys.modules and sys.modules[module].__version__ != version:
        raise RuntimeError(f"{package} is {version} now: restart the runtime, then run all again")
print("keras-transformer", importlib.metadata.version("keras-transformer"), "is installed.")

# %% [markdown]
# ## Settings
#
# * `RUN` is the folder of the run: vocabulary, best weights, saved states, TensorBoard's logs.
#   Other settings want another `RUN`.
# * `DRIVE` (in Colab) keeps it on your Google Drive, where it outlives the virtual machine.
# * `CORPUS` is `phrasebook`; or `upload` (in Colab); or a file, on Drive for example: a TSV with
#   `source TAB target` on each line, or two line-aligned files `train.zh,train.en`; `.gz` works.
#
# For tens of thousands of pairs of your own, take `PRESET = "small"`, `NUM_LAYERS = 3`,
# `VOCAB_SIZE = 8000`, `BATCH_TOKENS = 4096`, `WARMUP_STEPS = 1000`, 20 epochs, and a GPU.

# %% tags=["parameters"]
RUN = "runs/quickstart"  # @param {type: "string"}
DRIVE = False  # @param {type: "boolean"}
CORPUS = "phrasebook"  # @param ["phrasebook", "upload"] {allow-input: true}
PRESET = "tiny"  # @param ["tiny", "small", "base", "big"]
NUM_LAYERS = 2  # @param {type: "integer"}
VOCAB_SIZE = 2000  # @param {type: "integer"}
BATCH_TOKENS = 1024  # @param {type: "integer"}
WARMUP_STEPS = 500  # @param {type: "integer"}
EPOCHS = 6  # @param {type: "integer"}

# %%
import os
import sysconfig
from contextlib import redirect_stderr

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"  # else TensorFlow says at length that there is no GPU
os.environ["TF_FORCE_GPU_ALLOW_GROWTH"] = "true"  # the export is checked in another process
# Where the TensorBoard of this Python is found.
os.environ["PATH"] = os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])

import keras
import matplotlib.pyplot as plt
import tensorflow as tf
from IPython.display import clear_output

from attention_viewer import show_attention
from export.__main__ import main as export
from keras_transformer import DecodingConfig, ModelConfig, Translator, build_transformer
from keras_transformer.exported import load_translator
from keras_transformer.tokenizer import Tokenizer
from training import checkpoints, phrasebook
from training.callbacks import AttentionSummary, Divergence, Evaluation, Scalars, States
from training.corpus import CorpusReport, read_pairs
from training.data import Batches, tokenize_corpus
from training.evaluate import score
from training.events import drop_events_after, read_scalars
from training.loss import MaskedCrossentropy
from training.metrics import TokenAccuracy
from training.optimizer import AveragedAdam
from training.probes import choose_probes
from training.schedule import WarmupInverseSqrt
from training.split import hold_out
from training.vocabulary import train_vocabulary

clear_output()  # of TensorFlow's start-up lines, tensorflow/tensorflow#100442
tf.get_logger().setLevel("WARNING")

in_colab = "google.colab" in sys.modules
if (DRIVE or CORPUS == "upload") and not in_colab:
    raise ValueError("DRIVE and the corpus upload are for Colab: here, RUN and CORPUS take a path")
if DRIVE:
    from google.colab import drive

    drive.mount("/content/drive")
    run = Path("/content/drive/MyDrive", RUN)
else:
    run = Path(RUN).resolve()
run.mkdir(parents=True, exist_ok=True)
print("The run is kept in", run)
print("Training on", *(device.name for device in tf.config.list_logical_devices()))

# %% [markdown]
# ## Corpus

# %%
if CORPUS == "phrasebook":
    train_pairs, valid_pairs, test_pairs = map(phrasebook.load, phrasebook.SPLITS)
else:
    corpus = CORPUS
    if CORPUS == "upload":
        corpus = run / "corpus.tsv"
        if not corpus.exists():
            from google.colab import files

            uploaded = files.upload()
            if len(uploaded) != 1:
                raise ValueError(f"upload one file, with both languages: {len(uploaded)} came")
            checkpoints.save_bytes(corpus, *uploaded.values())
    report = CorpusReport()
    pairs = list(read_pairs(corpus, report=report))
    print(*report.lines(), sep="\n")
    num_held_out = min(500, len(pairs) // 10)
    pairs, test_pairs = hold_out(pairs, num_held_out)
    train_pairs, valid_pairs = hold_out(pairs, num_held_out)

print(f"{len(train_pairs):,} pairs to train on, {len(valid_pairs)} to validate, such as")
for source, target in valid_pairs[:5]:
    print(f"  {source} → {target}")

# %% [markdown]
# One vocabulary for both languages, trained once; batches of sentences of similar length.

# %%
vocabulary = run / "tokenizer.model"
if not vocabulary.exists():
    texts = [text for pair in train_pairs for text in pair]
    checkpoints.save_bytes(vocabulary, train_vocabulary(texts, VOCAB_SIZE))

keras.utils.set_random_seed(1)  # before a tokenizer is made
tokenizer = Tokenizer.from_file(vocabulary)
config = ModelConfig.preset(
    PRESET,
    tokenizer.vocab_size,
    num_encoder_layers=NUM_LAYERS,
    num_decoder_layers=NUM_LAYERS,
)
train_batches, valid_batches = (
    Batches(
        tokenize_corpus(pairs, tokenizer, tokenizer, config.max_length, progress=False),
        BATCH_TOKENS,
        seed=1,
    )
    for pairs in (train_pairs, valid_pairs)
)
print(f"{tokenizer.vocab_size:,} pieces, {train_batches.steps_per_pass:,} batches an epoch")
for text in valid_pairs[0]:
    print(*(piece.decode() for piece in tokenizer.pieces(tokenizer.tokenize([text])[0]).numpy()))

# %% [markdown]
# ## Model
#
# A functional Keras model, from the ids of source and target to logits.

# %%
model = build_transformer(config)
checkpoints.save_json(run / "config.json", {"model": config.to_dict()})
model.summary()

# %% [markdown]
# The paper's optimizer and learning rate (5.3), with a moving average of the weights; and its loss
# (5.4).

# %%
optimizer = AveragedAdam(WarmupInverseSqrt(config.d_model, WARMUP_STEPS), average_decay=0.99)
model.compile(
    optimizer,
    loss=MaskedCrossentropy(label_smoothing=0.1),
    metrics=[TokenAccuracy()],
    jit_compile=False,  # XLA would compile each shape of a batch anew
)

# %% [markdown]
# ## Train
#
# TensorBoard shows the curves while the model learns, and under ATTENTION what it looks at.

# %%
# %load_ext tensorboard
# %tensorboard --logdir {run}/logs

# %%
restored = checkpoints.restore(run / "checkpoints", model)
progress = restored[1] if restored else {}
done = int(optimizer.iterations)
drop_events_after(run / "logs", done if restored else -1)
if restored:
    print(f"Resumed from {restored[0]}")

translator = Translator(model, tokenizer, decoding=DecodingConfig(beam_size=1))
evaluation = Evaluation(
    translator,
    valid_pairs[:200],
    valid_batches.one_pass(),
    run / "model.weights.h5",
    average=optimizer.average,
    best=progress.get("best"),
    num_examples=3,
)
scalars = Scalars(run / "logs", every_steps=10, progress=progress.get("scalars"))
attention = AttentionSummary(
    translator, choose_probes(valid_pairs), run / "logs/attention", every_steps=300
)
states = States(
    run / "checkpoints", lambda: {"best": evaluation.best, "scalars": scalars.progress()}
)
history = model.fit(
    train_batches.dataset(done),
    steps_per_epoch=train_batches.steps_per_pass,
    initial_epoch=done // train_batches.steps_per_pass,
    epochs=EPOCHS,
    shuffle=False,
    callbacks=[
        keras.callbacks.ProgbarLogger(),
        Divergence(),
        evaluation,
        scalars,
        attention,
        states,
    ],
)

# %% [markdown]
# ## Curves

# %%
curves = read_scalars(run / "logs")
figure, axes = plt.subplots(1, 3, figsize=(12, 3), layout="constrained")
for axis, tag in zip(axes, ("loss", "validation/perplexity", "validation/bleu"), strict=True):
    points = curves.get(tag, {})
    axis.plot(list(points), list(points.values()), marker="." if "validation" in tag else "")
    axis.set(title=tag, xlabel="step")
    axis.grid(alpha=0.3)

# %% [markdown]
# ## BLEU
#
# Of the best weights on the test set, which they have not seen, by beam search.

# %%
best = Translator.from_run(run)
translations = best([source for source, _ in test_pairs])
scores = score(translations, [target for _, target in test_pairs])
print(f"BLEU {scores.bleu:.2f}  {scores.signature}")
print(f"chrF {scores.chrf:.2f}  {scores.chrf_signature}")

# %% [markdown]
# ## Translate

# %%
SENTENCE = "我想喝一杯茶。"  # @param {type: "string"}

print(*best([SENTENCE]))

# %% [markdown]
# What did the model look at? Click a head on the left; see `docs/attention.md` for how to read it.

# %%
show_attention(best, SENTENCE)

# %% [markdown]
# ## Export
#
# A SavedModel, strings in and strings out, which TensorFlow Serving loads: `docs/serving.md`. This
# is the command `python -m export`, which tries what it has written in a fresh process.

# %%
exports = run / "exports"
version = str(int(optimizer.iterations))
exported = exports / run.name / version
if not exported.exists():
    with redirect_stderr(sys.stdout):
        export([str(run), "--output", str(exports), "--version", version, "--keep", "1"])

# %%
print(*load_translator(exported)([SENTENCE]))
archive = shutil.make_archive(str(exports), "zip", exports)
print(archive)
if in_colab:
    from google.colab import files

    files.download(archive)

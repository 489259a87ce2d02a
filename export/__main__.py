"""Exports a run: `python -m export RUN --output DIR` writes the SavedModel `DIR/N/V/`.

And `DIR/serving/`, with which TensorFlow Serving serves all models of DIR. With `--format
ctranslate2` it writes `DIR/N-ctranslate2/` instead.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from export.versions import next_version, prune
from keras_transformer.config import RESULTS_FILE, DecodingConfig

# Texts beside the run's held-out sentences that an export must translate alike.
ODD_TEXTS = ("", " ", "你好。", "Hello, world! 🌍", "a" * 500)
# What warm-up and golden requests ask where a run has no held-out sentences.
DEFAULT_SENTENCES = ("你好。", "Hello, world!")
# Options of DecodingConfig, and what --help says of them.
DECODING = {
    "beam_size": "hypotheses to keep; 1 searches greedily",
    "length_penalty": "alpha, 0 for none",
    "num_best": "hypotheses that n_best gives, instead of all in the beam",
    "coverage_penalty": "beta, for source words that a translation did not look at",
    "no_repeat_ngram": "never say the same so many tokens in a row twice, 0 allows it",
    "max_source_length": "longest source in tokens, instead of the model's",
    "max_target_length": "longest translation in tokens, instead of 50 more than its source",
    "segment": "split texts at sentence ends, translate the sentences and join them",
}
QUANTIZATIONS = ("float32", "int8", "int8_float32", "int16", "float16", "bfloat16")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    options = _parse(argv)
    run, output = Path(options.run), Path(options.output)
    name = options.name or run.resolve().name
    # Loaded here, so that --help and a mistake in the arguments answer at once.
    from export import serving_config
    from keras_transformer.translator import Translator

    decoding = {key: options.__dict__[key] for key in DECODING if key in options}
    try:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
            raise ValueError(f"--name must be letters, digits, '.', '_' and '-', received {name!r}")
        if name == serving_config.FOLDER:
            raise ValueError(f"--name {name} is the folder of the server's configuration")
        if options.keep is not None and options.keep < 1:
            raise ValueError(f"--keep must be at least 1, received {options.keep}")
        if options.version is not None and options.version < 1:
            raise ValueError(f"--version must be a positive integer, received {options.version}")
        if options.format == "ctranslate2":
            _check_ctranslate2(options, decoding)
        elif options.quantization:
            raise ValueError("--quantization is for --format ctranslate2")
        translator = Translator.from_run(run, DecodingConfig(**decoding))
        if options.format == "ctranslate2":
            return _export_ctranslate2(translator, run, output, name, options.quantization)
        output.joinpath(name).mkdir(parents=True, exist_ok=True)
        batch_sizes = serving_config.read_batch_sizes(output)
        labels = serving_config.read_labels(output)
        version = options.version or next_version(output / name)
        target = output / name / str(version)
        if target.exists():
            raise ValueError(f"{target} exists: choose another --version")
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    try:
        export(translator, target, _validation_sources(run), batch_sizes)
        labels = serving_config.update(output, labels)
        if options.keep:
            in_use = {version, *labels[name].values()}
            for old in prune(output / name, options.keep, spare=in_use):
                print(f"removed {output / name / str(old)}", file=sys.stderr)
    except (ExportError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(target)
    return 0


def _check_ctranslate2(options: argparse.Namespace, decoding: dict) -> None:
    """Refuse what a CTranslate2 folder can't hold."""
    if find_spec("ctranslate2") is None:
        raise ValueError("--format ctranslate2 needs its package: pip install ctranslate2")
    for key in [*decoding, *(key for key in ("version", "keep") if getattr(options, key))]:
        raise ValueError(
            f"--{key.replace('_', '-')} is not for --format ctranslate2: the folder has no "
            "versions, and how to search is an option of each call there"
        )


def _export_ctranslate2(translator, run: Path, output: Path, name: str, quantization: str) -> int:
    from export.ctranslate2_folder import save
    from keras_transformer.exported import CTranslate2Translator

    target = output / f"{name}-ctranslate2"
    if target.exists():
        raise ValueError(f"{target} exists: remove it or choose another --name")
    output.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=".writing-", dir=output))
    try:
        save(translator, temporary, quantization or "float32")
        texts = [*ODD_TEXTS, *_validation_sources(run)]
        found = CTranslate2Translator(temporary, translator.decoding)(texts)
        same = sum(a == b for a, b in zip(found, translator(texts), strict=True))
        print(f"{same} of {len(texts)} sentences translated as by the run", file=sys.stderr)
        temporary.chmod(0o755)
        os.rename(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    print(target)
    return 0


class ExportError(Exception):
    """The export failed its verification; the message says what and why."""


def export(translator, target: Path, held_out: Sequence[str], batch_sizes: Sequence[int]) -> None:
    """Write a SavedModel that is complete and verified when it appears under its name.

    Args:
        translator: What to export.
        target: The folder of the version, `DIR/N/V`, which does not exist.
        held_out: Sentences that the export must translate as the translator does, and that its
            warm-up and its golden requests ask.
        batch_sizes: Those of the server's batching.

    Raises:
        ExportError: The export does not answer as it should.
        OSError: The folder can't be written.
        ValueError: A signature has an input for which there is no example.
    """
    from export.signatures import save

    # TF Serving takes any folder beside the versions whose name is a number: this one is none.
    temporary = Path(tempfile.mkdtemp(prefix=".writing-", dir=target.parent))
    try:
        print(f"exporting to {target}", file=sys.stderr)
        save(translator, str(temporary))
        sentences = held_out or DEFAULT_SENTENCES
        _write_requests(temporary, target.parent.name, sentences, batch_sizes)
        texts = [*ODD_TEXTS, *held_out]
        print(f"verifying {len(texts)} sentences in a fresh process", file=sys.stderr)
        _verify(temporary, texts, translator(texts))
        temporary.chmod(0o755)  # mkdtemp's own mode would hide it from the server's user
        os.rename(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _write_requests(
    folder: Path, model_name: str, sentences: Sequence[str], batch_sizes: Sequence[int]
) -> None:
    """Add the warm-up and the golden requests to the SavedModel in `folder`."""
    import tensorflow as tf

    from export.golden import write_golden
    from export.warmup import write_warmup

    loaded = tf.saved_model.load(str(folder))
    write_warmup(folder, loaded.signatures, sentences, batch_sizes, model_name)
    shortest = sorted(sentences, key=len)[:2]
    write_golden(folder, loaded.signatures, ["", *shortest])


def _verify(folder: Path, texts: list[str], translations: list[str]) -> None:
    checked = subprocess.run(
        [sys.executable, "-m", "export.verify", str(folder.resolve())],
        input=json.dumps({"text": texts, "translation": translations}),
        cwd=Path(__file__).parent.parent,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    if checked.returncode:
        last_line = (checked.stderr.strip().splitlines() or ["no message"])[-1]
        reason = last_line.removeprefix("error: ")
        raise ExportError(f"the export does not pass its verification: {reason}")


def _validation_sources(run: Path) -> list[str]:
    """Return the held-out sentences that training left in the run directory."""
    try:
        return list(json.loads((run / RESULTS_FILE).read_text("utf-8"))["validation_sources"])
    except (OSError, ValueError, KeyError):
        return []


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m export",
        description="Write DIR/N/V, a SavedModel for TF Serving, verify it, and print its path.",
    )
    parser.add_argument("run", metavar="RUN", help="run directory")
    parser.add_argument("--output", required=True, metavar="DIR", help="folder of the models")
    parser.add_argument("--name", metavar="N", help="name of the model (default: the run's)")
    parser.add_argument("--version", type=int, metavar="V", help="default: the next free number")
    parser.add_argument(
        "--keep",
        type=int,
        metavar="N",
        help="remove all but the N newest versions and those that have a label (default: none)",
    )
    parser.add_argument("--format", choices=("saved_model", "ctranslate2"), default="saved_model")
    parser.add_argument(
        "--quantization", choices=QUANTIZATIONS, help="of a CTranslate2 folder (default: float32)"
    )
    group = parser.add_argument_group("search")
    for key, help_text in DECODING.items():
        default = DecodingConfig.__dataclass_fields__[key].default
        name = f"--{key.replace('_', '-')}"
        if isinstance(default, bool):
            group.add_argument(name, action="store_true", default=argparse.SUPPRESS, help=help_text)
            continue
        if default is not None:
            help_text += f" (default {default})"
        group.add_argument(
            name,
            type=float if isinstance(default, float) else int,
            default=argparse.SUPPRESS,  # told apart from an option that is given
            metavar=key[0].upper(),
            help=help_text,
        )
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())

"""Exports a run: `python -m export RUN --output DIR` writes the SavedModel `DIR/N/V/`.

And `DIR/serving/`, with which TensorFlow Serving serves all models of DIR.
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
from pathlib import Path

from export.versions import next_version, prune
from keras_transformer.config import RESULTS_FILE

# Texts beside the run's held-out sentences that an export must translate alike.
ODD_TEXTS = ("", " ", "你好。", "Hello, world! 🌍", "a" * 500)
# What warm-up and golden requests ask where a run has no held-out sentences.
DEFAULT_SENTENCES = ("你好。", "Hello, world!")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    options = _parse(argv)
    run, output = Path(options.run), Path(options.output)
    name = options.name or run.resolve().name
    # Loaded here, so that --help and a mistake in the arguments answer at once.
    from export import serving_config
    from keras_transformer.translator import Translator

    try:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
            raise ValueError(f"--name must be letters, digits, '.', '_' and '-', received {name!r}")
        if name == serving_config.FOLDER:
            raise ValueError(f"--name {name} is the folder of the server's configuration")
        if options.keep is not None and options.keep < 1:
            raise ValueError(f"--keep must be at least 1, received {options.keep}")
        if options.version is not None and options.version < 1:
            raise ValueError(f"--version must be a positive integer, received {options.version}")
        translator = Translator.from_run(run, options.beam_size, options.length_penalty)
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
    parser.add_argument("--beam-size", type=int, default=4, metavar="K", help="default 4")
    parser.add_argument(
        "--length-penalty", type=float, default=0.6, metavar="A", help="default 0.6"
    )
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())

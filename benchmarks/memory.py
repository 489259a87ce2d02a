"""Memory of training: resident memory of `python -m training`, and its time to the first step.

    PYTHONPATH=. python benchmarks/memory.py                         # a generated corpus
    PYTHONPATH=. python benchmarks/memory.py --train F --valid F     # any other

A line of the generated corpus is one to six sentences of the phrasebook in a row, drawn by a seed.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

VALIDATION_LINES = 1000
CONFIG = """
[training]
log_every_steps = 1  # so that the time of the first step is in the events
evaluation_sentences = 100
"""


def main():
    """Write the corpus, train on it for some steps, and print the table."""
    options = parse()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        train, valid = options.train, options.valid
        if not train:
            train, valid = str(folder / "train.tsv"), str(folder / "valid.tsv")
            write_corpus(train, "train", options.lines)
            write_corpus(valid, "valid", VALIDATION_LINES)
            print(f"{options.lines:,} lines, {Path(train).stat().st_size:,} bytes\n")
        config = options.config
        if not config:
            config = str(folder / "config.toml")
            Path(config).write_text(CONFIG)
        output = str(folder / "run")
        command = [sys.executable, "-m", "training", "--train", train, "--valid", valid]
        command += ["--config", config, "--output", output, "--max-steps", str(options.steps)]
        measure(command, Path(output))


def measure(command, output):
    """Run a training, and print its time and memory at each line that it prints."""
    print("| when it says | seconds | MiB resident | at most so far |")
    print("| --- | ---: | ---: | ---: |")
    started = time.time()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    )
    for line in process.stdout:
        resident, peak = read_memory(process.pid)
        seconds = time.time() - started
        print(f"| {line.strip()[:90]} | {seconds:.0f} | {resident:,} | {peak:,} |", flush=True)
    # Of this one child, to its very end; what it began with, this process's, is less.
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"training failed with status {os.waitstatus_to_exitcode(status)}")
    print(f"\nresident at most: {usage.ru_maxrss // 1024:,} MiB")
    print(
        f"from the start to the end of the first step: {first_step(output) - started:.0f} seconds"
    )


def read_memory(pid):
    """Return the resident memory of a process and its maximum so far, in MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    if "VmRSS:" not in status:  # it has ended
        return 0, 0
    return tuple(int(status.split(name)[1].split()[0]) // 1024 for name in ("VmRSS:", "VmHWM:"))


def first_step(output):
    """Return when the first step ended, in seconds since the epoch."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    return min(
        event.wall_time
        for file in output.joinpath("logs").rglob("events.*")
        for event in EventFileLoader(str(file)).Load()
        if event.step == 1
    )


def write_corpus(path, split, lines):
    """Write a TSV of so many lines."""
    from training import phrasebook

    pairs = phrasebook.load(split)
    draw = random.Random(1)
    with open(path, "w", encoding="utf-8") as file:
        for _ in range(lines):
            sentences = draw.choices(pairs, k=draw.randint(1, 6))
            source = "".join(source for source, _ in sentences)
            target = " ".join(target for _, target in sentences)
            file.write(f"{source}\t{target}\n")


def parse():
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lines", type=int, default=5_000_000, help="of the generated corpus")
    parser.add_argument("--train", help="another corpus")
    parser.add_argument("--valid", help="and its validation corpus")
    parser.add_argument("--config", help="TOML file for the training")
    parser.add_argument("--steps", type=int, default=20)
    return parser.parse_args()


if __name__ == "__main__":
    main()

"""Writes the phrasebook as TSV files, or shows what is in it.

`python -m training.phrasebook` shows counts and examples by topic;
`python -m training.phrasebook --output DIR` writes `train.tsv`, `valid.tsv` and `test.tsv` there.
"""

import argparse
import os
import sys
from pathlib import Path

from training import phrasebook
from training.phrasebook.grammar import GrammarError

EXAMPLES_PER_TOPIC = 5


def main(argv: list[str] | None = None) -> int:
    """Runs the command.

    Args:
        argv: the arguments without the program's name; those of the process by default.

    Returns:
        The exit status: 0; 1 when the data files contradict themselves; 2 when the folder
        cannot be written.
    """
    parser = argparse.ArgumentParser(
        prog="python -m training.phrasebook",
        description="The embedded Chinese-English corpus: writes it, or shows what is in it.",
    )
    parser.add_argument(
        "--output", type=Path, metavar="DIR", help="write train.tsv, valid.tsv and test.tsv there"
    )
    arguments = parser.parse_args(argv)
    try:
        phrasebook.derivations()
    except GrammarError as error:
        print(f"phrasebook: {error}", file=sys.stderr)
        return 1
    if arguments.output is None:
        try:
            print_overview()
            sys.stdout.flush()
        except BrokenPipeError:
            # `| head` has seen enough. What Python flushes at exit must go somewhere else.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    try:
        write_splits(arguments.output)
    except OSError as error:
        print(f"--output {arguments.output}: {error.strerror or error}", file=sys.stderr)
        return 2
    return 0


def write_splits(folder: Path) -> None:
    """Writes each split as `source<TAB>target` lines (UTF-8, LF) and prints the counts."""
    folder.mkdir(parents=True, exist_ok=True)
    for split in phrasebook.SPLITS:
        pairs = phrasebook.load(split)
        path = folder / f"{split}.tsv"
        with path.open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(f"{chinese}\t{english}\n" for chinese, english in pairs)
        print(f"{path}: {len(pairs)} pairs")


def print_overview() -> None:
    """Prints the counts of pairs by split and by topic, with a few examples of each topic."""
    for split in phrasebook.SPLITS:
        print(f"{split}: {len(phrasebook.load(split))} pairs")
    for topic, derivations in phrasebook.by_topic().items():
        print(f"\n{topic}: {len(derivations)} pairs")
        for derivation in derivations[:EXAMPLES_PER_TOPIC]:
            print(f"  {derivation.zh}\t{derivation.en}")


if __name__ == "__main__":
    sys.exit(main())

"""Trains a Transformer: `python -m training --train F --valid F --output RUN`."""

import argparse
import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from keras_transformer.config import CONFIG_FILE, PRESETS
from training.config import STRATEGIES, Process, RunConfig


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    started = time.monotonic()
    options = _parse(argv)
    training = {
        name: getattr(options, name)
        for name in ("train", "valid", "max_steps", "max_minutes", "strategy", "seed", "init_from")
        if getattr(options, name) is not None
    }
    model = {"preset": options.preset} if options.preset else {}
    output = Path(options.output)
    try:
        process = Process.parse(options.process) if options.process else None
        is_first = process is None or process.number == 0
        # The others only train; what stands in the directory is the first one's.
        goes_on = _check_output(output, options.resume or not is_first) and options.resume
        earlier = output / CONFIG_FILE if goes_on and not options.config else None
        config = RunConfig.load(earlier or options.config, training, model)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if not is_first:
        sys.stdout = open(os.devnull, "w")  # what they would print is the same
    # TensorFlow takes seconds to load: not for --help, nor for a mistake in the arguments.
    from training.callbacks import DivergenceError, Interrupted
    from training.run import prepare

    try:
        try:
            run = prepare(config, output, options.resume, started, process)
        except ValueError as error:  # a corpus or an option; one in training would be our mistake
            print(f"error: {error}", file=sys.stderr)
            return 2
        run.fit()
    except DivergenceError as error:
        print(f"error: training has diverged: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except Interrupted as interrupted:
        print("interrupted; the state is saved, --resume goes on from here", file=sys.stderr)
        return 128 + interrupted.signal
    except KeyboardInterrupt:
        print("interrupted; --resume goes on from the last saved state", file=sys.stderr)
        return 128 + signal.SIGINT
    except Exception as error:
        if process is None:
            raise
        traceback.print_exc()
        print(
            f"error: process {process.number} can't go on: {str(error).splitlines()[0]}\n"
            "If another process has ended before, its last lines say why.",
            file=sys.stderr,
        )
        return 1
    return 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m training",
        description="Train a Transformer on a parallel corpus; without --train, on the phrasebook.",
    )
    parser.add_argument(
        "--train", help="TSV (source TAB target), or SOURCE,TARGET files; .gz works"
    )
    parser.add_argument("--valid", help="validation corpus, likewise")
    parser.add_argument("--output", required=True, help="run directory to write")
    parser.add_argument("--config", help="TOML file with the tables [model] and [training]")
    parser.add_argument("--preset", choices=tuple(PRESETS), help="model size (default small)")
    parser.add_argument("--max-steps", type=int, help="optimizer steps at the most")
    parser.add_argument("--max-minutes", type=float, help="wall-clock limit of the whole run")
    parser.add_argument(
        "--strategy",
        choices=tuple(filter(None, STRATEGIES)),
        help="train on all devices (default: on one); data_parallel is for the JAX backend",
    )
    parser.add_argument(
        "--process",
        metavar="NUMBER/COUNT@HOST:PORT",
        help="train as one of many processes (on JAX), the first of which listens there",
    )
    parser.add_argument("--seed", type=int, help="of weights, dropout and data order (default 1)")
    parser.add_argument("--init-from", metavar="RUN", help="start from the best weights of a run")
    parser.add_argument("--resume", action="store_true", help="go on with the run in --output")
    return parser.parse_args(argv)


def _check_output(output: Path, resume: bool) -> bool:
    """Return whether `output` holds a run to go on with."""
    if output.exists() and not output.is_dir():
        raise ValueError(f"--output {output} is a file")
    holds_run = (output / CONFIG_FILE).exists()
    if holds_run and not resume:
        raise ValueError(
            f"--output {output} holds a run: go on with it by --resume, or name another folder"
        )
    return holds_run


if __name__ == "__main__":
    status = main()
    if status and any(argument.startswith("--process") for argument in sys.argv):
        # Without the end of a normal exit, where this process would wait for the others, and they
        # for what it no longer computes.
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)

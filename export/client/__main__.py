"""Asks a server: `python -m export.client --rest HOST:PORT | --grpc HOST:PORT --name N TEXT...`."""

import argparse
import itertools
import json
import os
import queue
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from export.client.golden import read_golden, verify
from export.client.model import Connection, ModelSpec, ServedModel, ServingError, Tls

DEFAULT_SIGNATURE = "serving_default"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    options = _parse(argv)
    asked: list[ServedModel] = []

    def connect(spec: ModelSpec) -> ServedModel:
        asked.append(_connect(options, spec))
        return asked[-1]

    try:
        if options.verify:
            return _verify(read_golden(options.verify, options.name), connect)
        _translate(connect(ModelSpec(options.name, options.version, options.label)), options)
    except ServingError as error:
        print(f"error: {asked[-1].explain(error)}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # `| head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    finally:
        for model in asked:
            model.close()
    return 0


def _connect(options: argparse.Namespace, spec: ModelSpec) -> ServedModel:
    is_encrypted = options.tls or options.ca or options.cert
    tls = Tls(options.ca, options.cert, options.key) if is_encrypted else None
    address = options.rest or options.grpc
    connection = Connection(address, tls, options.deadline, options.retries)
    if options.rest:
        from export.client.rest import RestModel

        return RestModel(connection, spec)
    try:
        from export.client.rpc import GrpcModel
    except ImportError as error:
        raise ValueError(f"--grpc needs grpcio, protobuf and numpy: {error}") from None
    return GrpcModel(connection, spec)


def _verify(golden: list[dict], connect: Callable[[ModelSpec], ServedModel]) -> int:
    status = 0
    for asked, difference in verify(golden, connect):
        if difference is None:
            print(f"ok: {asked}")
        else:
            print(f"error: {asked}: {difference}", file=sys.stderr)
            status = 1
    return status


# ---------------------------------------------------------------- texts in, answers out


def _translate(model: ServedModel, options: argparse.Namespace) -> None:
    """Print the answer to each text, in their order."""
    signature = options.signature
    if signature not in model.signatures:
        raise ValueError(
            f"{model.spec} has no signature {signature!r}; it has "
            f"{', '.join(sorted(model.signatures))}"
        )
    types = model.signatures[signature].inputs
    columns, constants = _split_inputs(signature, types, options.input)
    if options.text:
        texts: Iterable[str] = [os.fsencode(text).decode(errors="replace") for text in options.text]
    else:
        texts = _stdin_lines()
    at_a_terminal = not options.text and sys.stdin.isatty()

    def ask(batch: Sequence[str]) -> list[str]:
        inputs = _columns(batch, columns)
        inputs.update({name: [value] * len(batch) for name, value in constants.items()})
        return _format(signature, model.predict(signature, inputs))

    batch_size = 1 if at_a_terminal else options.batch_size
    for answers in pipelined(ask, _batched(texts, batch_size), options.in_flight):
        print("\n".join(answers), flush=True)


def pipelined(call: Callable, items: Iterable, in_flight: int) -> Iterator:
    """Yield `call(item)` for each item, in order, with up to `in_flight` calls at once.

    Items are read while calls are under way, and each result is there as soon as it and those
    before it are: also when the items come slowly.
    """
    futures: queue.Queue[Future | None] = queue.Queue(maxsize=in_flight)
    pool = ThreadPoolExecutor(in_flight)

    def read() -> None:
        try:
            for item in items:
                futures.put(pool.submit(call, item))
            futures.put(None)
        except Exception as error:  # raised where it would be without a thread
            failed: Future = Future()
            failed.set_exception(error)
            futures.put(failed)

    threading.Thread(target=read, daemon=True).start()
    try:
        while (future := futures.get()) is not None:
            yield future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _stdin_lines() -> Iterator[str]:
    """Yield lines as in a corpus: they end at a newline alone; invalid UTF-8 is read as U+FFFD."""
    # A file of its own: Python can't end while another thread waits in sys.stdin.
    with open(sys.stdin.fileno(), "rb", closefd=False) as lines:
        for line in lines:
            yield line.decode(errors="replace").rstrip("\r\n")


def _batched(items: Iterable[str], size: int) -> Iterator[list[str]]:
    iterator = iter(items)
    while batch := list(itertools.islice(iterator, size)):
        yield batch


def _split_inputs(
    signature: str, types: dict[str, str], given: Sequence[tuple[str, str]]
) -> tuple[list[str], dict[str, object]]:
    """Return the inputs that come from the texts, in order, and the values of the others."""
    constants: dict[str, object] = {}
    for name, text in given:
        if name not in types:
            raise ValueError(f"signature {signature} has no input {name}; it has {list(types)}")
        constants[name] = _parse_value(name, text, types[name])
    columns = []
    for name, kind in types.items():
        if name in constants:
            continue
        if kind != "DT_STRING":
            raise ValueError(f"signature {signature} needs --input {name}=VALUE ({kind})")
        columns.append(name)
    if not columns:
        raise ValueError(f"signature {signature} has no input left for the texts")
    return columns, constants


def _parse_value(name: str, text: str, kind: str) -> object:
    try:
        if kind == "DT_STRING":
            return text
        if kind == "DT_BOOL":
            return {"true": True, "false": False}[text.lower()]
        return float(text) if kind in ("DT_FLOAT", "DT_DOUBLE") else int(text)
    except (ValueError, KeyError):
        raise ValueError(f"--input {name} must be of {kind}, received {text!r}") from None


def _columns(texts: Sequence[str], names: Sequence[str]) -> dict[str, list]:
    """Return the inputs of a batch; several are separated by tabs within a text."""
    if len(names) == 1:
        return {names[0]: list(texts)}
    rows = [text.split("\t") for text in texts]
    for text, row in zip(texts, rows, strict=True):
        if len(row) != len(names):
            raise ValueError(f"a text must be {' TAB '.join(names)}, received {text!r}")
    return {name: list(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}


def _format(signature: str, outputs: dict[str, list]) -> list[str]:
    if signature == DEFAULT_SIGNATURE:
        (translations,) = outputs.values()
        return [" ".join(translation.splitlines()) for translation in translations]
    rows = zip(*outputs.values(), strict=True)
    return [json.dumps(dict(zip(outputs, row, strict=True)), ensure_ascii=False) for row in rows]


# ---------------------------------------------------------------- arguments


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m export.client",
        description="Ask a model that TensorFlow Serving serves. serving_default prints one "
        "translation a line, other signatures one JSON object a line.",
    )
    server = parser.add_mutually_exclusive_group(required=True)
    server.add_argument("--rest", type=_address, metavar="HOST:PORT", help="as localhost:8501")
    server.add_argument("--grpc", type=_address, metavar="HOST:PORT", help="as localhost:8500")
    parser.add_argument("--name", metavar="N", help="name of the model; --verify does without")
    version = parser.add_mutually_exclusive_group()
    version.add_argument("--version", type=int, metavar="V", help="default: the newest")
    version.add_argument("--label", metavar="L", help="version by its label, as stable or canary")
    parser.add_argument(
        "--signature", default=DEFAULT_SIGNATURE, metavar="S", help=f"default {DEFAULT_SIGNATURE}"
    )
    parser.add_argument(
        "text",
        nargs="*",
        metavar="TEXT",
        help="none: the lines of standard input. Of a signature with several texts, as score: "
        "separated by tabs, in the alphabetical order of their names",
    )
    parser.add_argument(
        "--input",
        type=_assignment,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="another input of the signature, the same for each text",
    )
    parser.add_argument(
        "--verify", type=Path, metavar="FILE", help="ask the requests of golden_requests.json"
    )
    parser.add_argument(
        "--batch-size",
        type=_positive(int),
        default=32,
        metavar="B",
        help="of a request, default 32",
    )
    parser.add_argument(
        "--in-flight",
        type=_positive(int),
        default=4,
        metavar="R",
        help="requests at once, default 4",
    )
    parser.add_argument(
        "--deadline", type=_positive(float), default=60.0, metavar="SECONDS", help="default 60"
    )
    parser.add_argument(
        "--retries", type=int, default=5, metavar="R", help="while it is unavailable, default 5"
    )
    parser.add_argument("--tls", action="store_true", help="encrypt, with the system's authorities")
    parser.add_argument("--ca", type=Path, metavar="PEM", help="encrypt, with this authority")
    parser.add_argument("--cert", type=Path, metavar="PEM", help="certificate of this client")
    parser.add_argument("--key", type=Path, metavar="PEM", help="key of --cert")
    options = parser.parse_intermixed_args(argv)
    if options.verify is None and options.name is None:
        parser.error("--name is required")
    if (options.cert is None) != (options.key is None):
        parser.error("--cert and --key belong together")
    return options


def _address(text: str) -> str:
    if not re.fullmatch(r"[^/\s]+:\d{1,5}", text):
        raise argparse.ArgumentTypeError(f"must be HOST:PORT, received {text!r}")
    return text


def _assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"must be NAME=VALUE, received {text!r}")
    return name, value


def _positive(number: Callable) -> Callable:
    def parse(text: str):
        value = number(text)
        if not value > 0:
            raise argparse.ArgumentTypeError(f"must be above 0, received {text}")
        return value

    parse.__name__ = number.__name__  # in argparse's own message
    return parse


if __name__ == "__main__":
    sys.exit(main())

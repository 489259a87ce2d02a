"""A model on a server, whichever way it is asked; and what may go wrong."""

import itertools
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

MISSING_OP = "Op type not registered"
INIT_SIGNATURE = "__saved_model_init_op"  # which the server asks itself, at the start


@dataclass(frozen=True)
class Tls:
    """Files in PEM format; None is the system's authorities, and no certificate of the client."""

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None


@dataclass(frozen=True)
class Connection:
    """How to reach a server.

    Attributes:
        address: "HOST:PORT".
        tls: None for an unencrypted connection.
        deadline_seconds: For a request with all its repetitions.
        retries: How often a request is repeated while the server is unavailable.
    """

    address: str
    tls: Tls | None = None
    deadline_seconds: float = 60.0
    retries: int = 5


@dataclass(frozen=True)
class ModelSpec:
    """Which model, and which version of it: by number, by label, or the newest."""

    name: str
    version: int | None = None
    label: str | None = None

    def __str__(self):
        if self.version is not None:
            return f"version {self.version} of {self.name}"
        return self.name if self.label is None else f"version {self.label!r} of {self.name}"


@dataclass(frozen=True)
class Signature:
    """The types of a signature's inputs, as "DT_STRING", and the names of its outputs."""

    inputs: dict[str, str]
    outputs: list[str]


@dataclass(frozen=True)
class VersionStatus:
    """What has become of a version: a state as "AVAILABLE", and why it failed if it did."""

    version: int
    state: str
    error: str


class ServingError(Exception):
    """A request failed.

    Args:
        code: gRPC's name of the reason, as "NOT_FOUND".
        message: What the server said, or what kept it from answering.
    """

    def __init__(self, code: str, message: str):
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


class ServedModel(ABC):
    """A model on a server; threads may share it.

    Args:
        connection: How to reach the server.
        spec: Which model.
    """

    forms: tuple[str, ...]
    """The forms of golden requests in which the model can be asked: "row", "column"."""

    def __init__(self, connection: Connection, spec: ModelSpec):
        self.connection = connection
        self.spec = spec

    @abstractmethod
    def close(self) -> None:
        """End the connections."""

    @abstractmethod
    def predict(self, signature: str, inputs: dict[str, list]) -> dict[str, list]:
        """Ask a signature.

        Args:
            signature: Its name.
            inputs: For each input a list with one value for each row.

        Returns:
            For each output a list with one value for each row.

        Raises:
            ServingError: There is no answer.
        """

    @abstractmethod
    def ask(self, request: dict) -> dict:
        """Return the answer to a request in REST's JSON, in one of `forms`.

        Raises:
            ServingError: There is no answer.
        """

    @cached_property
    def signatures(self) -> dict[str, Signature]:
        """The signatures by name.

        Raises:
            ServingError: There is no answer.
        """
        signatures = self._get_signatures()
        signatures.pop(INIT_SIGNATURE, None)
        return signatures

    @abstractmethod
    def _get_signatures(self) -> dict[str, Signature]: ...

    @abstractmethod
    def _get_status(self) -> list[VersionStatus]:
        """Return the status of all versions of the model; raise ServingError if there is none."""

    def explain(self, error: ServingError) -> str:
        """Say in a line what is wrong, and what a user can do about it."""
        return " ".join(f"{self.connection.address}: {self._explain(error)}".split())

    def _explain(self, error: ServingError) -> str:
        if MISSING_OP in error.message:  # first, since its code is NOT_FOUND too
            return f"{self.spec} does not run there: {error.message}. {_WHICH_SERVER}"
        if error.code == "NOT_FOUND":
            return self._explain_not_found(error)
        if error.code == "DEADLINE_EXCEEDED":
            seconds = self.connection.deadline_seconds
            return f"no answer within {seconds:g} seconds (--deadline): {error.message}"
        return f"{error.message} ({error.code})"

    def _explain_not_found(self, error: ServingError) -> str:
        try:
            versions = self._get_status()
        except ServingError as why:
            if why.code != "NOT_FOUND":
                return f"{error.message} ({error.code})"
            return f"there is no model named {self.spec.name!r}: {error.message}"
        for status in versions:
            if status.error and self.spec.version in (None, status.version):
                hint = f" {_WHICH_SERVER}" if MISSING_OP in status.error else ""
                return (
                    f"version {status.version} of {self.spec.name} did not load: {status.error}."
                    f"{hint}"
                )
        states = ", ".join(f"{status.version} ({status.state})" for status in versions)
        return f"{self.spec} is not served: {error.message}; its versions are {states}"

    def _with_retries(self, call: Callable[[float], T]) -> T:
        """Return `call(seconds left)`, called again while the server is unavailable."""
        end = time.monotonic() + self.connection.deadline_seconds
        for attempt in itertools.count():
            try:
                return call(max(end - time.monotonic(), 0.001))
            except ServingError as error:
                # Drawn, so that the clients of a server that comes back do not all ask at once.
                wait = min(0.1 * 2**attempt, 5.0) * random.uniform(0.5, 1.0)
                is_last = attempt >= self.connection.retries or time.monotonic() + wait >= end
                if error.code != "UNAVAILABLE" or is_last:
                    raise
                time.sleep(wait)
        raise AssertionError  # the loop has no end


_WHICH_SERVER = (
    "A server needs TensorFlow's ops and TensorFlow Text's of SentencePiece: the image "
    "tensorflow/serving:2.20.0 has all that an export uses"
)


def unreachable(reason: object) -> ServingError:
    """Return the error of a server that can't be reached, the same for REST and gRPC."""
    return ServingError(
        "UNAVAILABLE",
        f"nothing answers ({reason}). Is TensorFlow Serving running, and is this the right one of "
        "its ports? As a rule 8500 is gRPC's and 8501 is REST's",
    )

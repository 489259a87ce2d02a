"""A model asked by REST, with Python's own HTTP client."""

import http.client
import json
import ssl
import threading
from urllib.parse import quote

from export.client.model import (
    Connection,
    ModelSpec,
    ServedModel,
    ServingError,
    Signature,
    Tls,
    VersionStatus,
    unreachable,
)

# The reasons that TensorFlow Serving gives with a status; 400 has others, which read alike.
CODES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


class RestModel(ServedModel):
    """A model asked by REST; see `ServedModel`."""

    forms = ("row", "column")

    def __init__(self, connection: Connection, spec: ModelSpec):
        super().__init__(connection, spec)
        self._tls = None if connection.tls is None else _tls_context(connection.tls)
        self._local = threading.local()  # holds a connection for each thread
        self._connections: list[http.client.HTTPConnection] = []
        self._path = f"/v1/models/{quote(spec.name, safe='')}"
        self._version_path = self._path
        if spec.version is not None:
            self._version_path += f"/versions/{spec.version}"
        elif spec.label is not None:
            self._version_path += f"/labels/{quote(spec.label, safe='')}"

    def close(self) -> None:
        """End the connections."""
        for connection in self._connections:
            connection.close()

    def predict(self, signature: str, inputs: dict[str, list]) -> dict[str, list]:
        """Ask a signature; see `ServedModel.predict`."""
        outputs = self.ask({"signature_name": signature, "inputs": inputs})["outputs"]
        names = self.signatures[signature].outputs
        return {names[0]: outputs} if len(names) == 1 else outputs

    def ask(self, request: dict) -> dict:
        """Return the answer to a request, rows or columns; see `ServedModel.ask`."""
        body = json.dumps(request).encode()
        return self._request("POST", f"{self._version_path}:predict", body)

    def _get_signatures(self) -> dict[str, Signature]:
        answer = self._request("GET", f"{self._version_path}/metadata")
        signatures = answer["metadata"]["signature_def"]["signature_def"]
        return {
            name: Signature(
                {key: info["dtype"] for key, info in sorted(signature["inputs"].items())},
                sorted(signature["outputs"]),
            )
            for name, signature in signatures.items()
        }

    def _get_status(self) -> list[VersionStatus]:
        versions = self._request("GET", self._path)["model_version_status"]
        return [
            VersionStatus(int(v["version"]), v["state"], v["status"].get("error_message", ""))
            for v in versions
        ]

    def _request(self, method: str, path: str, body: bytes | None = None) -> dict:
        return self._with_retries(lambda seconds: self._exchange(method, path, body, seconds))

    def _exchange(self, method: str, path: str, body: bytes | None, seconds: float) -> dict:
        connection = self._thread_connection()
        connection.timeout = seconds
        if connection.sock is not None:
            connection.sock.settimeout(seconds)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise self._error_of(error) from None
        try:
            answer = json.loads(content)
        except ValueError:  # a proxy's page
            answer = {"error": content.decode(errors="replace").strip()[:200]}
        if response.status != 200:
            code = CODES.get(response.status, "INTERNAL")
            raise ServingError(code, answer.get("error", f"HTTP status {response.status}"))
        return answer

    def _thread_connection(self) -> http.client.HTTPConnection:
        if not hasattr(self._local, "connection"):
            address = self.connection.address
            self._local.connection = (
                http.client.HTTPConnection(address)
                if self._tls is None
                else http.client.HTTPSConnection(address, context=self._tls)
            )
            self._connections.append(self._local.connection)
        return self._local.connection

    def _error_of(self, error: Exception) -> ServingError:
        if isinstance(error, TimeoutError):
            return ServingError("DEADLINE_EXCEEDED", "no answer came")
        if isinstance(error, ssl.SSLError):
            return ServingError("UNAUTHENTICATED", f"no TLS connection: {error}")
        return unreachable(error or type(error).__name__)


def _tls_context(tls: Tls) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=tls.ca)
        if tls.certificate is not None:
            context.load_cert_chain(tls.certificate, tls.key)
    except OSError as error:
        files = ", ".join(str(path) for path in (tls.ca, tls.certificate, tls.key) if path)
        raise ValueError(f"{files}: {error}") from None
    return context

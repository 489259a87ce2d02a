"""A real `tensorboard` on loopback, for tests."""

import contextlib
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

PROJECT = Path(__file__).parents[1]


@contextlib.contextmanager
def tensorboard(logdir, *options, python_path=()):
    """Run TensorBoard until the block ends; give its address, such as http://127.0.0.1:6006/.

    Args:
        logdir: What it shows.
        *options: More of its options.
        python_path: Folders to import from before all others.
    """
    if not importlib.metadata.entry_points(group="tensorboard_plugins", name="attention"):
        raise RuntimeError("the plugin is not installed, so TensorBoard can't find it: make setup")
    path = os.pathsep.join([*map(str, python_path), str(PROJECT)])
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(logdir)]
    process = subprocess.Popen(
        [*command, "--host", "127.0.0.1", "--port", "0", "--reload_interval", "1", *options],
        cwd=logdir,
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        lines = []
        for line in process.stderr:
            lines.append(line)
            if match := re.search(r"(http://127\.0\.0\.1:\d+/)", line):
                yield match[1]
                return
        raise RuntimeError("TensorBoard did not start:\n" + "".join(lines))
    finally:
        process.terminate()
        process.stderr.close()
        process.wait()


def get(address, route, **arguments):
    """Return status and body (JSON as an object) of a GET request to the plugin's route."""
    url = f"{address}data/plugin/attention/{route}?{urllib.parse.urlencode(arguments)}"
    try:
        with urllib.request.urlopen(url) as response:
            status, headers, body = response.status, response.headers, response.read()
    except urllib.error.HTTPError as error:
        with error:
            status, headers, body = error.code, error.headers, error.read()
    kind = headers.get_content_type()
    if kind == "application/json":
        return status, json.loads(body)
    return status, body.decode() if kind.startswith("text/") else body

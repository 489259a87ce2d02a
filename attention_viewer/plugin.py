"""The TensorBoard plugin: finds snapshots in event files and serves them with the page's files.

TensorBoard imports this module at its start and stops if that fails, so it stands on TensorBoard
and NumPy alone.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tensorboard import errors, plugin_util
from tensorboard.backend import http_util
from tensorboard.data import provider
from tensorboard.plugins import base_plugin
from werkzeug import Request, Response, wrappers

from attention_viewer.metadata import MEASURES_SUFFIX, PLUGIN_NAME, finite, from_content

STATIC_FOLDER = Path(__file__).parent / "static"
MIME_TYPES = {".js": "text/javascript", ".css": "text/css"}
ALL_STEPS = 1_000_000  # data providers must be given a limit


class AttentionLoader(base_plugin.TBLoader):
    """The entry point: loads the plugin, and asks TensorBoard to keep all of its steps."""

    def fix_flags(self, flags):
        """Keep every step, unless --samples_per_plugin says otherwise: the default keeps 10."""
        flags.samples_per_plugin = {PLUGIN_NAME: 0, **(flags.samples_per_plugin or {})}

    def load(self, context):
        """Return the plugin."""
        return AttentionPlugin(context)


class AttentionPlugin(base_plugin.TBPlugin):
    """Serves the page's files, what there is to see, the measures of a probe, and snapshots."""

    plugin_name = PLUGIN_NAME

    def __init__(self, context):
        self._data = context.data_provider

    def is_active(self):
        """Return False: TensorBoard activates the tab when it finds the plugin's data."""
        return False

    def frontend_metadata(self):
        """Return the tab's name and its first module."""
        return base_plugin.FrontendMetadata(es_module_path="/index.js", tab_name="ATTENTION")

    def get_plugin_apps(self):
        """Return the routes; each static file has its own, so no path is ever opened by name."""
        routes: dict[str, Any] = {
            "/probes": _application(self._serve_probes),
            "/series": _application(self._serve_series),
            "/snapshot": _application(self._serve_snapshot),
        }
        for file in sorted(STATIC_FOLDER.iterdir()):
            if file.suffix in MIME_TYPES:
                routes[f"/{file.name}"] = _application(_file_server(file))
        return routes

    def _serve_probes(self, request: Request) -> Response:
        """Answer {"runs": {run: {tag: probe}}, "notes": [...]}.

        A probe has "source", "maps", "measures", "last_step" and "last_time", by which a page sees
        that there is something new. Notes tell which series can't be shown, and why.
        """
        found = self._data.list_blob_sequences(
            _context(request), experiment_id=_experiment(request), plugin_name=PLUGIN_NAME
        )
        runs: dict[str, dict[str, Any]] = {}
        notes = []
        for run, series_by_tag in found.items():
            for tag, series in series_by_tag.items():
                try:
                    probe = from_content(series.plugin_content)
                except ValueError as error:
                    notes.append(f"{run}, {tag} is not shown: {error}")
                    continue
                probe |= {"last_step": series.max_step, "last_time": series.max_wall_time}
                runs.setdefault(run, {})[tag] = probe
        return _json(request, {"runs": runs, "notes": notes})

    def _serve_series(self, request: Request) -> Response:
        """Answer what a probe has: ?run=R&tag=T.

        {"steps": [{"step", "time"}], "measures": {"steps": [...], "values": [[...], ...]},
        "notes": [...]}; a row of values holds the measures of all heads, head by head, null where
        a measure has no meaning.
        """
        run, tag = _argument(request, "run"), _argument(request, "tag")
        steps = [{"step": d.step, "time": d.wall_time} for d in self._blobs(request, run, tag)]
        content = from_content(
            self._data.list_blob_sequences(
                _context(request),
                experiment_id=_experiment(request),
                plugin_name=PLUGIN_NAME,
                run_tag_filter=provider.RunTagFilter([run], [tag]),
            )[run][tag].plugin_content
        )
        num_heads = sum(m["layers"] * m["heads"] for m in content["maps"])
        shape = (num_heads, len(content["measures"]))
        measures_tag = tag + MEASURES_SUFFIX
        tensors = self._data.read_tensors(
            _context(request),
            experiment_id=_experiment(request),
            plugin_name=PLUGIN_NAME,
            downsample=ALL_STEPS,
            run_tag_filter=provider.RunTagFilter([run], [measures_tag]),
        )
        measured, values, notes = [], [], []
        for datum in tensors.get(run, {}).get(measures_tag, []):
            if datum.numpy.shape != shape or datum.numpy.dtype.kind != "f":
                notes.append(f"step {datum.step}: its measures are damaged")
                continue
            measured.append(datum.step)
            values.append(finite(datum.numpy))
        measures = {"steps": measured, "values": values}
        return _json(request, {"steps": steps, "measures": measures, "notes": notes})

    def _serve_snapshot(self, request: Request) -> Response:
        """Answer the payload that `summary.encode` made: ?run=R&tag=T&step=S."""
        run, tag = _argument(request, "run"), _argument(request, "tag")
        try:
            step = int(_argument(request, "step"))
        except ValueError:
            raise errors.InvalidArgumentError(
                f"step must be an integer, received {_argument(request, 'step')!r}"
            ) from None
        for datum in self._blobs(request, run, tag):
            if datum.step == step and len(datum.values) == 1:
                payload = self._data.read_blob(_context(request), blob_key=datum.values[0].blob_key)
                return http_util.Respond(request, payload, "application/octet-stream")
        raise errors.NotFoundError(f"run {run!r}, tag {tag!r} has no snapshot of step {step}")

    def _blobs(self, request: Request, run: str, tag: str) -> list[provider.BlobSequenceDatum]:
        """Return references to all snapshots of a probe."""
        found = self._data.read_blob_sequences(
            _context(request),
            experiment_id=_experiment(request),
            plugin_name=PLUGIN_NAME,
            downsample=ALL_STEPS,
            run_tag_filter=provider.RunTagFilter([run], [tag]),
        )
        if tag not in found.get(run, {}):
            raise errors.NotFoundError(f"run {run!r} has no attention under tag {tag!r}")
        return found[run][tag]


def _application(serve: Callable[[Request], Response]) -> Any:
    """Return the WSGI application of a route; a client's mistake is a message, not a 500."""

    @wrappers.Request.application
    def application(request):
        try:
            return serve(request)
        except errors.NotFoundError as error:
            return http_util.Respond(request, str(error), "text/plain", 404)
        except (errors.PublicError, ValueError) as error:
            return http_util.Respond(request, str(error), "text/plain", 400)

    return application


def _file_server(file: Path) -> Callable[[Request], Response]:
    def serve(request):
        return http_util.Respond(request, file.read_bytes(), MIME_TYPES[file.suffix])

    return serve


def _context(request: Request) -> Any:
    return plugin_util.context(request.environ)


def _experiment(request: Request) -> str:
    return plugin_util.experiment_id(request.environ)


def _argument(request: Request, name: str) -> str:
    value = request.args.get(name)
    if value is None:
        raise errors.InvalidArgumentError(f"argument {name} is missing")
    return value


def _json(request: Request, value: dict[str, Any]) -> Response:
    # Already text, since http_util would walk through all numbers once more.
    return http_util.Respond(request, json.dumps(value), "application/json")

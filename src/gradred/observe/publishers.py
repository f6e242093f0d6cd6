"""Where the figures of a running rank go: a file, one port of each host, or OpenTelemetry."""

from __future__ import annotations

import contextlib
import errno
import functools
import http.server
import json
import os
import socketserver
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from gradred import _core
from gradred._util import clock
from gradred.errors import UsageError
from gradred.observe import status
from gradred.observe.samples import FAMILIES, OPEN, PLAIN, Sample, text_of

Publisher = Callable[[Sequence[Sample]], None]
_PATIENCE = 30.0  # seconds for which another rank may be about to serve


def publisher(wanted: str) -> Publisher:
    """Return what publishes the figures of this rank.

    Args:
        wanted: `GRADRED_METRICS`: a file, `:PORT`, or `otel`.

    Raises:
        UsageError: OpenTelemetry is not installed, or the port is no number.
    """
    if wanted == "otel":
        return _OfOpenTelemetry()
    if wanted.startswith(":"):
        return _OnPort(_port(wanted))
    return _InFile(wanted)


def _port(wanted: str) -> int:
    if wanted[1:].isascii() and wanted[1:].isdigit() and 0 < int(wanted[1:]) < 65536:
        return int(wanted[1:])
    raise UsageError(
        "GRADRED_METRICS", f"{wanted!r} is no port", "Write a number after the colon, as in :9400"
    )


class _InFile:
    """A file of this rank, for the textfile collector of Prometheus's node_exporter."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._tells = True

    def __call__(self, samples: Sequence[Sample]) -> None:
        path = _core.path_of_rank(self._path, int(samples[0].labels[0][1]))
        part = f"{path}.{os.getpid()}.part"
        try:
            with open(part, "w") as file:
                file.write(text_of(samples))
            os.replace(part, path)
            self._tells = True
        except OSError as error:  # a full disk must not end the training
            if self._tells:
                print(f"gradred: the metrics {path}: {error.strerror}", file=sys.stderr)
            self._tells = False
            with contextlib.suppress(OSError):
                os.unlink(part)


class _OnPort:
    """A memory file of each rank; the first rank of the job that gets the port serves all of them.

    If that rank ends, another one of the host takes over.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._file = os.memfd_create(status.METRICS)
        self._server: http.server.ThreadingHTTPServer | None = None
        self._waits_since = clock.now()
        self._serve()

    def __call__(self, samples: Sequence[Sample]) -> None:
        content = json.dumps(samples) + "\n"  # the mark of a file that is complete
        with open(os.memfd_create(status.METRICS), "w") as file:
            file.write(content)
            file.flush()
            os.dup2(file.fileno(), self._file, inheritable=False)
        if self._server is None:
            self._serve()

    def _serve(self) -> None:
        try:
            server = _Server(("", self._port), _Handler)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                self._tell(str(error.strerror))
            elif status.published(status.SERVES):
                self._waits_since = clock.now()
            elif clock.now() - self._waits_since > _PATIENCE:
                self._tell("another program uses it")
            return
        os.memfd_create(status.SERVES)  # open as long as the process runs
        threading.Thread(target=server.serve_forever, name="gradred-metrics", daemon=True).start()
        self._server = server

    def _tell(self, why: str) -> None:
        print(f"gradred: no metrics on port {self._port}: {why}", file=sys.stderr)
        self._waits_since = float("inf")  # once


class _OfOpenTelemetry:
    """Instruments of the program's meter provider, which asks for their values."""

    def __init__(self) -> None:
        try:
            from opentelemetry import metrics
        except ImportError:
            found = "OpenTelemetry is not installed"
            raise UsageError("GRADRED_METRICS=otel", found, 'pip install "gradred[otel]"') from None
        self._samples: Sequence[Sample] = ()
        self._observation = metrics.Observation
        meter = metrics.get_meter("gradred")
        for family, (kind, about) in FAMILIES.items():
            counts = kind == "counter"
            make = meter.create_observable_counter if counts else meter.create_observable_gauge
            name = f"{family}_info" if kind == "info" else family
            make(name, [functools.partial(self._observe, family)], description=about)

    def __call__(self, samples: Sequence[Sample]) -> None:
        self._samples = samples

    def _observe(self, family: str, options: object) -> Iterator[Any]:
        for one in self._samples:
            if one.family == family:
                yield self._observation(one.value, dict(one.labels))


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def server_bind(self) -> None:
        """Bind without a look at names, which may take seconds."""
        socketserver.TCPServer.server_bind(self)


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:  # the name that http.server wants
        if self.path.split("?")[0] not in ("/", "/metrics"):
            self.send_error(404)
            return
        is_open = "application/openmetrics-text" in self.headers.get("Accept", "")
        samples = [
            Sample(family, tuple((name, text) for name, text in labels), value)
            for part in status.published(status.METRICS)
            if part.strip()
            for family, labels, value in json.loads(part)
        ]
        body = text_of(samples, is_open=is_open).encode()
        self.send_response(200)
        self.send_header("Content-Type", f"{OPEN if is_open else PLAIN}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, *_: Any) -> None:
        """Log nothing: the terminal is the program's."""

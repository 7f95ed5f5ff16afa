"""Collector: an OpenTelemetry collector in this process, for tests: keeps the spans it is sent.

Speaks OTLP over HTTP with protobuf bodies, decoded by OpenTelemetry's own classes. Needs
opentelemetry-proto.
"""

from __future__ import annotations

import gzip
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collector:
    """Listens on a free port while used as a context manager."""

    def __init__(self) -> None:
        self._bodies: list[tuple[str, bytes]] = []
        bodies = self._bodies

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                is_packed = self.headers.get("content-encoding") == "gzip"
                bodies.append((self.path, gzip.decompress(body) if is_packed else body))
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), daemon=True
        )

    @property
    def address(self) -> str:
        """Return host:port."""
        return f"127.0.0.1:{self._server.server_port}"

    @property
    def paths(self) -> set[str]:
        """Return the paths that were asked for."""
        return {path for path, _ in self._bodies}

    def spans(self) -> list[Any]:
        """Return every span received, in the order they came."""
        return [
            span
            for _, body in list(self._bodies)
            for part in ExportTraceServiceRequest.FromString(body).resource_spans
            for scope in part.scope_spans
            for span in scope.spans
        ]

    def resources(self) -> list[dict[str, Any]]:
        """Return the attributes of every batch's sender."""
        return [
            attributes_of(part.resource)
            for _, body in list(self._bodies)
            for part in ExportTraceServiceRequest.FromString(body).resource_spans
        ]

    def wait_for(self, count: int, seconds: float) -> list[Any]:
        """Return the spans once there are `count`, or what came within `seconds`."""
        deadline_s = time.monotonic() + seconds
        while len(self.spans()) < count and time.monotonic() < deadline_s:
            time.sleep(0.05)
        return self.spans()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *reason: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def attributes_of(holder: Any) -> dict[str, Any]:
    """Return a span's or a resource's attributes as plain values."""
    return {pair.key: _plain(pair.value) for pair in holder.attributes}


def _plain(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_plain(item) for item in value.array_value.values]
    return getattr(value, kind)

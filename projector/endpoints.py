"""``/healthz`` and ``/metrics`` over HTTP, for whoever watches a projector."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from eventstore.errors import InvalidConfig

Health = Callable[[], tuple[bool, Mapping[str, Any]]]
"""Whether all is well, and the document that says so or why not."""
METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
REQUEST_SECONDS: Final = 10.0


class Endpoints:
    """A server in a thread of its own."""

    def __init__(self, host: str, port: int, health: Health, metrics: Callable[[], bytes]) -> None:
        """Listen at once; port 0 is any free one. Raises ``InvalidConfig`` for one that cannot be had."""

        class Handler(BaseHTTPRequestHandler):
            timeout = REQUEST_SECONDS
            server_version, sys_version = "projector", ""

            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                if path == "/healthz":
                    healthy, document = health()
                    self._answer(200 if healthy else 503, "application/json", json.dumps(document).encode())
                elif path == "/metrics":
                    self._answer(200, METRICS_TYPE, metrics())
                else:
                    body = json.dumps({"reason": "there are /healthz and /metrics"}).encode()
                    self._answer(404, "application/json", body)

            def _answer(self, status: int, kind: str, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Nothing: a probe every few seconds is not news."""

        try:
            self._server = ThreadingHTTPServer((host, port), Handler)
        except (OSError, OverflowError) as error:
            raise InvalidConfig(f"cannot listen on {host}:{port}: {error}; give another port") from error
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="projector-http", daemon=True
        )
        self._thread.start()

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

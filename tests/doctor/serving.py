"""A small HTTP server that answers from a table of paths, for tests of what a server may do to who asks it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# Status, content type, body.
Reply = tuple[int, str, str]
Table = Mapping[str, Reply | Callable[[str], Reply]]


def text(body: str) -> Reply:
    return 200, "text/plain", body


def json_of(body: str) -> Reply:
    return 200, "application/json", body


@contextmanager
def serving(table: Table, *, wants: str = "") -> Iterator[str]:
    """Its URL. What is callable is asked with the path, or with what was posted.

    `wants`: an Authorization header without which everything is 401.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer(self.path)

        def do_POST(self) -> None:
            self._answer(self.rfile.read(int(self.headers["content-length"])).decode())

        def _answer(self, asked: str) -> None:
            reply = table.get(self.path.partition("?")[0], (404, "text/plain", "not found"))
            if callable(reply):
                reply = reply(asked)
            if wants and self.headers.get("authorization") != wants:
                reply = (401, "text/plain", "who are you?")
            status, kind, body = reply
            data = body.encode()
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

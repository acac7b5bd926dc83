"""A real HTTP server that takes webhooks, and answers as it is told."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Message:
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def content(self) -> Any:
        return json.loads(self.body)


@dataclass
class Receiver:
    """``statuses``: of the next answers; then 204. ``received``: whatever came."""

    url: str = ""
    statuses: list[int] = field(default_factory=list)
    received: list[Message] = field(default_factory=list)
    hold: threading.Event = field(default_factory=threading.Event)
    """Answers wait until it is set."""

    def states(self) -> list[str]:
        return [m.content["state"] for m in self.received if m.content["type"] == "job.state"]


@contextmanager
def receiving(*statuses: int, held: bool = False) -> Iterator[Receiver]:
    receiver = Receiver(statuses=list(statuses))
    if not held:
        receiver.hold.set()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            receiver.received.append(Message(self.path, headers, body))
            receiver.hold.wait(10)
            status = receiver.statuses.pop(0) if receiver.statuses else 204
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("Location", "/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    receiver.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        receiver.hold.set()
        server.shutdown()
        server.server_close()
        thread.join()

"""A local HTTP server that speaks the Messages protocol and fails where a test says so."""

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from excise.data.translate import PROMPT

KEY = "a key for tests"
BEFORE, AFTER = PROMPT.split("{story}")

Behaviour = Callable[["Handler", str], None]


def spanish(story: str) -> str:
    """What the server says the translation is."""
    return f"¡{story[::-1]}!"


class MessagesServer(ThreadingHTTPServer):
    """Does with the n-th request for a story what `behave(story, n)` says, and remembers what it was asked."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, behave: Callable[[str, int], Behaviour]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.behave = behave
        self.changed = threading.Condition()
        self.asked: Counter[str] = Counter()
        self.times: dict[str, list[float]] = {}
        self.requests: list[dict[str, object]] = []
        self.n_under_way = self.most_under_way = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def wait_for(self, n_requests: int) -> bool:
        """Whether so many requests have come, within a minute."""
        with self.changed:
            return self.changed.wait_for(lambda: self.asked.total() >= n_requests, timeout=60)

    @contextmanager
    def received(self, request: dict[str, object], story: str) -> Iterator[int]:
        with self.changed:
            self.requests.append(request)
            self.asked[story] += 1
            self.times.setdefault(story, []).append(time.monotonic())
            self.n_under_way += 1
            self.most_under_way = max(self.most_under_way, self.n_under_way)
            self.changed.notify_all()
            n = self.asked[story]
        try:
            yield n
        finally:
            with self.changed:
                self.n_under_way -= 1

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that was killed is no error of the server."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: MessagesServer

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        prompt = request["messages"][0]["content"]
        if self.path != "/v1/messages" or "anthropic-version" not in self.headers:
            error(404)(self, "")
        elif KEY not in (self.headers.get("x-api-key"), self.headers.get("authorization", "").removeprefix("Bearer ")):
            error(401, "invalid x-api-key")(self, "")
        elif not (prompt.startswith(BEFORE) and prompt.endswith(AFTER)):
            error(400, "not the prompt of appendix I")(self, "")
        else:
            story = prompt.removeprefix(BEFORE).removesuffix(AFTER)
            with self.server.received(request, story) as n:
                self.server.behave(story, n)(self, story)

    def send(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"content-type": "application/json", "content-length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: a test's output is the client's."""


def message(text: str, stop_reason: str = "end_turn") -> bytes:
    content = [{"type": "thinking", "thinking": "…", "signature": "…"}, {"type": "text", "text": text}]
    usage = {"input_tokens": 100, "output_tokens": len(text)}
    body = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude", "content": content}
    return json.dumps(body | {"stop_reason": stop_reason, "stop_sequence": None, "usage": usage}).encode()


def answer(handler: Handler, story: str) -> None:
    handler.send(200, message(spanish(story)))


def slowly(seconds: float) -> Behaviour:
    def behave(handler: Handler, story: str) -> None:
        time.sleep(seconds)
        answer(handler, story)

    return behave


def error(status: int, reason: str = "on purpose", **headers: str) -> Behaviour:
    body = {"type": "error", "error": {"type": "some_error", "message": reason}}
    return lambda handler, story: handler.send(status, json.dumps(body).encode(), **headers)


def cut(handler: Handler, story: str) -> None:
    """The connection ends in the middle of the body."""
    body = message(spanish(story))
    handler.send_response(200)
    handler.send_header("content-type", "application/json")
    handler.send_header("content-length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body[: len(body) // 2])
    handler.close_connection = True


def hang_up(handler: Handler, story: str) -> None:
    """The connection ends without an answer."""
    handler.close_connection = True


def truncated(handler: Handler, story: str) -> None:
    handler.send(200, message(spanish(story)[:5], "max_tokens"))


def empty(handler: Handler, story: str) -> None:
    handler.send(200, message(" \n"))


def refused(handler: Handler, story: str) -> None:
    handler.send(200, message("No.", "refusal"))

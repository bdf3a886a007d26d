"""A server of our own, with troubles to order."""

import contextlib
import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

#: Bytes after which a connection is cut.
CUT = 4 << 16
#: Bytes that a server without measure sends.
ENDLESS = 600 << 20


class Server:
    """Files by path; ``trouble`` is a list of what goes wrong with the next answers for a path."""

    def __init__(self):
        self.files: dict[str, bytes] = {}
        self.trouble: dict[str, list[str]] = {}
        self.asked: list[tuple[str, str, str]] = []
        self.busy = self.most_busy = 0
        self.release = threading.Event()
        self.lock = threading.Lock()
        self.tags = True
        self.sent = 0
        server = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *args):
                pass

            def do_HEAD(self):
                server.answer(self, body=False)

            def do_GET(self):
                with server.lock:
                    server.busy += 1
                    server.most_busy = max(server.most_busy, server.busy)
                last = b""
                with contextlib.suppress(OSError):  # the client has gone
                    last = server.answer(self, body=True)
                with server.lock:
                    server.busy -= 1
                with contextlib.suppress(OSError):
                    self.wfile.write(last)  # with it the client may ask for the next file

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.http.server_port}"

    def answer(self, request, *, body):
        """Answer but for the last byte, which is returned."""
        path = request.path.lstrip("/")
        asked = request.headers.get("Range", "")
        with self.lock:
            self.asked.append((request.command, path, asked))
            troubles = self.trouble.get(path, [])
            trouble = troubles.pop(0) if troubles and body else ""
        if trouble == "busy":
            return request.send_error(503) or b""
        if trouble == "limited":
            request.send_response(429, "Too Many Requests")
            request.send_header("Retry-After", "0")
            request.send_header("Content-Length", "0")
            request.end_headers()
            return b""
        if path not in self.files or trouble == "gone":
            return request.send_error(404) or b""
        content = self.files[path]
        if trouble == "endless":  # says no length, and goes on
            request.send_response(200)
            request.end_headers()
            while self.sent < ENDLESS:
                request.wfile.write(bytes(1 << 20))
                self.sent += 1 << 20
            return None
        tag = '"' + hashlib.md5(content).hexdigest() + '"'
        start = 0
        if asked and request.headers.get("If-Range") == tag:
            start = int(asked.removeprefix("bytes=").rstrip("-"))
        request.send_response(206 if start else 200)
        if start:
            request.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        if self.tags:
            request.send_header("ETag", tag)
        request.send_header("Content-Length", str(len(content) - start))
        request.end_headers()
        if not body:
            return b""
        if trouble in ("cut", "slow"):
            request.wfile.write(content[start : start + CUT])
            request.wfile.flush()
            if trouble == "slow":
                self.release.wait()
            request.connection.close()
            return b""
        request.wfile.write(content[start:-1])
        return content[start:][-1:]


@contextmanager
def serving() -> Iterator[Server]:
    found = Server()
    try:
        yield found
    finally:
        found.release.set()
        found.http.shutdown()
        found.http.server_close()

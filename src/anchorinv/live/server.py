"""The local server of a live session: one page and a WebSocket for it.

Whoever can open the page can teach the model and see the signal, so the link has a token, the address is this
machine's alone, and requests of other web pages are refused by their ``Host`` (DNS rebinding) and ``Origin``.
No text from a page is ever used as a path.
"""

import asyncio
import contextlib
import json
import logging
import secrets
import struct
import time
from collections.abc import Callable
from dataclasses import asdict
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np
from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from anchorinv.errors import shown
from anchorinv.live.lessons import Lesson, Practice, Shot, export
from anchorinv.live.session import LiveSession

if TYPE_CHECKING:
    import uvicorn

#: Maximum number of frames per second that a page is sent.
FRAMES = 60
#: Maximum number of frames that a page has not confirmed.
AHEAD = 3
#: How a page confirms a frame: after the signal, which is its last part, or after a message without one.
SEEN = "seen"
#: Maximum number of characters of a message from a page, and of a name in it.
MOST_TEXT, MOST_NAME = 2000, 100
#: Maximum number of bytes of a message from a page; a longer one ends the connection.
MOST_BYTES = 1 << 16
#: Points and channels of a thumbnail.
_THUMB = (40, 8)
_log = logging.getLogger(__name__)
_FORBIDDEN = PlainTextResponse("This link is not valid: open the one that anchorinv printed.", 403)


class LiveServer:
    """Serve the page of a session to requests with the token and one of the hosts (``127.0.0.1:8765``)."""

    def __init__(self, session: LiveSession, hosts: list[str], token: str | None = None) -> None:
        self.session, self.token = session, token or secrets.token_urlsafe(24)
        self._hosts = frozenset(hosts)
        routes = [
            Route("/", self._page),
            Route("/export", self._export),
            WebSocketRoute("/socket", self._socket),
        ]
        self.app = Starlette(routes=routes)

    def serving(self) -> "uvicorn.Server":
        """Return the server, to be run with its sockets."""
        import uvicorn

        config = uvicorn.Config(
            self.app,
            log_level="warning",
            access_log=False,
            ws_max_size=MOST_BYTES,
            ws_per_message_deflate=False,  # takes time from decisions, and makes a signal hardly smaller
        )
        return uvicorn.Server(config)

    def _allowed(self, connection: HTTPConnection) -> bool:
        """Return whether a request has the token, an allowed host and, if it is from a page, its origin."""
        token = connection.query_params.get("token", "")
        origin = connection.headers.get("origin")
        return (
            secrets.compare_digest(token.encode(), self.token.encode())
            and connection.headers.get("host") in self._hosts
            and (origin is None or origin.removeprefix("http://") in self._hosts)
        )

    async def _page(self, request: Request) -> Response:
        if not self._allowed(request):
            return _FORBIDDEN
        nonce = secrets.token_urlsafe(16)
        page = (files("anchorinv.live") / "page.html").read_text(encoding="utf-8")
        policy = (
            f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; "
            "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        headers = {
            "Content-Security-Policy": policy,
            "Cache-Control": "no-store",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
        }
        return Response(page.replace("{{nonce}}", nonce), media_type="text/html", headers=headers)

    async def _export(self, request: Request) -> Response:
        if not self._allowed(request):
            return _FORBIDDEN
        session = self.session
        with session.lock:
            model, taught = session.model, session.taught
        log = session.log.path if session.log is not None else None
        recordings = request.query_params.get("recordings") == "yes"
        payload = await asyncio.to_thread(export, model, taught, log, recordings=recordings)
        headers = {"Content-Disposition": 'attachment; filename="session.zip"', "Cache-Control": "no-store"}
        return Response(payload, media_type="application/zip", headers=headers)

    async def _socket(self, socket: WebSocket) -> None:
        # A browser always sends the origin of a WebSocket; other programs need the token only.
        if not self._allowed(socket):
            await socket.close(1008)
            return
        await socket.accept()
        loop, news = asyncio.get_running_loop(), asyncio.Event()
        unlisten = self.session.listen(lambda: loop.call_soon_threadsafe(news.set))
        news.set()  # send the present state
        ahead = asyncio.Semaphore(AHEAD)
        sending = asyncio.create_task(self._send(socket, news, ahead))
        try:
            while True:
                if (text := await socket.receive_text()) == SEEN:
                    ahead.release()
                else:
                    await self._execute(socket, text)
        except (WebSocketDisconnect, RuntimeError):
            pass
        finally:
            unlisten()
            sending.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await sending

    async def _send(self, socket: WebSocket, news: asyncio.Event, ahead: asyncio.Semaphore) -> None:
        try:
            await _send_news(socket, self.session, news, ahead)
        except (WebSocketDisconnect, RuntimeError):
            pass  # a page may be closed while it is sent to
        except Exception:
            _log.exception("live page")
            await socket.close(1011)  # the page connects again, instead of showing an old class for ever

    async def _execute(self, socket: WebSocket, text: str) -> None:
        """Execute an order of a page, or answer with the problem."""
        try:
            order, arguments = _parse(text)
            answer = await asyncio.to_thread(_ORDERS[order], self.session, arguments)
            if isinstance(answer, str):
                await socket.send_json({"kind": "answer", "order": order, "text": answer})
        except (ValueError, OSError) as error:
            await socket.send_json({"kind": "problem", "text": shown(str(error))})


async def _send_news(
    socket: WebSocket, session: LiveSession, news: asyncio.Event, ahead: asyncio.Semaphore
) -> None:
    """Send what is new, at most :data:`AHEAD` frames before the page confirms them: a slow page gets fewer.

    Otherwise the buffers of system and browser would hold minutes of a small stream, and a slow page would
    show old classes.
    """
    scope = session.stream.scope
    seen: tuple[int, str] | None = None
    n_seen, column, before = 0, 0, 0.0
    while True:
        # A silent stream notifies nobody: its status is checked every second.
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(news.wait(), timeout=1.0)
        news.clear()
        await ahead.acquire()
        if (wait := before + 1 / FRAMES - time.monotonic()) > 0:
            await asyncio.sleep(wait)
        before = time.monotonic()
        with session.lock:
            now = (session.revision, session.stream.status)
            state, seen = (facts_of(session) if now != seen else None), now
            latest, n_seen = session.predictions_since(n_seen)
        first, columns = scope.since(column)
        column = first + len(columns)
        if state is not None:
            await socket.send_json({"kind": "state", **state})
        if latest:
            facts = {"left": session.seconds_left, "sent": time.time(), "list": [asdict(p) for p in latest]}
            await socket.send_json({"kind": "predictions", **facts})
        if len(columns):
            head = struct.pack("<II", first & 0xFFFFFFFF, columns.shape[1])
            await socket.send_bytes(head + np.ascontiguousarray(columns, dtype="<f4").tobytes())
        elif state is not None or latest:
            await socket.send_json({"kind": "frame"})  # the signal ends a frame, where there is some
        else:
            ahead.release()


def facts_of(session: LiveSession) -> dict[str, Any]:
    """Return all that a page shows except predictions and signal; the caller holds the session's lock."""
    version, lesson, practice = session.versions.now, session.lesson, session.practice
    model, stream, log = version.model, session.stream, session.log
    base, places = set(model.base_classes_.tolist()), session.versions.places
    classes = [
        {"label": str(name), "count": n, "base": name in base, "place": places[name]}
        for name, n in zip(model.classes_.tolist(), model.counts_.tolist(), strict=True)
    ]
    return {
        "model": {"name": session.name, "number": version.number, "identity": version.identity},
        "classes": classes,
        "stream": {
            "name": stream.source.name,
            "status": stream.status,
            "channels": list(stream.ch_names),
            "contact": stream.contact,
            "rate": stream.scope.rate,
            "sfreq": stream.source.sfreq,
        },
        "window": model.n_times_ / stream.rate,
        "busy": session.busy,
        "lesson": None if lesson is None else _lesson_facts(lesson, session.seconds_left),
        "practice": None if practice is None else _practice_facts(practice),
        "report": session.report,
        "problem": session.problem or (log.problem if log is not None else None),
        "warning": session.warning,
        "suggestion": session.watch.suggestion,
        "undo": session.versions.undoable,
        "saves": session.folder is not None,
        "log": log.path.name if log is not None else None,
    }


def _lesson_facts(lesson: Lesson, seconds_left: float) -> dict[str, Any]:
    return {
        "label": str(lesson.label),
        "n_shots": lesson.n_shots,
        "phase": lesson.phase,
        "left": seconds_left,
        "hands_free": lesson.hands_free,
        "shots": [_thumbnail(shot) for shot in lesson.shots],
    }


def _practice_facts(practice: Practice) -> dict[str, Any]:
    return {
        "phase": practice.phase,
        "prompt": str(practice.prompts[practice.place]),
        "place": practice.place + 1,
        "n": len(practice.prompts),
        "classes": list(map(str, practice.classes)),
        "counts": practice.counts.tolist(),
    }


def _thumbnail(shot: Shot) -> dict[str, Any]:
    """Return a window as a small picture: a few points of a few channels, each between 0 and 99."""
    n_points, most_chans = _THUMB
    n_chans, n_times = shot.values.shape
    chosen = shot.values[np.linspace(0, n_chans - 1, min(most_chans, n_chans)).round().astype(int)]
    width = max(1, n_times // n_points)
    columns = chosen[:, : n_times // width * width].reshape(len(chosen), -1, width)
    points = np.stack([columns.min(2), columns.max(2)], axis=2).reshape(len(chosen), -1)
    low, high = points.min(1, keepdims=True), points.max(1, keepdims=True)
    rows = (99 * (points - low) / np.maximum(high - low, 1e-12)).round().astype(int).tolist()
    return {"number": shot.number, "predicted": str(shot.predicted), "rows": rows}


def _parse(text: str) -> tuple[str, dict[str, Any]]:
    """Return an order from a page, which must be a known one, and its arguments."""
    if len(text) > MOST_TEXT:
        raise ValueError(f"a message has at most {MOST_TEXT} characters")
    try:
        message = json.loads(text)
    except ValueError:
        message = None
    order = message.get("order") if isinstance(message, dict) else None
    if not isinstance(order, str) or order not in _ORDERS:
        raise ValueError("the page asked for something unknown; reload it")
    return order, message


def _name(arguments: dict[str, Any]) -> str:
    name = arguments.get("name")
    if not isinstance(name, str) or not name.strip() or len(name) > MOST_NAME:
        raise ValueError(f"a class needs a name of at most {MOST_NAME} characters")
    return name.strip()


def _integer(arguments: dict[str, Any], key: str) -> int:
    value = arguments.get(key)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{key} must be a whole number")
    return value


#: Orders of a page; a text is returned to it as the answer, other effects are part of the state.
_ORDERS: dict[str, Callable[[LiveSession, dict[str, Any]], object]] = {
    "teach": lambda session, arguments: session.teach(
        _name(arguments), _integer(arguments, "shots"), hands_free=arguments.get("hands_free") is True
    ),
    "end": lambda session, _: session.end_recording(),
    "remove": lambda session, arguments: session.remove(_integer(arguments, "number")),
    "cancel": lambda session, _: session.cancel(),
    "learn": lambda session, _: session.learn(),
    "accept": lambda session, arguments: session.accept(_name(arguments)),
    "dismiss": lambda session, _: session.dismiss(),
    "forget": lambda session, arguments: session.forget(_name(arguments)),
    "undo": lambda session, _: session.undo(),
    "practise": lambda session, arguments: session.practise(_integer(arguments, "rounds")),
    "save": lambda session, _: f"Saved as {session.save().name}.",
}

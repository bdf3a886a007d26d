"""The local server of a live session: one page, a WebSocket for it, and nothing for anybody else.

Whoever can open the page can teach the model and see the signal, so a link has a token, the address is this
machine's alone, and what other web pages ask for is refused: by the ``Host`` they came by (DNS rebinding) and
by their ``Origin``. No text from a page is ever a path.
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
from anchorinv.live.lessons import Shot, export
from anchorinv.live.session import LiveSession

if TYPE_CHECKING:
    import uvicorn

#: Frames a second that a page is sent at the most.
FRAMES = 60
#: Frames that a page is sent before it has said that it has shown the first of them.
AHEAD = 3
#: What a page says of each frame: of the signal, which comes last, or else of the word that it is complete.
SEEN = "seen"
#: Characters of a message from a page, and of a name in it.
MOST_TEXT, MOST_NAME = 2000, 100
#: Bytes of a message from a page; a longer one ends the connection.
MOST_BYTES = 1 << 16
#: Points of a window's picture, and channels.
_THUMB = (40, 8)
_log = logging.getLogger(__name__)
_FORBIDDEN = PlainTextResponse("This link is not valid: open the one that anchorinv printed.", 403)


class LiveServer:
    """A page on a session, for whoever has the token and comes by one of the hosts (``127.0.0.1:8765``)."""

    def __init__(self, session: LiveSession, hosts: list[str], token: str | None = None) -> None:
        self.session, self.token = session, token or secrets.token_urlsafe(24)
        self._hosts = frozenset(hosts)
        ways = Route("/", self._page), Route("/export", self._export), WebSocketRoute("/socket", self._socket)
        self.app = Starlette(routes=ways)

    def serving(self) -> "uvicorn.Server":
        """Return what serves the page, on the sockets that it is run with."""
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
        """Say whether a request came by the link, to this machine, and if from a page, from this one."""
        given = connection.query_params.get("token", "")
        origin = connection.headers.get("origin")
        return (
            secrets.compare_digest(given.encode(), self.token.encode())
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
        asked = request.query_params.get("recordings") == "yes"
        payload = await asyncio.to_thread(export, model, taught, log, recordings=asked)
        headers = {"Content-Disposition": 'attachment; filename="session.zip"', "Cache-Control": "no-store"}
        return Response(payload, media_type="application/zip", headers=headers)

    async def _socket(self, socket: WebSocket) -> None:
        # A browser always names the origin of a WebSocket; whoever does not is no page, and needs the token.
        if not self._allowed(socket):
            await socket.close(1008)
            return
        await socket.accept()
        loop, news = asyncio.get_running_loop(), asyncio.Event()
        ended = self.session.listen(lambda: loop.call_soon_threadsafe(news.set))
        news.set()  # what is there already
        ahead = asyncio.Semaphore(AHEAD)
        sending = asyncio.create_task(self._send(socket, news, ahead))
        try:
            while True:
                if (text := await socket.receive_text()) == SEEN:
                    ahead.release()
                else:
                    await self._heard(socket, text)
        except (WebSocketDisconnect, RuntimeError):
            pass
        finally:
            ended()
            sending.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await sending

    async def _send(self, socket: WebSocket, news: asyncio.Event, ahead: asyncio.Semaphore) -> None:
        try:
            await _send_news(socket, self.session, news, ahead)
        except (WebSocketDisconnect, RuntimeError):
            pass  # a page may go while it is sent to: that is no fault
        except Exception:
            _log.exception("live page")
            await socket.close(1011)  # and the page comes again, rather than show for ever what was

    async def _heard(self, socket: WebSocket, text: str) -> None:
        """Do what a page asks for, or answer with what is wrong."""
        try:
            order, given = _parsed(text)
            answer = await asyncio.to_thread(_ORDERS[order], self.session, given)
            if isinstance(answer, str):
                await socket.send_json({"kind": "answer", "order": order, "text": answer})
        except (ValueError, OSError) as error:
            await socket.send_json({"kind": "problem", "text": shown(str(error))})


async def _send_news(
    socket: WebSocket, session: LiveSession, news: asyncio.Event, ahead: asyncio.Semaphore
) -> None:
    """Send what is new whenever the page has shown what was before: a slow one gets fewer, larger steps.

    Buffers of the system and of the browser would hold minutes of a small stream, and a page that reads
    them late would show classes of long ago; so the page says what it has seen, and ``ahead`` counts.
    """
    scope = session.stream.scope
    seen: tuple[int, str] | None = None
    n_seen, column, before = 0, 0, 0.0
    while True:
        # A stream that falls silent brings no news: whether it still flows is asked for every second.
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
    """Return all that a page shows, but predictions and the signal; the session is locked meanwhile."""
    version, lesson, practice = session.versions.now, session.lesson, session.practice
    model, stream, log = version.model, session.stream, session.log
    base = set(map(str, model.base_classes_.tolist()))
    places, counted = (
        session.versions.places,
        zip(model.classes_.tolist(), model.counts_.tolist(), strict=True),
    )
    classes = [
        {"label": str(name), "count": n, "base": str(name) in base, "place": places[name]}
        for name, n in counted
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
        "lesson": None
        if lesson is None
        else {
            "label": str(lesson.label),
            "n_shots": lesson.n_shots,
            "phase": lesson.phase,
            "left": session.seconds_left,
            "hands_free": lesson.hands_free,
            "shots": [_thumb(shot) for shot in lesson.shots],
        },
        "practice": None
        if practice is None
        else {
            "phase": practice.phase,
            "prompt": str(practice.prompts[practice.place]),
            "place": practice.place + 1,
            "n": len(practice.prompts),
            "classes": list(map(str, practice.classes)),
            "counts": practice.counts.tolist(),
        },
        "report": session.report,
        "problem": session.problem or (log.problem if log is not None else None),
        "warning": session.warning,
        "suggestion": session.watch.suggestion,
        "undo": session.versions.undoable,
        "saves": session.folder is not None,
        "log": log.path.name if log is not None else None,
    }


def _thumb(shot: Shot) -> dict[str, Any]:
    """Return a window as a small picture: a few points of a few channels, each between 0 and 99."""
    points, most = _THUMB
    n_chans, n_times = shot.values.shape
    rows = shot.values[np.linspace(0, n_chans - 1, min(most, n_chans)).round().astype(int)]
    each = max(1, n_times // points)
    stretches = rows[:, : n_times // each * each].reshape(len(rows), -1, each)
    picked = np.stack([stretches.min(2), stretches.max(2)], axis=2).reshape(len(rows), -1)
    low, high = picked.min(1, keepdims=True), picked.max(1, keepdims=True)
    scaled = 99 * (picked - low) / np.maximum(high - low, 1e-12)
    rows = scaled.round().astype(int).tolist()
    return {"number": shot.number, "predicted": str(shot.predicted), "rows": rows}


def _parsed(text: str) -> tuple[str, dict[str, Any]]:
    """Return an order from a page and what it needs, checked."""
    if len(text) > MOST_TEXT:
        raise ValueError(f"a message has at most {MOST_TEXT} characters")
    try:
        given = json.loads(text)
    except ValueError:
        given = None
    order = given.get("order") if isinstance(given, dict) else None
    if not isinstance(order, str) or order not in _ORDERS:
        raise ValueError("the page asked for something unknown; reload it")
    return order, given


def _name(given: dict[str, Any]) -> str:
    name = given.get("name")
    if not isinstance(name, str) or not name.strip() or len(name) > MOST_NAME:
        raise ValueError(f"a class needs a name of at most {MOST_NAME} characters")
    return name.strip()


def _whole(given: dict[str, Any], key: str) -> int:
    value = given.get(key)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{key} must be a whole number")
    return value


#: What a page may ask for; a text that comes back is its answer, all else is seen in the state.
_ORDERS: dict[str, Callable[[LiveSession, dict[str, Any]], object]] = {
    "teach": lambda session, given: session.teach(
        _name(given), _whole(given, "shots"), hands_free=given.get("hands_free") is True
    ),
    "end": lambda session, given: session.end_recording(),
    "remove": lambda session, given: session.remove(_whole(given, "number")),
    "cancel": lambda session, given: session.cancel(),
    "learn": lambda session, given: session.learn(),
    "accept": lambda session, given: session.accept(_name(given)),
    "dismiss": lambda session, given: session.dismiss(),
    "forget": lambda session, given: session.forget(_name(given)),
    "undo": lambda session, given: session.undo(),
    "practise": lambda session, given: session.practise(_whole(given, "rounds")),
    "save": lambda session, given: f"Saved as {session.save().name}.",
}

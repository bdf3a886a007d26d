"""``anchorinv live``: a model on a stream, in a page in the browser; predictions of a stream for programs."""

import contextlib
import errno
import json
import socket
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anchorinv.cli.options import (
    REJECT_HELP,
    Allow,
    InputOptions,
    Model,
    SteadyOptions,
    load_model,
    option,
    warn,
    with_options,
)
from anchorinv.errors import csv_line, import_extra
from anchorinv.terminal import say

if TYPE_CHECKING:
    from anchorinv.estimator import AnchorInvClassifier
    from anchorinv.live.session import LivePrediction, LiveSession
    from anchorinv.live.sources import StreamSource

_LOOPBACK, _ALL = ("127.0.0.1", "localhost"), ("0.0.0.0", "::", "")  # noqa: S104 - refused


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The source of samples: exactly one of them."""

    lsl: str | None = option(None, "Name of a stream of Lab Streaming Layer.", metavar="NAME")
    replay: Path | None = option(None, "Recording to replay in real time.", metavar="FILE")
    board: str | None = option(
        None, "Board that BrainFlow supports, such as synthetic or cyton.", metavar="NAME"
    )
    speed: float = option(1.0, "Replay this many times as fast.")
    loop: bool = option(False, "Start the replay again at its end.", "--loop")
    serial_port: str = option("", "Serial port of the board, if it has one.")
    mac: str = option("", "Bluetooth address of the board, if it has one.")

    def open(self, sfreq: float | None) -> "StreamSource":
        """Return the chosen source."""
        from anchorinv.live.sources import Board, LslSource, Replay
        from anchorinv.signal.readers import open_recording

        if sum(source is not None for source in (self.lsl, self.replay, self.board)) != 1:
            raise ValueError("choose one source: --lsl NAME, --replay FILE or --board NAME")
        if self.lsl is not None:
            return LslSource(self.lsl)
        if self.replay is not None:
            return Replay(open_recording(self.replay), speed=self.speed, loop=self.loop, sfreq=sfreq)
        assert self.board is not None
        return Board(self.board, port=self.serial_port, mac=self.mac)


@with_options
def live(
    model: Model,
    source: SourceOptions,
    folder: Path | None = option(
        None, "Folder for models and the log; default: beside the model.", metavar="DIR"
    ),
    reject: float | None = option(None, f"{REJECT_HELP} Default: the model's, or 0.05.", metavar="SHARE"),
    port: int = option(8765, "Port of the page; 0 picks a free one.", min=0, max=65535),
    listen: str = option(
        _LOOPBACK[0], "Address to listen on; any but the default lets other machines in.", metavar="ADDRESS"
    ),
    *,
    inputs: InputOptions,
    smoothing: SteadyOptions,
    allow_recordings: Allow = False,
) -> None:
    """Run a model on a live stream, and watch and teach it in the browser; Ctrl-C ends it."""
    for needed in ("uvicorn", "starlette", "websockets"):
        import_extra(needed, extra="live")
    learner = load_rejecting(model, allow_recordings=allow_recordings, reject=reject)
    samples = source.open(inputs.sfreq)
    place = folder or model.parent
    if not place.is_dir():
        raise ValueError(f"there is no folder {place} to save to; create it, or choose another with --folder")
    with _server_socket(listen, port) as server_socket:  # before the session, which begins a log
        files = {"folder": place, "name": model.stem, "allow_recordings": allow_recordings}
        session = _session(learner, samples, inputs, smoothing, **files)
        _serve(session, listen, server_socket)
    say(f"Log: {session.log.path}" if session.log else "")


def _server_socket(listen: str, port: int) -> socket.socket:
    """Return a listening socket; errors name the option to change."""
    if listen in _ALL:
        raise ValueError(
            f"--listen {listen!r} means all addresses, and the page answers on one only; give the address "
            f"by which others reach this machine, such as 192.168.1.20"
        )
    try:
        return socket.create_server((listen, port))
    except OSError as error:
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            why = "is in use" if error.errno == errno.EADDRINUSE else "is not open to you"
            raise OSError(f"port {port} {why}; choose another --port, or 0 for a free one") from None
        raise OSError(
            f"{listen!r} is not an address of this machine; --listen needs one, such as {_LOOPBACK[0]}"
        ) from None


def _serve(session: "LiveSession", listen: str, server_socket: socket.socket) -> None:
    """Serve the page until interrupted."""
    from anchorinv.live.server import LiveServer
    from anchorinv.live.stream import undisturbed

    port = server_socket.getsockname()[1]
    hosts = [f"{name}:{port}" for name in ({*_LOOPBACK, listen} if listen in _LOOPBACK else {listen})]
    server = LiveServer(session, hosts)
    if listen not in _LOOPBACK:
        warn(
            f"everybody who reaches {listen} and has the link sees the signal and can teach the model; "
            f"nothing is encrypted"
        )
    say(f"Open http://{listen}:{port}/?token={server.token}", "Ctrl-C ends it.")
    sys.stdout.flush()
    with undisturbed():
        session.start()
        try:
            server.serving().run(sockets=[server_socket])
        except KeyboardInterrupt:
            pass
        finally:
            session.stop()


def predict_stream(
    model: Path,
    lsl: str,
    out_lsl: str | None,
    *,
    as_json: bool,
    inputs: InputOptions,
    smoothing: SteadyOptions,
    reject: float | None = None,
    allow_recordings: bool = False,
) -> None:
    """Predict a stream of Lab Streaming Layer until interrupted: a line each, markers to ``out_lsl``."""
    from anchorinv.live.sources import LslSource, MarkerOutlet
    from anchorinv.live.stream import undisturbed

    learner = load_rejecting(model, allow_recordings=allow_recordings, reject=reject)
    outlet = MarkerOutlet(out_lsl) if out_lsl is not None else None
    session = _session(learner, LslSource(lsl), inputs, smoothing)
    warning = None
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError), undisturbed():
        for prediction in _predictions(session):
            if warning is None and (warning := session.warning):
                warn(warning)
            if outlet is not None and prediction.label is not None:
                outlet.push(prediction.label, prediction.taken)
            say(_line(prediction, as_json=as_json))
            sys.stdout.flush()
    session.stop()
    if session.problem:
        raise ValueError(session.problem)


def _line(prediction: "LivePrediction", *, as_json: bool) -> str:
    if not as_json:
        return csv_line([f"{prediction.at:.3f}", prediction.label]).rstrip()
    names = ("unknown", "novelty", "probability", "taken")
    facts = {"time": prediction.at, "class": prediction.label}
    return json.dumps(facts | {name: getattr(prediction, name) for name in names})


def _predictions(session: "LiveSession") -> Iterator["LivePrediction"]:
    """Yield predictions as they are made, until the stream ends."""
    from anchorinv.live.stream import OVER

    news = threading.Event()
    session.listen(news.set)
    session.start()
    n_seen = 0
    while session.stream.status not in OVER or session.n_predictions > n_seen:
        news.wait(timeout=1.0)
        news.clear()
        latest, n_seen = session.predictions_since(n_seen)
        yield from latest


def load_rejecting(
    model: Path, *, allow_recordings: bool, reject: float | None = None
) -> "AnchorInvClassifier":
    """Load a model that rejects unknown windows, if it can: a stream has more than the known classes."""
    from anchorinv.novelty import REJECT

    learner = load_model(model, allow_recordings=allow_recordings, reject=reject)
    if learner.reject is None and learner.state_.confidence is not None:
        learner.set_params(reject=REJECT)
    return learner


def _session(
    learner: "AnchorInvClassifier",
    source: "StreamSource",
    inputs: InputOptions,
    smoothing: SteadyOptions,
    **files: Any,
) -> "LiveSession":
    from anchorinv.live.session import STEP, LiveSession

    return LiveSession(
        learner,
        source,
        step=inputs.step or STEP,
        steady=smoothing.settings(learner),
        scale=inputs.scale,
        rename=dict(inputs.reading().rename or {}),
        **files,
    )

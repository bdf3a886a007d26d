import json
import math
import re
from importlib.resources import files

import numpy as np
import pytest

from tests.live.test_session import samples, session

pytest.importorskip("starlette", reason="needs the extra live")
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from anchorinv.live.server import AHEAD, MOST_TEXT, SEEN, LiveServer
from anchorinv.live.sources import Chunk
from anchorinv.live.stream import KEPT

HOST = "127.0.0.1:8765"
PAGE = (files("anchorinv.live") / "page.html").read_text(encoding="utf-8")


@pytest.fixture
def server(tmp_path):
    given = session(samples(), step=0.1, folder=tmp_path, name="hand")
    given.run()
    given.stream._status = "streaming"  # as more is to come
    yield LiveServer(given, [HOST, "localhost:8765"], token="s3cret")
    given.stop()


@pytest.fixture
def client(server):
    return TestClient(server.app, base_url=f"http://{HOST}")


def socket(client, token="s3cret", **headers):
    return client.websocket_connect(f"ws://{HOST}/socket?token={token}", headers=headers)


def news(connection, kind):
    """The next message of a kind."""
    while True:
        message = connection.receive()
        connection._raise_on_close(message)
        facts = json.loads(message.get("text") or "{}")
        if message.get("bytes") or facts.get("kind") == "frame":
            connection.send_text(SEEN)
        elif facts.get("kind") == kind:
            return facts


class TestWhoIsLetIn:
    def test_the_link_works(self, client):
        answer = client.get("/?token=s3cret")
        assert answer.status_code == 200 and "anchorinv live" in answer.text

    @pytest.mark.parametrize("query", ["", "?token=", "?token=s3cre", "?token=s3cret2", "?token=%ff"])
    @pytest.mark.parametrize("path", ["/", "/export"])
    def test_not_without_the_token(self, client, path, query):
        assert client.get(path + query).status_code == 403

    @pytest.mark.parametrize("host", ["evil.example", "evil.example:8765", "127.0.0.1", "127.0.0.1:80", ""])
    def test_not_by_another_name(self, client, host):
        assert client.get("/?token=s3cret", headers={"host": host}).status_code == 403
        with pytest.raises(WebSocketDisconnect), socket(client, host=host):
            pass

    @pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://127.0.0.1:8765", "http://"])
    def test_not_from_another_page(self, client, origin):
        assert client.get("/export?token=s3cret", headers={"origin": origin}).status_code == 403
        with pytest.raises(WebSocketDisconnect), socket(client, origin=origin):
            pass

    def test_the_page_itself_is(self, client):
        with socket(client, origin=f"http://{HOST}") as connection:
            assert news(connection, "state")["model"]["number"] == 1

    def test_nothing_else_is_served(self, client):
        for path in ("/page.html", "/../session.py", "/static/x", "/docs", "/openapi.json"):
            assert client.get(f"{path}?token=s3cret").status_code == 404


class TestPage:
    def test_it_is_small_and_needs_nothing_from_elsewhere(self):
        assert len(PAGE.encode()) <= 300_000
        assert not re.search(r"(src|href)=\"(?!data:)[^\"]+", PAGE) and "@import" not in PAGE
        assert not re.search(r"https?://", PAGE)

    def test_only_its_own_script_and_style_run(self, client):
        answers = [client.get("/?token=s3cret") for _ in range(2)]
        policies = [answer.headers["content-security-policy"] for answer in answers]
        nonces = [re.search(r"script-src 'nonce-([^']+)'", policy)[1] for policy in policies]
        assert nonces[0] != nonces[1] and f'nonce="{nonces[0]}"' in answers[0].text
        assert policies[0].startswith("default-src 'none'") and "unsafe" not in policies[0]
        assert answers[0].headers["referrer-policy"] == "no-referrer"
        assert " style=" not in PAGE and not re.search(r"\son\w+=\"", PAGE)  # the policy forbids both


class TestSocket:
    def test_nothing_is_compressed_and_messages_are_bounded(self, server):
        how = server.serving().config
        assert how.ws_per_message_deflate is False and how.ws_max_size == 1 << 16 and not how.access_log

    def test_a_page_gets_state_predictions_and_signal(self, server, client):
        with socket(client) as connection:
            state = news(connection, "state")
            assert [each["label"] for each in state["classes"]] == ["left", "right"]
            assert state["stream"]["channels"] == ["C3", "C4", "Cz", "Pz"] and state["log"].startswith(
                "hand-"
            )
            assert news(connection, "predictions")["list"][0]["label"] in ("left", "right")
            payload = connection.receive()["bytes"]
        first, n_chans = np.frombuffer(payload, "<u4", 2)
        columns = np.frombuffer(payload, "<f4", offset=8).reshape(-1, n_chans, 2)
        assert n_chans == 4 and first + len(columns) == server.session.stream.scope.n_columns
        assert (columns[..., 0] <= columns[..., 1]).all()

    def test_a_lesson_by_orders(self, server, client, tmp_path):
        with socket(client) as connection:
            connection.send_json({"order": "teach", "name": "tongue", "shots": 3})
            while (state := news(connection, "state"))["lesson"] is None:
                pass
            assert state["lesson"]["phase"] == "countdown" and state["lesson"]["left"] > 0
            for chunk in np.array_split(samples("tongue", 20, 9), 40, axis=1):
                server.session.stream.take(Chunk(chunk, 0.0))
            while (state := news(connection, "state"))["lesson"]["phase"] != "review":
                pass
            shot = state["lesson"]["shots"][0]
            assert np.array(shot["rows"]).min() == 0 and np.array(shot["rows"]).max() == 99
            connection.send_json({"order": "remove", "number": shot["number"]})
            connection.send_json({"order": "learn"})
            while (state := news(connection, "state"))["model"]["number"] == 1:
                pass
            assert state["report"]["label"] == "tongue" and state["report"]["shots"] == 2
            connection.send_json({"order": "save"})
            saved = news(connection, "answer")["text"]
        assert [path.name for path in tmp_path.glob("*.anchorinv")] == [saved.split()[-1].rstrip(".")]
        assert client.get("/export?token=s3cret").content[:2] == b"PK"

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "[]",
            "not json",
            '{"order": "rm -rf"}',
            '{"order": ["teach"]}',
            '{"order": "teach"}',
            '{"order": "teach", "name": "  ", "shots": 3}',
            '{"order": "teach", "name": "x", "shots": "3"}',
            '{"order": "teach", "name": "x", "shots": 1e999}',
            '{"order": "teach", "name": "x", "shots": true}',
            json.dumps({"order": "teach", "name": "x" * 101, "shots": 3}),
            json.dumps({"order": "teach", "name": ["x"], "shots": 3}),
            '{"order": "remove", "number": 1}',
            " " * (MOST_TEXT + 1),
        ],
    )
    def test_nonsense_is_answered_with_a_sentence(self, server, client, text):
        with socket(client) as connection:
            connection.send_text(text)
            assert news(connection, "problem")["text"]
        assert server.session.lesson is None

    def test_a_name_is_never_a_path(self, server, client, tmp_path):
        before = server.session.model.classes_.tolist()
        with socket(client) as connection:
            connection.send_json({"order": "save", "name": "../../evil", "path": "/tmp/evil"})
            name = news(connection, "answer")["text"].split()[-1].rstrip(".")
        assert (tmp_path / name).is_file() and name.startswith("hand-1-")
        assert server.session.model.classes_.tolist() == before

    def test_a_second_page_sees_the_same(self, server, client):
        with socket(client) as one, socket(client) as other:
            one.send_json({"order": "teach", "name": "x", "shots": 3})
            for connection in (one, other):
                while news(connection, "state")["lesson"] is None:
                    pass

    def test_who_leaves_is_not_told_any_more(self, server, client):
        with socket(client) as connection:
            news(connection, "state")
            assert len(server.session._listeners) == 1
        assert server.session._listeners == []


def test_a_page_that_cannot_be_sent_to_is_told_to_come_again(server, client, monkeypatch, caplog):
    """A socket that stays open without any news would show the last class for ever."""
    with socket(client) as connection:
        news(connection, "predictions")
        monkeypatch.setattr(type(server.session), "seconds_left", property(lambda _: 1 / 0))
        server.session.stream.take(Chunk(samples(), 0.0))
        with pytest.raises(WebSocketDisconnect) as closed:
            news(connection, "nothing")
    assert closed.value.code == 1011 and "ZeroDivisionError" in caplog.text
    assert server.session._listeners == []


def test_a_slow_browser_gets_less_and_the_latest(server, client):
    """Minutes go by while a page shows nothing: it is sent the last seconds then, and not a queue."""
    scope = server.session.stream.scope
    with socket(client) as connection:
        for i in range(200):
            scope.push(np.full((4, round(scope.rate)), float(i)))
            server.session._changed()
        seen, columns = [], np.zeros(1)
        while columns[-1] != 199:
            message = connection.receive()
            if "bytes" in message:
                columns = np.frombuffer(message["bytes"], "<f4", offset=8)
                seen.append(len(columns) // 8)
                connection.send_text(SEEN)
            elif json.loads(message["text"])["kind"] == "frame":
                connection.send_text(SEEN)
    assert len(seen) <= AHEAD + 2 and max(seen) <= math.ceil(KEPT * scope.rate)

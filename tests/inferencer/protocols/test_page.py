"""The page and /api of a real server: its state, and what may be asked for by whom."""

from __future__ import annotations

import asyncio
import gzip
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import make_mocked_request

from inferencer.protocols.page.advice import TEXTS, advice
from inferencer.protocols.page.page import Page, files
from paramsync.errors import CorruptCheckpointError, GraphError, ParameterError, UnsafeGraphError, UntrustedError
from paramsync.following.faults import describe
from paramsync.rpc.access import Access
from paramsync.rpc.tokens import Tokens
from paramsync.v1 import sync_pb2 as pb
from tests.support.http import Got, call
from tests.support.programs import ROOT, eventually
from tests.support.published import PARAMETERS, Publisher
from tests.support.running import LONG, Running

MODEL = "m"


class Server:
    """A server of `m`, of which each test publishes more."""

    def __init__(self, folder: Path) -> None:
        self.publisher = Publisher(folder / MODEL, keep=20)
        self.running = Running(folder / MODEL)
        self.port = self.running.rest_port
        self.publish()

    def publish(self) -> int:
        number = self.publisher.publish().number
        list(self.running.sync.Sync(pb.SyncRequest(model=MODEL), timeout=LONG))
        return number

    def get(self, path: str, **headers: str) -> Got:
        return call(self.port, "GET", path, None, **headers)

    def act(self, what: str, body: Any = None, **headers: str) -> Got:
        host = f"127.0.0.1:{self.port}"
        all_headers = {"Content-Type": "application/json", "Origin": f"http://{host}", **headers}
        given = {name: value for name, value in all_headers.items() if value}
        return call(self.port, "POST", f"/api/models/{MODEL}/{what}", {} if body is None else body, **given)

    def model(self) -> Any:
        """The model's part of the state."""
        return self.get("/api/state").json["models"][MODEL]

    def status(self) -> Any:
        return self.model()["status"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("page"))
    yield server
    server.publisher.close()
    server.running.close()


def test_the_page_and_its_files_are_sent_once_and_need_nothing_of_others(server: Server) -> None:
    page = server.get("/")
    assert page.headers["Content-Type"] == "text/html; charset=utf-8"
    assert "default-src 'self'" in page.headers["Content-Security-Policy"]
    assert "unsafe" not in page.headers["Content-Security-Policy"]
    for link in re.findall(r'(?:src|href)="(/[^"]+)"', page.body.decode()):
        file = server.get(link)
        assert file.status == 200, link
        assert server.get(link, If_None_Match=file.headers["ETag"]).status == 304
    assert not re.search(r"<script>|<style|\bstyle=|\son\w+=", page.body.decode())
    assert server.get("/page/nothing.js").status == 404
    assert server.get("/page/../page.py").status == 404


def test_all_that_is_sent_is_small_and_asks_no_other_host(server: Server) -> None:
    sent = 0
    for path, file in files().items():
        if path.endswith(".txt"):
            continue
        got = server.get(path, Accept_Encoding="gzip, deflate")
        assert (got.headers["Content-Encoding"], gzip.decompress(got.body)) == ("gzip", file.content)
        sent += len(got.body)
        if "uPlot" not in path:
            assert set(re.findall(rb"https?://[^\s\"']+", file.content)) <= {b"http://www.w3.org/2000/svg"}, path
            assert b"innerHTML" not in file.content
    assert sent < 60_000


@pytest.mark.parametrize("accepted", ["", "identity", "br", "gzip;q=0"])
def test_a_caller_that_cannot_unpack_gets_files_as_they_are(server: Server, accepted: str) -> None:
    got = server.get("/page/page.js", Accept_Encoding=accepted)
    assert ("Content-Encoding" in got.headers, got.body) == (False, files()["/page/page.js"].content)
    assert got.headers["Vary"] == "Accept-Encoding"


def test_the_state_has_what_serves_and_what_became_of_versions(server: Server) -> None:
    number = server.publish()
    state = server.get("/api/state").json
    assert state["actions"] == {"allowed": True, "token": False, "why": ""}
    model = state["models"][MODEL]
    assert model["status"]["serving"]["number"] == number
    seen = {version["number"]: version for version in model["versions"]}
    assert seen[number]["committed_at"] <= seen[number]["restored_at"] <= seen[number]["served_at"]
    assert 1 in seen  # what served before anybody looked
    state = eventually(lambda: (now := server.get("/api/state").json)["workers"] and now, lambda: "a sample")
    assert [process["number"] for process in state["workers"]] == [None, 0]
    assert all(process["resident_bytes"] > process["private_bytes"] > 1 << 20 for process in state["workers"])
    assert abs(state["now"] - time.time()) < 60


def test_a_page_gets_the_history_of_the_model_it_shows_and_only_the_status_of_others(server: Server) -> None:
    assert server.get(f"/api/state?model={MODEL}").json["models"][MODEL]["versions"]
    other = server.get("/api/state?model=").json["models"][MODEL]
    assert (other["status"]["state"], other["versions"], other["happened"]) == ("serving", [], [])
    assert len(other["traffic"]) <= 1


def test_pages_that_ask_at_once_share_one_question_and_one_that_leaves_ends_it_for_none(server: Server) -> None:
    questions: list[tuple[str, ...]] = []

    async def ask() -> list[int]:
        answered = asyncio.Event()

        async def supervisor(*question: str) -> bytes:
            questions.append(question)
            await answered.wait()
            return b'{"models":{}}'

        page = Page(server.running.server.models, supervisor, Access(host="127.0.0.1"))
        requests = [make_mocked_request("GET", f"/api/state?model=made-up-{number}") for number in range(300)]
        first, *others = [asyncio.ensure_future(page.answer(request, b"")) for request in requests]
        while not questions:
            await asyncio.sleep(0)
        first.cancel()
        answered.set()
        return [answer.status for answer in await asyncio.gather(*others)]

    assert asyncio.run(ask()) == [200] * 299
    assert questions == [("overview", "")]


def test_a_state_that_takes_long_holds_up_no_other_question(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    overview, begun, go_on = server.running.server._overview, threading.Event(), threading.Event()

    def state(model: str | None) -> bytes:
        begun.set()
        assert go_on.wait(LONG)
        return b'{"models":{}}'

    monkeypatch.setattr(overview, "state", state)
    with ThreadPoolExecutor() as threads:
        page = threads.submit(server.get, "/api/state")
        assert begun.wait(LONG)
        assert server.get("/metrics").status == 200  # which asks the supervisor too
        go_on.set()
        assert page.result(LONG).status == 200


def test_actions_do_what_operators_ask_for(server: Server) -> None:
    old, new = server.publish(), server.publish()
    assert server.act("pin", {"version": old}).json["pinned"] == old
    assert server.status()["serving"]["number"] == old
    assert server.act("unpin").json["serving"]["number"] == new
    assert server.act("rollback").json["pinned"] == old
    assert server.act("unpin").json["pinned"] is None
    assert server.act("label", {"version": str(old), "label": "canary"}).json["labels"] == {"canary": old}
    assert server.act("unlabel", {"label": "canary"}).json["labels"] == {}
    kinds = [choice["kind"] for choice in server.model()["happened"]]
    assert kinds[-6:] == ["rolled back", "unpinned", "rolled back", "unpinned", "labelled", "unlabelled"]
    server.publisher.publish()
    assert server.act("sync").json["serving"]["number"] == new + 1


REFUSED: list[tuple[str, Any, dict[str, str], int, str]] = [
    ("pin", {"version": 1}, {"Origin": "http://evil.example"}, 403, "expected a page of this server"),
    ("pin", {"version": 1}, {"Origin": "", "Sec-Fetch-Site": "cross-site"}, 403, "expected a page of this server"),
    ("pin", {"version": 1}, {"Origin": "http://evil.example:1", "Host": "evil.example:1"}, 403, "header Host"),
    ("pin", {"version": 1}, {"Content-Type": "text/plain"}, 415, "Content-Type"),
    ("pin", b"[1]", {}, 400, "a JSON object"),
    ("pin", b"{" * 5000, {}, 400, "at most 4096 bytes"),
    ("pin", b"[" * 4000, {}, 400, "a JSON object"),
    ("pin", {"version": "0" * 20 + "1"}, {}, 400, "the number of a version"),
    ("pin", {}, {}, 400, "the number of a version"),
    ("pin", {"version": 10**30}, {}, 400, "the number of a version"),
    ("pin", {"version": 999_999}, {}, 404, "999999"),
    ("label", {"version": 1, "label": "a\nb"}, {}, 400, "can be printed"),
    ("label", {"version": 1, "label": "x" * 3000}, {}, 400, "at most"),
    ("unlabel", {"label": "nobody"}, {}, 404, "nobody"),
    ("destroy", {}, {}, 404, "expected one of sync"),
    ("../other/sync", {}, {}, 404, ""),
]


@pytest.mark.parametrize(("what", "body", "headers", "status", "words"), REFUSED)
def test_what_cannot_be_done_is_refused_in_a_line_and_changes_nothing(
    server: Server, what: str, body: Any, headers: dict[str, str], status: int, words: str
) -> None:
    before = server.status()
    got = server.act(what, body, **headers)
    assert got.status == status, got.body
    assert words in got.error
    assert "\n" not in got.error
    after = server.status()
    assert (after["pinned"], after["labels"], after["serving"]) == (
        before["pinned"],
        before["labels"],
        before["serving"],
    )


def test_two_versions_are_compared(server: Server) -> None:
    old, new = server.publish(), server.publish()
    found = server.get(f"/api/diff?model={MODEL}&old={old}&new={new}").json
    assert found["kinds"] == {"changed": PARAMETERS}
    one = found["parameters"][0]
    assert (one["kind"], one["shape"], one["largest"]) == ("changed", [64, 32], 1.0)
    assert len(one["histogram"]) == len(found["histogram_edges"]) - 1
    assert sum(one["histogram"]) == one["changed"] == one["elements"]
    for query, status, words in [
        (f"model={MODEL}&old={old}&new=x", 400, "the number of a version"),
        (f"model={MODEL}&old={old}", 400, "the number of a version"),
        (f"model={MODEL}&old={old}&new={'9' * 30}", 400, "the number of a version"),
        (f"model={MODEL}&old={old}&new=999999", 404, "999999"),
        (f"model=nobody&old={old}&new={new}", 404, "nobody"),
    ]:
        got = server.get(f"/api/diff?{query}")
        assert (got.status, words in got.error) == (status, True), got.body


def test_only_what_is_offered_is_asked(server: Server) -> None:
    for method, path, status in [
        ("POST", "/", 405),
        ("DELETE", "/api/state", 405),
        ("GET", "/api/models/m/pin", 405),
        ("GET", "/api/nothing", 404),
        ("GET", "/api/events", 404),
    ]:
        assert call(server.port, method, path).status == status, path


def test_with_tokens_all_may_look_and_whoever_shows_one_may_act(tmp_path: Path) -> None:
    secret = "0123456789abcdef0123"
    publisher = Publisher(tmp_path / MODEL)
    publisher.publish(1)
    running = Running(tmp_path / MODEL, tokens=Tokens("--token-file", None, f"ops:{secret}"))
    origin = {"Origin": f"http://127.0.0.1:{running.rest_port}", "Content-Type": "application/json"}

    def shown(**headers: str) -> Any:
        return call(running.rest_port, "GET", "/api/state", None, **headers).json["actions"]

    def unpinned(**headers: str) -> int:
        return call(running.rest_port, "POST", f"/api/models/{MODEL}/unpin", {}, **origin, **headers).status

    assert call(running.rest_port, "GET", "/").status == 200
    assert (shown()["allowed"], shown()["token"], bool(shown()["why"])) == (False, True, True)
    assert shown(Authorization=f"Bearer {secret}") == {"allowed": True, "token": True, "why": ""}
    assert [unpinned(), unpinned(Authorization=f"Bearer {secret[:-1]}")] == [401, 401]
    assert unpinned(Authorization=f"Bearer {secret}") == 200
    running.close()
    publisher.close()


# What to do about a version in quarantine

FILE = Path("/store/ckpt-7.data-00000-of-00001")


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (
            describe(ParameterError(str(FILE), expected="finite values in w", found="NaN or infinity")),
            "Training diverged",
        ),
        (describe(ParameterError("version 7", expected="w", found="v")), "name variables otherwise"),
        (describe(CorruptCheckpointError(FILE, expected="checksum 0x1 of w", found="0x2")), "paramsync verify STORE"),
        (describe(UntrustedError("version 7", expected="a signature", found="none")), "--trust KEYFILE"),
        (describe(UnsafeGraphError("PyFunc: allow each by its name (inferencer: --allow-op NAME)")), "--allow-op NAME"),
        ("workers crashed while they computed it (killed by signal 11)", "mend the model"),
        (describe(GraphError("something else")), "Sync now"),
    ],
)
def test_each_reason_has_its_advice(reason: str, words: str) -> None:
    assert words in advice(reason)


def test_troubleshooting_has_the_same_advice() -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text().replace("`", "")
    assert [text for text in TEXTS if text not in page] == []

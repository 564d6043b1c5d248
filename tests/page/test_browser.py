"""The page in a real browser: it loads, follows what happens, does what it is told, and takes no harm from names."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paramsync.remote import copy_note
from paramsync.remote.bucket_status import BucketStatus, Copied
from paramsync.remote.copy_note import CopyNote
from paramsync.v1 import sync_pb2 as pb
from tests.support.browser import Browser
from tests.support.paged import DIGITS, HOSTILE, TOKEN, Store, started
from tests.support.programs import ROOT, eventually
from tests.support.servers import add_models, serving

pytestmark = pytest.mark.slow
AXE = ROOT / "tests" / "support" / "axe" / "axe.min.js"


def replica(model: str, number: int, **more: Any) -> pb.ModelStatus:
    return pb.ModelStatus(model=model, state=pb.ModelStatus.SERVING, serving=pb.Version(number=number), **more)


PEERS = (
    [replica(DIGITS, 1421, lag_seconds=0, swap_skew_seconds=0.25), replica(HOSTILE, 7)],
    [replica(DIGITS, 1421, lag_seconds=0, swap_skew_seconds=0.5)],
    [replica(DIGITS, 1420, lag_seconds=3)],
)


class Shown:
    """A server, its stores, and a browser that has its page open."""

    def __init__(self, folder: Path) -> None:
        self.store = Store(folder / DIGITS)
        self.hostile = Store(folder / "hostile")
        for _ in range(5):
            self.store.publish()
        self.hostile.publish(metrics={HOSTILE: 1.0}, age=140.0)
        self.peers = ExitStack()
        peers = [self.peers.enter_context(serving(add_models(*statuses))) for statuses in PEERS]
        with serving() as gone:
            flags = ["--peers", ",".join([*peers, gone])]
        self.process = started(folder, (DIGITS, folder / DIGITS), ("hostile", folder / "hostile"), flags=flags)
        self.browser = Browser()
        self.open()

    def open(self, fragment: str = f"#/{DIGITS}") -> None:
        """A page anew, though another fragment alone is none."""
        self.browser.open("about:blank")
        self.browser.open(f"http://{self.process.http_address}/{fragment}")
        if fragment:
            self.wait_for(self.store.number)

    def wait_for(self, number: int) -> None:
        self.browser.wait("document.querySelector(arguments[0])?.textContent === arguments[1]", self.big, f"{number:,}")

    @property
    def section(self) -> str:
        """The one that is open."""
        return "section.model:not([hidden])"

    @property
    def big(self) -> str:
        return f"{self.section} .serves .big"

    def act(self, what: str, body: dict[str, int]) -> None:
        """As a click does, but at once."""
        script = """return fetch(`/api/models/${arguments[0]}/${arguments[1]}`, { method: 'POST', headers: {
            'Content-Type': 'application/json', Authorization: `Bearer ${arguments[2]}` }, body: arguments[3] })
            .then((one) => one.status)"""
        assert self.browser.run(script, DIGITS, what, TOKEN, json.dumps(body)) == 200

    def confirm(self) -> None:
        self.browser.wait("document.querySelector('#ask').open")
        self.browser.click("#ask-yes")
        self.browser.wait("!document.querySelector('#ask').open")

    def close(self) -> None:
        self.browser.__exit__(None, None, None)
        self.process.close()
        self.peers.close()
        self.store.close()
        self.hostile.close()


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    shown = Shown(tmp_path_factory.mktemp("shown"))
    yield shown
    shown.close()


def chosen_buttons_outside(shown: Shown) -> list[str]:
    """The buttons of versions that do not lie within their card."""
    script = """const card = document.querySelector(arguments[0]).getBoundingClientRect();
        return [...document.querySelectorAll(`${arguments[0]} td.acts button`)].filter((one) => {
            const box = one.getBoundingClientRect(); return box.left < card.left || box.right > card.right;
        }).map((one) => one.ariaLabel)"""
    found: list[str] = shown.browser.run(script, f"{shown.section} .versions")
    return found


def test_it_shows_every_model_and_complains_of_nothing(shown: Shown) -> None:
    shown.open("")
    cut = """return [...document.querySelectorAll(arguments[0])].filter((one) => one.getContext('2d')
        .getImageData(0, 0, 1, one.height).data.some(Boolean)).map((one) => one.closest('figure').dataset.chart)"""
    shown.browser.wait("document.querySelectorAll('#rows [data-model]').length === 2")
    for name in ("hostile", DIGITS):
        shown.browser.run("location.hash = '#/' + arguments[0]", name)
        shown.browser.wait(f"document.querySelector('{shown.section} h2')?.textContent === arguments[0]", name)
        shown.browser.wait(f"document.querySelectorAll('{shown.section} .charts canvas').length === 5")
        shown.browser.wait(f"document.querySelector('{shown.section} .charts').textContent.includes('since its step')")
        assert shown.browser.run(cut, f"{shown.section} .charts canvas") == []
        assert shown.browser.run("return window.attacked ?? null") is None
        assert shown.browser.run("return document.querySelectorAll('main img').length") == 0
    shown.browser.wait("document.querySelectorAll('#workers tr').length === 3")
    entries = shown.browser.run("return performance.getEntriesByType('resource').map((one) => one.name)")
    assert [one for one in entries if not one.startswith(f"http://{shown.process.http_address}/")] == []
    assert shown.browser.logged() == []


def test_the_fleet_has_a_row_for_each_server_the_slowest_first(shown: Shown) -> None:
    shown.open()
    shown.browser.wait("document.querySelectorAll('#peers tr').length === 4")
    shown.browser.wait("document.querySelector('#peers').textContent.includes('not reachable')")
    rows = shown.browser.run("return [...document.querySelectorAll('#peers tr')].map((one) => one.innerText)")
    assert [("not reachable" in row, "1,420" in row, "1,421" in row) for row in rows] == [
        (True, False, False),
        (False, True, False),
        (False, False, True),
        (False, False, True),
    ]
    text = shown.browser.run("return document.querySelector('#shares').textContent").replace("\u00a0", " ")
    share = "version 1,421 on 2 servers (67 %, swapped within 250 ms); version 1,420 on 1 server (33 %)"
    assert text == f"{DIGITS}: {share}"
    shown.browser.run("location.hash = '#/'")
    shown.browser.wait("document.querySelectorAll('#peers tr').length === 5")
    shown.open()


def test_actions_are_there_for_whoever_has_a_token(shown: Shown) -> None:
    browser, actions = shown.browser, f"document.querySelector('{shown.section} .actions')"
    for token, allowed in ((TOKEN[:-1], False), (TOKEN, True)):
        assert browser.run(f"return {actions}.hidden")
        browser.click("#sign-in")
        browser.type("#ask-input", token)
        shown.confirm()
        browser.wait("document.querySelector('#connection').textContent === 'live'")
        browser.wait(f"{actions}.hidden === {str(not allowed).lower()}")
    assert browser.run("return sessionStorage.length") == 1
    assert browser.run("return localStorage.length + document.cookie.length") == 0
    assert TOKEN not in browser.run("return document.documentElement.outerHTML")
    assert not [line for line in shown.process.lines if TOKEN in line]


def test_a_new_version_is_on_the_screen_without_a_reload(shown: Shown) -> None:
    shown.browser.run("window.same = true")
    shown.wait_for(shown.store.publish())
    assert shown.browser.run("return window.same") is True


def test_a_model_that_follows_a_bucket_says_how_versions_come_and_why_they_do_not(shown: Shown) -> None:
    number = shown.store.publish()
    shown.wait_for(number)
    now = time.time()
    copied = Copied(
        number=number, step_done_at=now - 9, published_at=now - 8, in_bucket_at=now - 6, here_at=now - 3, way="delta",
        deltas=2, bytes=2_700_000, size=268_000_000, seconds=1.0,
    )  # fmt: skip
    status = BucketStatus(address="s3://b/m", newest=number + 2, behind=2, copied=copied)
    browser, bucket = shown.browser, f"{shown.section} .bucket"
    CopyNote("s3://b/m", status=status).write(shown.store.path, now)
    browser.wait("!document.querySelector(arguments[0]).hidden", bucket)
    text = browser.text(bucket)
    assert "2 versions to fetch" in text
    assert f"version {number:,} came as 2 deltas, 2.7\u00a0MB of 268\u00a0MB (1.0\u00a0%)" in text
    assert "publish 1.0\u00a0s, upload 2.0\u00a0s, download 3.0\u00a0s" in text
    assert "follows the newest in s3://b/m" in browser.text(f"{shown.section} .choice")
    CopyNote("s3://b/m", "denied", status=replace(status, reason="s3://b/m: denied")).write(shown.store.path, now)
    browser.wait(
        "document.querySelector(arguments[0])?.textContent.startsWith('The bucket s3://b/m: denied')",
        f"{shown.section} .wrong li",
    )
    (shown.store.path / copy_note.NAME).unlink()
    shown.wait_for(shown.store.publish())
    browser.wait("document.querySelector(arguments[0]).hidden", bucket)


def test_every_action_is_asked_once_more_and_done(shown: Shown) -> None:
    browser, section = shown.browser, shown.section
    newest = shown.store.publish()
    shown.wait_for(newest)
    older = newest - 1
    browser.wait(f"document.querySelector('{section} [data-key=\"pin {older}\"]')")
    browser.click(f'{section} [data-key="pin {older}"]')
    assert "stays" in browser.text("#ask-what")
    browser.press("\ue00c")  # Escape: nothing is done
    browser.wait("!document.querySelector('#ask').open")
    assert browser.text(shown.big) == f"{newest:,}"
    browser.click(f'{section} [data-key="pin {older}"]')
    shown.confirm()
    shown.wait_for(older)
    browser.wait(f"document.querySelector('{section} .choice b').textContent === 'pinned to {older}'")
    assert "behind" in browser.text(f"{section} .behind")
    assert chosen_buttons_outside(shown) == []
    browser.click(f"{section} [data-do=unpin]")
    shown.confirm()
    shown.wait_for(newest)
    browser.click(f"{section} [data-do=rollback]")
    assert browser.text("#ask-yes") == f"Roll back to {older}"
    shown.confirm()
    shown.wait_for(older)
    browser.click(f"{section} [data-do=unpin]")
    shown.confirm()
    browser.click(f"{section} [data-do=sync]")
    shown.confirm()
    shown.wait_for(newest)
    browser.click(f'{section} [data-key="label {older}"]')
    browser.type("#ask-input", HOSTILE)
    shown.confirm()
    chip = f"{section} .chip"
    browser.wait(f"document.querySelector('{chip} span')?.textContent === arguments[0]", HOSTILE)
    assert chosen_buttons_outside(shown) == []
    browser.click(f"{chip} button")
    shown.confirm()
    browser.wait(f"!document.querySelector('{chip}')")
    told = browser.text(f"{section} .happened")
    assert all(words in told for words in (f"rolled back to {older}", "unpinned", f"{older} labelled {HOSTILE}"))
    assert browser.run("return window.attacked ?? null") is None
    assert browser.logged() == []


def test_what_cannot_be_done_is_said_in_full_and_stays_open(shown: Shown) -> None:
    browser = shown.browser
    browser.wait(f"document.querySelector('{shown.section} [data-key^=\"label \"]')")
    browser.click(f'{shown.section} [data-key^="label "]')
    browser.type("#ask-input", "a\u00a0b")
    browser.click("#ask-yes")
    browser.wait("document.querySelector('#ask-error').textContent.includes('can be printed')")
    browser.press("\ue00c")
    browser.logged()  # the browser notes the status of the answer


def test_a_version_that_is_refused_is_red_with_its_whole_reason(shown: Shown) -> None:
    bad = shown.store.publish(bad=True)
    shown.browser.wait(
        f"document.querySelector('{shown.section} .wrong').textContent.includes('Version {bad} is quarantined')"
    )
    shown.browser.wait(f"document.querySelector('{shown.section} .errors pre').textContent.includes('finite')")
    assert "Training diverged: mend the training step" in shown.browser.text(f"{shown.section} .wrong p")
    assert shown.browser.run("return document.title").startswith("▲")
    shown.browser.click("#nav .all")
    shown.browser.wait("document.querySelector('#rows .trouble')?.textContent.includes('quarantined')")
    rows = "return [...document.querySelectorAll('#rows [data-model]')].map((one) => one.dataset.model)"
    assert shown.browser.run(rows) == [DIGITS, "hostile"]
    assert shown.browser.run("return document.activeElement.textContent") == DIGITS
    shown.browser.press("\ue007")  # Enter
    shown.browser.wait("document.activeElement.tagName === 'H2'")
    assert shown.browser.run("return location.hash") == f"#/{DIGITS}"
    shown.wait_for(shown.store.publish())
    shown.browser.wait(f"document.querySelector('{shown.section} .wrong').hidden")


def test_a_digit_is_answered_and_asked_again_as_versions_come(shown: Shown) -> None:
    browser, digit = shown.browser, f"{shown.section} .digit"
    browser.wait(f"document.querySelector('{digit} .guess .big').textContent === '3'")
    style = f"getComputedStyle(document.querySelector('{digit} .bars li span:last-child')).whiteSpace"
    assert browser.run(f"return {style}") == "nowrap"  # 100.0 % in one line
    browser.click(f"{digit} .clear")
    browser.wait(f"document.querySelector('{digit} .guess .big').textContent === '\\u2013'")
    browser.run(f"document.querySelector('{digit} canvas').focus()")
    browser.press("7")
    browser.wait(
        f"document.querySelector('{digit} .guess .dim').textContent === 'answers version {shown.store.number}'"
    )
    number = shown.store.publish()
    browser.wait(f"document.querySelector('{digit} .guess .dim').textContent === 'answers version {number}'")
    assert "2 versions answered" in browser.wait(f"document.querySelector('{digit} .story').textContent")


def test_a_form_asks_any_model_what_it_says_it_takes(shown: Shown) -> None:
    browser, form = shown.browser, f"{shown.section} .try"
    browser.wait(f"!document.querySelector('{form}').hidden")
    browser.run(f"document.querySelector('{form} details').open = true")
    assert "image float32 [any, 784]" in browser.text(f"{form} .inputs")
    assert json.loads(browser.run(f"return document.querySelector('{form} textarea').value")) == [[0] * 784]
    browser.click(f"{form} button")
    browser.wait(f"document.querySelector('{form} pre').textContent.startsWith('[')")
    assert len(json.loads(browser.text(f"{form} pre"))[0]) == 10
    assert browser.text(f"{form} [role=status]").startswith(f"version {shown.store.number} answered in ")
    browser.run(f"document.querySelector('{form} textarea').value = JSON.stringify([Array(784).fill(3e38)])")
    browser.click(f"{form} button")  # the sum is infinite, times 0
    browser.wait(f"document.querySelector('{form} pre').textContent.includes('NaN')")
    browser.run(f"document.querySelector('{form} textarea').value = '[[1]'")
    browser.click(f"{form} button")
    browser.wait(f"document.querySelector('{form} [role=status]').textContent.startsWith('image: ')")


def test_two_versions_are_compared(shown: Shown) -> None:
    shown.browser.click(f"{shown.section} .diff button")
    shown.browser.wait(f"document.querySelector('{shown.section} .diff form span').textContent === '1 changed'")
    row = shown.browser.text(f"{shown.section} .diff tbody tr")
    assert row.startswith("best ")
    assert "%" in row
    assert shown.browser.run("return document.querySelectorAll('.diff rect').length") > 0


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_nothing_serious_keeps_anybody_out(shown: Shown, theme: str) -> None:
    shown.browser.theme(theme)
    shown.browser.run("document.querySelector('#said').textContent = 'done'")
    shown.browser.run(AXE.read_text() + ";window.axe = axe;")
    found = shown.browser.run("return axe.run().then((found) => found.violations)")
    serious = [one for one in found if one["impact"] in ("serious", "critical")]
    assert serious == [], json.dumps(serious, indent=1)[:5000]


def test_all_of_it_is_reached_by_the_keyboard_and_seen_there(shown: Shown) -> None:
    browser = shown.browser
    browser.run("document.activeElement.blur(); window.scrollTo(0, 0)")
    seen: list[Any] = []
    for _ in range(60):
        browser.press("\ue004")  # Tab
        seen.append(
            browser.run(
                "const one = document.activeElement; const style = getComputedStyle(one);"
                "const name = one.dataset.do ?? one.dataset.key ?? one.className;"
                "return [name, parseFloat(style.outlineWidth), style.outlineStyle]"
            )
        )
    reached = {one[0] for one in seen}
    assert {"sync", "rollback", "skip"} <= reached, reached
    assert [one for one in seen if one[0] in ("sync", "rollback") and (one[1] < 2 or one[2] == "none")] == []


def test_a_phone_shows_it_without_moving_it_sideways(shown: Shown) -> None:
    shown.browser.size(390, 844, mobile=True)
    shown.open()
    shown.browser.wait("document.querySelectorAll('.charts canvas').length === 5")
    assert chosen_buttons_outside(shown) == []
    script = """return [innerWidth, [...document.body.querySelectorAll('*')]
        .filter((one) => one.getBoundingClientRect().right > 391 && !one.closest('.scroll > *'))
        .map((one) => `${one.tagName}.${one.className} ${one.id}`)]"""
    assert shown.browser.run(script) == [390, []]
    shown.browser.click("#nav .all")
    shown.browser.wait("!document.querySelector('#overview').hidden")
    assert shown.browser.run(script) == [390, []]
    shown.act("pin", {"version": shown.store.publish(age=200.0)})
    shown.store.publish()
    try:
        for said in ("1 version", "3\u00a0min"):
            shown.browser.wait("document.querySelector('#rows').textContent.includes(arguments[0])", said)
        wider = "const one = document.querySelector('#overview .scroll'); return one.scrollWidth - one.clientWidth"
        assert shown.browser.run(wider) == 0
    finally:
        shown.act("unpin", {})
        shown.browser.devtools("Emulation.clearDeviceMetricsOverride")
    shown.open()


def test_a_clock_that_jumps_changes_no_age(shown: Shown) -> None:
    browser = shown.browser
    browser.run("const real = Date.now; Date.now = () => real() + 86400e3 * 400; window.real = real")
    before = shown.store.publish()
    shown.wait_for(before)
    text = browser.wait(f"document.querySelector('{shown.section} .behind').textContent").replace("\u00a0", " ")
    browser.run("Date.now = window.real")
    assert "newest" in text
    assert " d " not in text


def test_the_heap_stays_flat_over_many_versions(shown: Shown, whole: bool) -> None:
    """1,000 with make campaign."""
    count = 500 if whole else 20
    heaps = []
    for _ in range(2):
        for _ in range(count):
            shown.store.publish()
        shown.wait_for(shown.store.number)
        heaps.append(shown.browser.heap())
    assert heaps[1] < 1.3 * heaps[0] + 2_000_000, heaps


def test_a_lost_server_is_said_and_found_again(shown: Shown, tmp_path: Path) -> None:
    """Last, for the server is another one then."""
    browser = shown.browser
    address = shown.process.http_address
    shown.process.end(signal.SIGTERM)
    browser.wait("!document.querySelector('#lost').hidden")
    assert "Lost the server" in browser.text("#lost-what")
    shown.process.close()
    folder = shown.store.path.parent
    models = [(DIGITS, folder / DIGITS), ("hostile", folder / "hostile")]
    shown.process = started(folder, *models, rest_port=int(address.rpartition(":")[2]))
    eventually(lambda: browser.run("return document.querySelector('#lost').hidden") or None, lambda: "the server again")
    shown.wait_for(shown.store.publish())
    browser.logged()

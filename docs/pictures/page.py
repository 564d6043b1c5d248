"""python docs/pictures/page.py: takes the pictures of the operator's page, of what `paramsync up` shows there.

With --scenes it takes those of what can be wrong: a trainer that was killed, a pin, a quarantine, three models at once.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import NoReturn
from urllib.request import Request, urlopen

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.support.browser import Browser  # noqa: E402, it is found then

_PICTURES = {  # theme, width, height, phone
    "page-light": ("light", 1280, 1180, False),
    "page-dark": ("dark", 1280, 1180, False),
    "page-phone": ("light", 390, 844, True),
}


_KILLED = 120.0  # seconds before the page is opened
_SCENES = {  # model, theme, width, height
    "page-models": ("", "light", 1280, 640),
    "page-models-dark": ("", "dark", 1280, 640),
    "page-models-phone": ("", "light", 390, 844),
    "page-killed": ("ranker", "light", 1280, 900),
    "page-killed-phone": ("ranker", "light", 390, 844),
    "page-pinned": ("digits", "light", 1280, 1180),
    "page-quarantined": ("fraud", "light", 1280, 1180),
    "page-quarantined-dark": ("fraud", "dark", 1280, 1180),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=Path(__file__).parent)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long it is trained before")
    parser.add_argument("--scenes", action="store_true", help="what can be wrong, in place of what is well")
    parser.add_argument("--train", nargs=2, metavar=("SECONDS", "BAD"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.train is not None:
        _train(arguments.folder, float(arguments.train[0]), int(arguments.train[1]))
    if arguments.scenes:
        _take_scenes(arguments.folder)
        return
    ports = _free_ports(4)
    options = [f"--{name}port={port}" for name, port in zip(("", "rest-", "control-", "trainer-"), ports, strict=True)]
    up = subprocess.Popen([sys.executable, "-m", "paramsync.cli", "up", "--json", *options], cwd=ROOT)
    try:
        _take(arguments.folder, f"http://127.0.0.1:{ports[1]}/", arguments.seconds)
    finally:
        up.terminate()
        up.wait()


def _take(folder: Path, address: str, seconds: float) -> None:
    pause = threading.Event()
    with Browser(width=1280, height=1000) as browser:
        for _ in range(240):
            with suppress(AssertionError):  # nobody listens yet
                browser.open(address)
            if browser.run("return Boolean(document.querySelector('section.model .digit:not([hidden])'))"):
                break
            pause.wait(1.0)
        pause.wait(seconds)
        for name, (theme, width, height, phone) in _PICTURES.items():
            browser.theme(theme)
            browser.size(width, height, mobile=phone)
            pause.wait(1.5)
            browser.run("window.scrollTo(0, 0)")
            browser.picture(folder / f"{name}.png")
            print(json.dumps({"picture": name, "bytes": (folder / f"{name}.png").stat().st_size}))  # noqa: T201
        for complaint in browser.logged():
            print(complaint)  # noqa: T201


def _train(path: Path, seconds: float, bad: int) -> NoReturn:
    """Publishes for ever, every so many seconds; from version `bad` on, if it is not 0, with NaN."""
    from tests.support.paged import Store

    store, pause = Store(path, keep=12), threading.Event()
    while True:
        store.publish(bad=0 < bad <= store.number + 1)
        pause.wait(seconds)


def _take_scenes(folder: Path) -> None:
    from tests.support.paged import TOKEN, started

    with tempfile.TemporaryDirectory() as place:
        stores = {name: Path(place) / name for name in ("digits", "fraud", "ranker")}
        trainers = {}
        for name, (seconds, bad) in {"digits": ("0.5", "0"), "fraud": ("4", "8"), "ranker": ("2", "0")}.items():
            command = [sys.executable, __file__, str(stores[name]), "--train", seconds, bad]
            trainers[name] = subprocess.Popen(command)
        pause = threading.Event()
        while not all((store / "checkpoint").exists() for store in stores.values()):
            pause.wait(0.5)
        server = started(Path(place), *stores.items())
        try:
            pause.wait(60.0)
            trainers["ranker"].kill()
            killed = time.monotonic()
            _choose(server.http_address, TOKEN)
            pause.wait(killed + _KILLED - time.monotonic())
            with Browser(width=1280, height=900) as browser:
                browser.open(f"http://{server.http_address}/")
                browser.run("sessionStorage.setItem('paramsync-token', arguments[0])", TOKEN)
                for name, (model, theme, width, height) in _SCENES.items():
                    browser.theme(theme)
                    browser.size(width, height, mobile=width < 500)
                    browser.open("about:blank")
                    browser.open(f"http://{server.http_address}/{'#/' * bool(model)}{model}")
                    browser.wait("document.querySelector('#rows tr') ?? document.querySelector('.charts canvas')")
                    pause.wait(4.0)
                    browser.picture(folder / f"{name}.png")
                    print(json.dumps({"picture": name, "bytes": (folder / f"{name}.png").stat().st_size}))  # noqa: T201
                for complaint in browser.logged():
                    print(complaint)  # noqa: T201
        finally:
            for trainer in trainers.values():
                trainer.kill()
                trainer.wait()
            server.close()


def _choose(address: str, token: str) -> None:
    """An operator's choice: the digits stay at their newest version, which is labelled too."""
    with urlopen(f"http://{address}/api/state") as answer:
        number = json.load(answer)["models"]["digits"]["status"]["serving"]["number"]
    headers = {"Content-Type": "application/json", "Origin": f"http://{address}", "Authorization": f"Bearer {token}"}
    for what, body in (("pin", {"version": number}), ("label", {"version": number, "label": "stable-candidate"})):
        content = json.dumps(body).encode()
        with urlopen(Request(f"http://{address}/api/models/digits/{what}", content, headers)) as answer:
            answer.read()


def _free_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


if __name__ == "__main__":
    main()

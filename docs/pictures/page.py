"""python docs/pictures/page.py: takes the pictures of the operator's page, of what `paramsync up` shows there."""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.support.browser import Browser  # noqa: E402, it is found then

_PICTURES = {  # theme, width, height, phone
    "page-light": ("light", 1280, 1180, False),
    "page-dark": ("dark", 1280, 1180, False),
    "page-phone": ("light", 390, 844, True),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=Path(__file__).parent)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long it is trained before")
    arguments = parser.parse_args()
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


def _free_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


if __name__ == "__main__":
    main()

"""Records what an operator sees of a run of `paramsync up`: a sync and a status, and top while it goes on.

python docs/pictures/operating.py docs/pictures
"""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

from recording import chosen, picture, record, screens

PORTS = {"--port": 18500, "--rest-port": 18501, "--control-port": 18502, "--trainer-port": 18503}
SERVER, TRAINER = f"127.0.0.1:{PORTS['--control-port']}", f"127.0.0.1:{PORTS['--trainer-port']}"
SECONDS = 60


def main(folder: str) -> None:
    paramsync = str(Path(sys.executable).with_name("paramsync"))
    pause = threading.Event()
    ports = [word for option, port in PORTS.items() for word in (option, str(port))]
    up = subprocess.Popen([paramsync, "up", "--seconds", str(SECONDS), *ports], stdout=subprocess.DEVNULL)
    try:
        while subprocess.run(
            [paramsync, "sync", "digits", "--server", SERVER], capture_output=True, check=False
        ).returncode:
            pause.wait(1)
        pause.wait(10)
        shown = (
            f"echo '$ paramsync sync digits'; {paramsync} sync digits --server {SERVER}; echo; "
            f"echo '$ paramsync status'; {paramsync} status --server {SERVER} --trainer {TRAINER}"
        )
        *_, (_, lines) = screens(record(["sh", "-c", shown]))
        _write(folder, "status.svg", [lines], "What paramsync sync and paramsync status show")
        frames = chosen(screens(record([paramsync, "top", "--server", SERVER, "--seconds", "16"])))
        _write(folder, "top.svg", frames, "What paramsync top shows")
    finally:
        up.terminate()
        up.wait()


def _write(folder: str, name: str, frames: list[list[str]], title: str) -> None:
    (Path(folder) / name).write_text(picture(frames, title))


if __name__ == "__main__":
    main(*sys.argv[1:])

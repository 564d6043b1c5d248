"""A real browser: Debian's Chromium, controlled through its own driver (WebDriver over HTTP)."""

from __future__ import annotations

import base64
import http.client
import json
import os
import re
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support.programs import PATIENCE, eventually

_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
_OPTIONS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
    "--enable-precise-memory-info", "--js-flags=--expose-gc", "--hide-scrollbars", "--no-proxy-server",
)  # fmt: skip


class Browser:
    """One tab, in a `with` block. `tests/support/browser_deps` installs what it needs."""

    def __init__(self, *, width: int = 1280, height: int = 900) -> None:
        driver = shutil.which("chromedriver")
        assert driver is not None, "no chromedriver: run tests/support/browser_deps as root"
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self._process = subprocess.Popen(
            [driver, "--port=0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "HOME": self._folder.name},
        )
        assert self._process.stdout is not None
        found = None
        for line in self._process.stdout:
            if (found := re.search(r"successfully on port (\d+)", line)) is not None:
                break
        assert found is not None, "chromedriver did not start"
        self._port = int(found[1])
        self._said: list[str] = []
        self._reader = threading.Thread(target=self._said.extend, args=(self._process.stdout,), daemon=True)
        self._reader.start()
        options = [*_OPTIONS, f"--user-data-dir={self._folder.name}/profile", f"--window-size={width},{height}"]
        chrome = {"args": options}
        timeouts = {"script": 1000 * int(PATIENCE)}  # instead of 30 seconds, in which a busy machine may run none
        capabilities = {"goog:chromeOptions": chrome, "goog:loggingPrefs": {"browser": "ALL"}, "timeouts": timeouts}
        self._session = ""
        answer = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": capabilities}})
        self._session = f"/session/{answer['sessionId']}"

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._ask("DELETE", self._session)
        finally:
            self._process.kill()
            self._process.wait()
            self._reader.join()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._folder.cleanup()

    def _ask(self, method: str, path: str, content: Any = None) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE)
        try:
            connection.request(method, path, None if method != "POST" else json.dumps(content or {}))
            value = json.loads(connection.getresponse().read())["value"]
        finally:
            connection.close()
        assert not (isinstance(value, dict) and "error" in value), value
        return value

    def open(self, address: str) -> None:
        self._ask("POST", f"{self._session}/url", {"url": address})

    def run(self, script: str, *arguments: Any) -> Any:
        """Run the body of a function, and return its result; a promise is awaited."""
        return self._ask("POST", f"{self._session}/execute/sync", {"script": script, "args": list(arguments)})

    def find(self, selector: str) -> str:
        found = self._ask("POST", f"{self._session}/element", {"using": "css selector", "value": selector})
        return str(found[_ELEMENT])

    def click(self, selector: str) -> None:
        """Click an element as a user does. Tries again while the element is covered or has just been replaced."""

        def clicked() -> bool | None:
            self.run("document.querySelector(arguments[0]).scrollIntoView({block: 'center'})", selector)
            try:
                self._ask("POST", f"{self._session}/element/{self.find(selector)}/click")
            except AssertionError as error:
                if any(why in str(error) for why in ("click intercepted", "stale element")):
                    return None
                raise
            return True

        eventually(clicked, lambda: f"a click on {selector}")

    def type(self, selector: str, text: str) -> None:
        self._ask("POST", f"{self._session}/element/{self.find(selector)}/value", {"text": text})

    def press(self, *keys: str) -> None:
        """Send keys to the element that has the focus."""
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self._ask("POST", f"{self._session}/actions", {"actions": [{"type": "key", "id": "keys", "actions": actions}]})

    def text(self, selector: str) -> str:
        return str(self.run("return document.querySelector(arguments[0])?.textContent ?? ''", selector))

    def wait(self, script: str, *arguments: Any) -> Any:
        """Wait until an expression is true, and return its value."""
        return eventually(lambda: self.run(f"return {script}", *arguments), lambda: f"{script}; {self.logged()}")

    def logged(self) -> list[str]:
        """Warnings and errors on the console since the last call."""
        entries = self._ask("POST", f"{self._session}/se/log", {"type": "browser"})
        return [one["message"] for one in entries if one["level"] in ("WARNING", "SEVERE")]

    def devtools(self, command: str, **parameters: Any) -> Any:
        return self._ask("POST", f"{self._session}/goog/cdp/execute", {"cmd": command, "params": parameters})

    def theme(self, name: str) -> None:
        """Set the preference of the user's system: "light" or "dark"."""
        self.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def size(self, width: int, height: int, *, mobile: bool = False) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile}
        self.devtools("Emulation.setDeviceMetricsOverride", **metrics)

    def picture(self, path: Path) -> None:
        """Write a screenshot as a PNG."""
        path.write_bytes(base64.b64decode(self._ask("GET", f"{self._session}/screenshot")))

    def heap(self) -> int:
        """Return the bytes that scripts use after a garbage collection."""
        self.devtools("HeapProfiler.collectGarbage")
        return int(self.devtools("Runtime.getHeapUsage")["usedSize"])

"""Headless chromium for tests, driven by DevTools messages over a pipe."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
SECONDS = 60.0  # timeout of a reply
OPTIONS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-sandbox",  # tests run as root in containers
    "--no-first-run",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-background-networking",
    "--hide-scrollbars",
)


def find_browser() -> str | None:
    return next(filter(None, map(shutil.which, NAMES)), None)


class Page:
    """One page, with its errors and requests."""

    def __init__(self, write: int, read: int) -> None:
        self._write, self._read = write, read
        self._rest = b""
        self._number = 0
        self._session: str | None = None
        self.problems: list[str] = []
        self.requests: list[str] = []

    def open(self, file: Path | str, width: int, height: int, *, dark: bool = False, touch: bool = False) -> None:
        """Open a file or an address in a page of this size, and wait until its script has run."""
        self._session = None
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        ratio = 2 if touch else 1
        metrics = {"width": width, "height": height, "deviceScaleFactor": ratio, "mobile": touch}
        self.send("Emulation.setDeviceMetricsOverride", **metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])
        if touch:
            self.send("Emulation.setTouchEmulationEnabled", enabled=True)
        self.send("Page.navigate", url=file if isinstance(file, str) else file.as_uri())
        deadline = time.monotonic() + SECONDS
        while self.evaluate("document.readyState") != "complete" or "about:" in self.evaluate("location.href"):
            assert time.monotonic() < deadline, "the page did not load"
        self.settle()

    def settle(self) -> None:
        """Wait until the page has drawn."""
        self.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def evaluate(self, expression: str) -> Any:
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def move(self, x: float, y: float) -> None:
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        self.settle()

    def click(self, x: float, y: float) -> None:
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
        self.settle()

    def tap(self, x: float, y: float) -> None:
        self.send("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
        self.send("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
        self.settle()

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key)
        self.settle()

    def screenshot(self, *, whole: bool = True) -> bytes:
        """Return the page as PNG."""
        answer = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        return base64.b64decode(answer["data"])

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self._note(answer)

    def _note(self, event: dict[str, Any]) -> None:
        content = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                self.problems.append(str(content["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if content["type"] in ("error", "warning", "assert"):
                self.problems.append(str(content["args"]))
            case "Log.entryAdded" if content["entry"]["level"] in ("error", "warning"):
                self.problems.append(content["entry"]["text"])
            case "Network.requestWillBeSent":
                self.requests.append(content["request"]["url"])

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], SECONDS)
            assert ready, "the browser does not answer"
            piece = os.read(self._read, 1 << 16)
            assert piece, "the browser has gone"
            self._rest += piece
        message, _, self._rest = self._rest.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer


@contextmanager
def browser(command: str, folder: Path, options: Sequence[str] = ()) -> Iterator[Page]:
    """A browser with its own profile in `folder`; it ends with the block."""
    from_us, to_us = os.pipe(), os.pipe()

    def arrange() -> None:
        """DevTools reads messages from descriptor 3 and answers on 4."""
        read, write = os.dup(from_us[0]), os.dup(to_us[1])
        os.dup2(read, 3)
        os.dup2(write, 4)

    process = subprocess.Popen(
        [command, *OPTIONS, *options, f"--user-data-dir={folder}", "about:blank"],
        pass_fds=(3, 4),
        preexec_fn=arrange,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(from_us[0])
    os.close(to_us[1])
    try:
        yield Page(from_us[1], to_us[0])
    finally:
        with suppress(OSError):
            os.close(from_us[1])
        os.close(to_us[0])
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

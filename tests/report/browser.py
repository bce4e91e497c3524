"""A real headless browser, driven over its DevTools pipe: nothing has to be installed for it.

Any Chromium will do; `FEDTRANSCRIBE_BROWSER` names one that is not on the path.
"""

import base64
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any, Self

_NAMES = (
    *("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome"),
    *("chromium-headless-shell", "chrome-headless-shell"),
)
_PATIENCE = 60.0
_WATCHED = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")


def find() -> str | None:
    """A Chromium on this machine; None where there is none."""
    named = os.environ.get("FEDTRANSCRIBE_BROWSER")
    found = (shutil.which(name) for name in ((named,) if named else _NAMES))
    return next((path for path in found if path), None)


class Browser:
    """One tab; use it as a context."""

    def __init__(self, program: str, profile: Path) -> None:
        self._program = program
        self._profile = profile
        self._last = 0
        self._buffer = b""
        self._session: str | None = None
        self.complaints: list[str] = []
        self.requests: list[str] = []

    def __enter__(self) -> Self:
        read_in, write_in = os.pipe()
        read_out, write_out = os.pipe()
        command = [
            self._program,
            *("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
            *("--disable-dev-shm-usage", "--no-first-run", "--remote-debugging-pipe"),
            f"--user-data-dir={self._profile}",
            "about:blank",
        ]
        # The browser reads commands from descriptor 3 and answers on 4. A shell moves ours there,
        # because what runs between fork and exec must not be Python.
        shell = f'exec "$0" "$@" 3<&{read_in} 4>&{write_out}'
        self._process = subprocess.Popen(
            ["/bin/bash", "-c", shell, *command],
            pass_fds=(read_in, write_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read_in)
        os.close(write_out)
        self._to, self._from = write_in, read_out
        os.set_blocking(self._from, False)
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        attached = self._call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")
        return self

    def __exit__(self, *_: object) -> None:
        self._session = None
        self._call("Browser.close")
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._to)
        os.close(self._from)

    def open(self, page: Path, width: int, height: int) -> None:
        """Show a page in a window of that size; a narrow one is a phone."""
        self.complaints, self.requests = [], []
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        self._call("Page.navigate", url=page.resolve().as_uri())
        until = time.monotonic() + _PATIENCE
        while self.evaluate("document.readyState") != "complete":
            assert time.monotonic() < until, "the page never finished loading"
            time.sleep(0.02)

    def evaluate(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self._call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def screenshot(self, path: Path) -> bytes:
        """The whole page as PNG."""
        size = self._call("Page.getLayoutMetrics")["cssContentSize"]
        shot = self._call(
            "Page.captureScreenshot",
            captureBeyondViewport=True,
            clip={"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1},
        )
        content = base64.b64decode(shot["data"])
        path.write_bytes(content)
        return content

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._last += 1
        message: dict[str, Any] = {"id": self._last, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + _PATIENCE
        while True:
            answer = self._next(until)
            if answer.get("id") == self._last:
                assert "error" not in answer, answer
                return answer["result"]
            self._note(answer)

    def _next(self, until: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            assert time.monotonic() < until, "the browser does not answer"
            try:
                more = os.read(self._from, 1 << 20)
                assert more, "the browser has gone"
                self._buffer += more
            except BlockingIOError:
                time.sleep(0.005)
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def _note(self, event: dict[str, Any]) -> None:
        name = event.get("method", "")
        if name in _WATCHED:
            self.complaints.append(json.dumps(event["params"])[:500])
        elif name == "Network.requestWillBeSent":
            self.requests.append(event["params"]["request"]["url"])

"""A headless Chromium, spoken to by the DevTools protocol over a pipe: no package is needed, and no port."""

from __future__ import annotations

import base64
import contextlib
import json
import os
from pathlib import Path
import select
import shutil
import subprocess
import tempfile

NAMES = ("chromium", "chromium-browser", "google-chrome")
SECONDS = 30
"""For one answer: a browser that says nothing for so long is broken."""
FLAGS = "--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --disable-sync".split()
_LOADED = """new Promise(done => {
  const drawn = () => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done)));
  const loaded = () => document.readyState === "complete" && location.protocol === "file:";
  const wait = () => loaded() ? drawn() : setTimeout(wait, 5);
  wait();
})"""
_THEN_DRAWN = "await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done))))"


def path_of_browser():
    """The browser, or None."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One page of a browser, and the errors that it has logged."""

    def __init__(self, process, out, into):
        self._process, self._out, self._into = process, out, into
        self._rest, self._last, self._session = b"", 0, None
        self.errors = []
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._ask(f"{domain}.enable")

    def _ask(self, method, **params):
        self._last += 1
        asked = {"id": self._last, "method": method, "params": params}
        if self._session:
            asked["sessionId"] = self._session
        os.write(self._out, json.dumps(asked).encode() + b"\0")
        while True:
            said = self._message()
            if said.get("id") == self._last:
                assert "error" not in said, said
                return said["result"]
            self._note(said)

    def _message(self):
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._into], [], [], SECONDS)
            read = os.read(self._into, 1 << 20) if ready else b""
            assert read, "the browser does not answer"
            self._rest += read
        first, _, self._rest = self._rest.partition(b"\0")
        return json.loads(first)

    def _note(self, said):
        params = said.get("params", {})
        if said.get("method") == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description", details["text"]))
        if said.get("method") == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.errors.append(" ".join(str(each.get("value", each.get("description"))) for each in params["args"]))
        if said.get("method") == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.errors.append(params["entry"]["text"])

    def open(self, path, anchor=""):
        """Load a file, and wait until it is drawn."""
        self._ask("Page.navigate", url="about:blank")
        self._ask("Page.navigate", url=Path(path).absolute().as_uri() + anchor)
        self.run(_LOADED)

    def size(self, width, height, dark=False):
        """The size of the window, and the colour scheme that is preferred."""
        self._ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._ask(
            "Emulation.setEmulatedMedia", features=[scheme, {"name": "prefers-reduced-motion", "value": "reduce"}]
        )

    def run(self, script):
        """The value of an expression in the page; that of a promise when it is kept."""
        said = self._ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in said:
            raise AssertionError(said["exceptionDetails"].get("exception", {}).get("description", said))
        return said["result"].get("value")

    def do(self, statements):
        """Run statements, and wait until what they changed is drawn. Returns what they return."""
        inner = f"const value = await (async () => {{ {statements} }})()"
        return self.run(f"(async () => {{ {inner}; {_THEN_DRAWN}; return value; }})()")

    def press(self, *keys):
        """Press keys, by name or character."""
        for key in keys:
            for kind in ("keyDown", "keyUp"):
                typed = key if len(key) == 1 and kind == "keyDown" else ""
                self._ask("Input.dispatchKeyEvent", type=kind, key=key, text=typed)
        self.do("")

    def move(self, x, y, click=False):
        """Move the pointer to a place, and press it there."""
        self._ask("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        for kind in ("mousePressed", "mouseReleased") if click else ():
            self._ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
        self.do("")

    def picture(self, path):
        """A picture of the window, as a PNG."""
        Path(path).write_bytes(base64.b64decode(self._ask("Page.captureScreenshot", format="png")["data"]))


@contextlib.contextmanager
def browsing(path=None):
    """A browser that is closed at the end."""
    to_browser, out = os.pipe()
    into, from_browser = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        # It reads from descriptor 3 and writes to 4.
        shell = f'exec "$0" "$@" 3<&{to_browser} 4>&{from_browser}'
        command = ["/bin/bash", "-c", shell, path or path_of_browser(), *FLAGS, f"--user-data-dir={folder}"]
        process = subprocess.Popen(
            [*command, "--remote-debugging-pipe"],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        try:
            yield Browser(process, out, into)
        finally:
            process.terminate()
            process.wait(timeout=SECONDS)
            os.close(out)
            os.close(into)

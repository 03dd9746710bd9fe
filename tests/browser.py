"""A headless Chromium for tests. Needs Python's standard library only."""
import contextlib
import json
import os
import shutil
import subprocess
import time

TIMEOUT_S = 100.0  # Of one step in the browser, on a machine that is busy building; a trace takes seconds.


def program() -> str | None:
    """The browser's path; None: there is none here."""
    return next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium"))), None)


class Browser:
    """A headless Chromium, spoken to in Chrome's DevTools protocol over a pair of pipes (messages end with a NUL)."""

    def __init__(self, program: str, profile: str):
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe",
                 "--no-first-run", "--disable-background-networking", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
                 f"--user-data-dir={profile}", "about:blank"]
        # The browser reads from 3 and writes to 4. dash knows no descriptors above 9.
        self._process = subprocess.Popen(["bash", "-c", f'exec "$0" "$@" 3<&{to_browser} 4>&{from_browser}', program, *flags],
                                         pass_fds=(to_browser, from_browser), stderr=subprocess.DEVNULL)
        os.close(to_browser)
        os.close(from_browser)
        os.set_blocking(self._in, False)
        self._buffer, self._number = b"", 0
        self.events = []  # What the page did, as (method, parameters), of the domains that were enabled.
        target = self._call("Target.createTarget", {"url": "about:blank"})["targetId"]
        self._session = self._call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]

    def _receive(self, until: float) -> dict:
        while b"\0" not in self._buffer:
            if time.monotonic() > until or self._process.poll() is not None:
                raise TimeoutError("the browser does not answer")
            with contextlib.suppress(BlockingIOError):
                self._buffer += os.read(self._in, 1 << 20)
                continue
            time.sleep(0.01)
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def _call(self, method: str, parameters: dict, session: str | None = None) -> dict:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + TIMEOUT_S
        while True:
            answer = self._receive(until)
            if "method" in answer:
                self.events.append((answer["method"], answer["params"]))
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def call(self, method: str, **parameters):
        """A command of DevTools to the page."""
        return self._call(method, parameters, self._session)

    def open(self, url: str) -> None:
        self._call("Page.navigate", {"url": "about:blank"}, self._session)  # A new fragment alone would not load the page again.
        self._call("Page.navigate", {"url": url}, self._session)

    def evaluate(self, expression: str):
        """The value of a JavaScript expression, of a promise once it is kept."""
        result = self._call("Runtime.evaluate", {"expression": expression, "awaitPromise": True, "returnByValue": True},
                            self._session)
        if "exceptionDetails" in result:
            raise RuntimeError(json.dumps(result["exceptionDetails"])[:2000])
        return result["result"].get("value")

    def close(self) -> None:
        with contextlib.suppress(OSError, RuntimeError, TimeoutError):
            self._call("Browser.close", {})
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        self._process.kill()

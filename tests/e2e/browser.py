"""A real browser without a window: Debian's chromium, driven over the DevTools protocol
on two pipes, so that there is neither a port nor a driver program."""

import base64
import json
import os
import pathlib
import queue
import shutil
import subprocess
import threading

from programs import DEADLINE_S, wait_for

# As root in a container: no sandbox, no GPU, almost no shared memory, and no requests to the
# outside.
FLAGS = [
    "--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--no-first-run",
    "--no-default-browser-check", "--disable-background-networking", "--disable-component-update",
    "--disable-default-apps", "--disable-extensions", "--disable-sync", "--mute-audio",
    "--hide-scrollbars", "--password-store=basic", "--remote-debugging-pipe",
]


def start(folder, tries=3):
    """Starts a Browser. On a busy machine chromium sometimes does not start, so it is tried again."""
    for attempt in range(1, tries + 1):
        own = pathlib.Path(folder) / f"try{attempt}"
        own.mkdir()
        try:
            return Browser(own)
        except AssertionError as error:
            log = own / "chromium.log"
            print(f"chromium, try {attempt}: {error}\n{log.read_text(errors='replace')[-4000:] if log.exists() else ''}")
            if attempt == tries:
                raise
    return None


class Browser:
    """One chromium with one tab. Its log is written to `log`, messages of the console to `console`."""

    def __init__(self, folder):
        program = shutil.which("chromium")
        assert program, "chromium is not in PATH: apt-get install chromium (tests/run does)"
        self.console = []
        self.answers = {}
        self.events = queue.Queue()
        self.last_id = 0
        folder = pathlib.Path(folder)
        to_browser, self.writer = os.pipe()
        self.reader, from_browser = os.pipe()
        # The protocol uses descriptors 3 (in) and 4 (out); 5 and 6 are only needed to move them
        # there.
        script = f'exec 5<&{to_browser} 6>&{from_browser} 3<&5 4>&6 5<&- 6>&-; exec "$0" "$@"'
        with open(folder / "chromium.log", "ab") as out:
            self.process = subprocess.Popen(
                ["bash", "-c", script, program, *FLAGS, f"--user-data-dir={folder / 'chromium'}", "about:blank"],
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, pass_fds=(to_browser, from_browser),
                env={**os.environ, "HOME": str(folder), "DBUS_SESSION_BUS_ADDRESS": "disabled:"},
                start_new_session=True,
            )
        os.close(to_browser)
        os.close(from_browser)
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()
        self.session = None
        try:
            self._attach()
        except AssertionError:
            self.close()
            raise

    def _attach(self):
        target = wait_for("the browser has a tab", self._find_tab)
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def _find_tab(self):
        for target in self.call("Target.getTargets")["targetInfos"]:
            if target["type"] == "page":
                return target["targetId"]
        return None

    # ---- the protocol --------------------------------------------------------

    def _read(self):
        pending = b""
        while True:
            more = os.read(self.reader, 1 << 16)
            if not more:
                return
            *whole, pending = (pending + more).split(b"\0")
            for text in whole:
                self._take(json.loads(text))

    def _take(self, message):
        if "id" in message:
            if message["id"] in self.answers:
                self.answers.pop(message["id"]).put(message)
            return
        method, told = message["method"], message["params"]
        if method == "Runtime.exceptionThrown":
            self.console.append(("exception", json.dumps(told["exceptionDetails"])))
        elif method == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning", "assert"):
            self.console.append((told["type"], json.dumps(told["args"])))
        elif method == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
            self.console.append((told["entry"]["source"], told["entry"]["text"]))

    def call(self, method, **params):
        self.last_id += 1
        message = {"id": self.last_id, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        answer = self.answers[self.last_id] = queue.Queue()
        os.write(self.writer, json.dumps(message).encode() + b"\0")
        try:
            result = answer.get(timeout=DEADLINE_S)
        except queue.Empty:
            raise AssertionError(f"the browser does not answer {method}") from None
        assert "error" not in result, (method, result["error"])
        return result["result"]

    # ---- what tests do ---------------------------------------------------------

    def open(self, url):
        self.call("Page.navigate", url=url)
        wait_for("the page is loaded", lambda: self.js("document.readyState") == "complete")

    def js(self, expression):
        """The value of an expression; of a promise, its result."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, json.dumps(result["exceptionDetails"])
        return result["result"].get("value")

    def text(self, selector):
        """The text that a person reads there; "" when nothing is shown."""
        return self.js(
            f"(n => n && n.getClientRects().length ? n.innerText : '')(document.querySelector({json.dumps(selector)}))"
        )

    def size(self, width, height, scale=1):
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=scale, mobile=width < 600,
        )

    def scheme(self, name):
        """"light" or "dark"."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def picture(self, path, whole=False):
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        pathlib.Path(path).write_bytes(base64.b64decode(shot["data"]))

    def close(self):
        """Requests it to close. If it does not, kills it with its helper processes, which are a
        session of their own."""
        try:
            os.write(self.writer, json.dumps({"id": 0, "method": "Browser.close"}).encode() + b"\0")
            self.process.wait(5)
        except (OSError, subprocess.TimeoutExpired):
            os.killpg(self.process.pid, 9)
            self.process.wait()
        os.close(self.writer)
        self.thread.join()
        os.close(self.reader)

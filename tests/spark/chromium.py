"""A headless Chromium, driven by its DevTools protocol."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Final, Self

from aiohttp import ClientSession, ClientWebSocketResponse

__all__ = ["CHROMIUM", "Chromium"]

CHROMIUM: Final = shutil.which("chromium") or shutil.which("chromium-browser")
"""The path of the program; ``None`` if it is not installed."""

SECONDS: Final = 30.0


class Chromium:
    """One window. For one thread.

    Attributes:
        requests: The addresses that the window has asked for.
        complaints: What the console says: errors, warnings, and exceptions.
    """

    def __init__(self, width: int = 1300, height: int = 900) -> None:
        assert CHROMIUM is not None
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self._folder = Path(tempfile.mkdtemp(prefix="chromium-"))
        self._process = subprocess.Popen(
            [
                CHROMIUM,
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--hide-scrollbars",
                "--remote-debugging-port=0",
                f"--user-data-dir={self._folder}",
                f"--window-size={width},{height}",
                "about:blank",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._loop = asyncio.new_event_loop()
        self._number = 0
        try:
            self._loop.run_until_complete(self._connect())
            for domain in "Page", "Runtime", "Log", "Network":
                self.call(f"{domain}.enable")
            self.resize(width, height)
        except BaseException:
            self.close()
            raise

    async def _connect(self) -> None:
        said = self._folder / "DevToolsActivePort"
        deadline = time.monotonic() + SECONDS
        while not (said.exists() and said.read_text().count("\n")):
            assert time.monotonic() < deadline, "Chromium has not started"
            assert self._process.poll() is None, "Chromium has ended"
            await asyncio.sleep(0.05)
        port = said.read_text().split("\n", maxsplit=1)[0]
        self._session = ClientSession()
        async with self._session.get(f"http://127.0.0.1:{port}/json/list") as answer:
            pages = [page for page in await answer.json() if page["type"] == "page"]
        address = pages[0]["webSocketDebuggerUrl"]
        self._socket: ClientWebSocketResponse = await self._session.ws_connect(
            address, max_msg_size=0
        )

    def call(self, method: str, **words: Any) -> dict[str, Any]:
        """Call a method of the protocol; return its result."""
        return self._loop.run_until_complete(self._call(method, words))

    async def _call(self, method: str, words: dict[str, Any]) -> dict[str, Any]:
        self._number += 1
        await self._socket.send_json({"id": self._number, "method": method, "params": words})
        while True:
            told = json.loads(await self._socket.receive_str(timeout=SECONDS))
            if told.get("id") == self._number:
                assert "error" not in told, (method, told)
                result: dict[str, Any] = told["result"]
                return result
            self._note(told.get("method"), told.get("params", {}))

    def _note(self, event: str | None, told: dict[str, Any]) -> None:
        if event == "Network.requestWillBeSent":
            self.requests.append(told["request"]["url"])
        elif event == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(told["exceptionDetails"]))
        elif event == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning"):
            self.complaints.append(json.dumps(told["args"]))
        elif event == "Log.entryAdded":
            self.complaints.append(f"{told['entry']['text']} {told['entry'].get('url', '')}")

    def forget(self) -> None:
        """Forget the requests and complaints so far."""
        self.run("0")  # reads what has been told
        self.requests.clear()
        self.complaints.clear()

    def open(self, url: str) -> None:
        """Load a page."""
        self.call("Page.navigate", url=url)
        self.wait(f"location.href === {json.dumps(url)} && document.readyState === 'complete'")

    def run(self, script: str) -> Any:
        """Return the value of a JavaScript expression."""
        told = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    def wait(self, script: str, seconds: float = SECONDS) -> Any:
        """Wait until a JavaScript expression is true; return its value."""
        deadline = time.monotonic() + seconds
        while not (value := self.run(script)):
            assert time.monotonic() < deadline, f"not true: {script}"
            self._loop.run_until_complete(asyncio.sleep(0.05))
        return value

    def text(self, selector: str) -> str:
        """Return the text of the first element that the selector finds."""
        return str(self.run(f"document.querySelector({json.dumps(selector)}).innerText"))

    def press(self, key: str) -> None:
        """Press a key and release it."""
        text = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            words = text if kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, **words)

    def hover(self, x: float, y: float) -> None:
        """Move the mouse to a place of the window."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def resize(self, width: int, height: int = 900, *, dark: bool = False) -> None:
        """Set the size of the window, and the scheme of colours that its user prefers."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def picture(self, path: Path, width: int, height: int) -> None:
        """Write a PNG of the upper part of the page."""
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        told = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(told["data"]))

    def close(self) -> None:
        """End the browser."""
        if hasattr(self, "_socket"):
            self._loop.run_until_complete(self._socket.close())
        if hasattr(self, "_session"):
            self._loop.run_until_complete(self._session.close())
        self._loop.close()
        self._process.terminate()
        self._process.wait(SECONDS)
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

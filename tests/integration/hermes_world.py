"""What hermes-agent's tools meet in tests: search and extraction services, skills, a browser."""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

DATA = Path(__file__).parents[1] / "data" / "hermes_agent"
MARK = {"RL_TEST_WORLD": os.environ.get("RL_TEST_WORLD") or uuid.uuid4().hex}
"""In the environment of everything that a test starts: other test runs on this machine have
processes with the same command lines."""
PUBLIC = "http://93.184.216.34"
"""An address outside every private range, so that no name is looked up. Nobody connects to it."""


class Services:
    """SearXNG, Tavily and an OpenAI-compatible vision model, as far as the tools use them.

    The query ``sleep:2 words`` is answered after 2 s, or when ``awake`` is set; ``words`` are its
    only result.

    Attributes:
        url: Where they listen.
        busiest: Most searches answered at the same time.
        queries: Every query that came, in order.
        images: Bytes of the data URLs that the vision model was shown.
    """

    def __init__(self) -> None:
        self.url = ""
        self.busiest = 0
        self.queries: list[str] = []
        self.images: list[str] = []
        self.pages: dict[str, str] = {}
        self.awake = threading.Event()
        self._busy = 0
        self._lock = threading.Lock()

    def search(self, query: str) -> dict[str, Any]:
        with self._lock:
            self.queries.append(query)
            self._busy += 1
            self.busiest = max(self.busiest, self._busy)
        try:
            if query.startswith("sleep:"):
                self.awake.wait(float(query.split()[0].removeprefix("sleep:")))
        finally:
            with self._lock:
                self._busy -= 1
        title = query.partition(" ")[2] or query
        return {"results": [{"title": title, "url": f"{PUBLIC}/", "content": "", "score": 1}]}

    def extract(self, request: dict[str, Any]) -> dict[str, Any]:
        pages = [{"url": url, "raw_content": self.pages.get(url, "")} for url in request["urls"]]
        return {"results": pages, "failed_results": []}

    def look(self, request: dict[str, Any]) -> dict[str, Any]:
        for message in request["messages"]:
            for part in message["content"] if isinstance(message["content"], list) else ():
                if part["type"] == "image_url":
                    self.images.append(part["image_url"]["url"])
        message = {"role": "assistant", "content": f"image number {len(self.images)}"}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return {"id": "x", "object": "chat.completion", "model": "m", "choices": [choice]}


@contextmanager
def services() -> Iterator[Services]:
    """Serve on loopback."""
    world = Services()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.answer(world.search(parse_qs(urlsplit(self.path).query)["q"][0]))

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            act = world.look if "completions" in self.path else world.extract
            self.answer(act(request))

        def answer(self, value: dict[str, Any]) -> None:
            body = json.dumps(value).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 256

        def handle_error(self, *_: Any) -> None:
            """A client that went away is no news."""

    server = Server(("127.0.0.1", 0), Handler)
    world.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, name="services")
    thread.start()
    try:
        yield world
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def environment(world: Services) -> dict[str, str]:
    """Return the variables by which the tools find the services and the browser."""
    browser = DATA / "agent-browser"
    return MARK | {
        "SEARXNG_URL": world.url,
        "TAVILY_API_KEY": "none-needed",
        "TAVILY_BASE_URL": world.url,
        "AGENT_BROWSER_EXECUTABLE_PATH": str(browser / "agent-browser"),
        "PATH": f"{browser}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "NO_PROXY": "127.0.0.1",
    }


def hermes_home(directory: Path, world: Services) -> Path:
    """Make a directory for ``legacy_home``: a configuration and a skill."""
    home = directory / "hermes-home"
    shutil.copytree(DATA / "skills", home / "skills")
    vision = {"base_url": f"{world.url}/v1", "api_key": "none-needed", "model": "m"}
    config = {
        "web": {"search_backend": "searxng", "extract_backend": "tavily"},
        "auxiliary": {"vision": {"provider": "custom", **vision}},
        "browser": {"cdp_url": "http://127.0.0.1:1"},
    }
    (home / "config.yaml").write_text(yaml.safe_dump(config))
    return home


def processes(word: str) -> list[int]:
    """Return the processes of this test run whose command line holds ``word``."""
    mark = MARK["RL_TEST_WORLD"].encode()
    found = []
    for entry in Path("/proc").iterdir():
        try:
            is_meant = entry.name.isdigit() and word.encode() in (entry / "cmdline").read_bytes()
            if is_meant and mark in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return [pid for pid in found if pid != os.getpid()]


def parent(pid: int) -> int:
    """Return the process that a process is a child of."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def titles(results: list[str]) -> Counter[str]:
    """Return the titles that searches found."""
    return Counter(page["title"] for text in results for page in json.loads(text)["data"]["web"])

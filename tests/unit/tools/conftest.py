"""Real sandboxes of the local backend for the tests of the tools."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
import pytest_asyncio

from hermes_rl.sandbox import Backend, BackendSettings, Sandbox, SandboxSpec, open_backend
from hermes_rl.testing.hosting import hosted
from hermes_rl.tools import NATIVE_TOOLS, ToolDispatcher

Call = Callable[..., Awaitable[dict[str, Any]]]


@pytest_asyncio.fixture
async def backend(tmp_path: Path) -> AsyncIterator[Backend]:
    settings = BackendSettings(run_id=f"tools-{tmp_path.name}", cache_dir=tmp_path / "cache")
    async with hosted(open_backend("local", settings)) as opened:
        yield opened


@pytest_asyncio.fixture
async def sandbox(backend: Backend) -> AsyncIterator[Sandbox]:
    created = await backend.create(SandboxSpec())
    yield created
    await created.close()


@pytest_asyncio.fixture
async def tools(sandbox: Sandbox) -> AsyncIterator[ToolDispatcher]:
    dispatcher = ToolDispatcher(sandbox, list(NATIVE_TOOLS))
    yield dispatcher
    await dispatcher.aclose()


def caller(dispatcher: ToolDispatcher) -> Call:
    """Return what calls a tool with keyword arguments and decodes its JSON."""

    async def call(name: str, **arguments: Any) -> dict[str, Any]:
        result = await dispatcher.call(name, orjson.dumps(arguments).decode(), "call")
        assert isinstance(result.content, str)
        return orjson.loads(result.content)

    return call


@pytest.fixture
def call(tools: ToolDispatcher) -> Call:
    return caller(tools)


@pytest.fixture
def call_with() -> Callable[[ToolDispatcher], Call]:
    return caller

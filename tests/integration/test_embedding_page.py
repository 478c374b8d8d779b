"""Every example of docs/embedding.md runs, in the order of the page."""

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from hermes_rl.testing.leaks import leak_census
from hermes_rl.testing.model_server import always, say, serve_model

PAGE = Path(__file__).parents[2] / "docs" / "embedding.md"
EXAMPLE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


async def _run(code: str, names: dict[str, Any]) -> None:
    compiled = compile(code, str(PAGE), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    pending = eval(compiled, names)
    if inspect.isawaitable(pending):
        await pending


async def test_every_example_runs_and_leaves_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    examples = EXAMPLE.findall(PAGE.read_text())
    assert len(examples) == 4
    async with serve_model(always(say("It is 4."))) as server, leak_census():
        names: dict[str, Any] = {"__name__": "example"}
        for example in examples:
            await _run(example.replace("https://models.example/v1", server.base_url), names)
        assert len(server.requests) == 3 + 1
    good = "{'status': 'finished', 'score': 1.0, 'why': None}"
    assert capsys.readouterr().out.splitlines() == [
        f"[{good}, {good}, {good}]",
        good,
        good,
        "hello",
        "",
        "finished 4",
    ]

"""What the embedded model reads before every conversation: its tools, and how to use them.

The conversations are chosen by measurement (docs/embedded-model.md): which wording, which kinds,
in which order. They hold no text, path or number of any task that is bundled with this library;
a test checks it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import orjson

from hermes_rl.types import JSONObject

__all__ = ["CALL_END", "CALL_START", "EXAMPLES", "Example", "preamble"]

CALL_START = "<tool_call>"
CALL_END = "</tool_call>"
EXAMPLE_TOOL = "terminal"


@dataclass(slots=True, frozen=True)
class Example:
    """One finished conversation.

    Attributes:
        request: What the user asks for.
        thought: What the assistant says before it acts: the heart of the command.
        command: What it runs.
        output: What that prints.
    """

    request: str
    thought: str
    command: str
    output: str = ""

    def render(self) -> str:
        """Return the conversation as the transcript has it."""
        command = orjson.dumps(self.command).decode()
        result = orjson.dumps({"output": self.output, "exit_code": 0, "error": None}).decode()
        call = f'{{"name": "{EXAMPLE_TOOL}", "arguments": {{"command": {command}}}}}'
        return (
            f"User: {self.request}\n"
            f"Assistant: {self.thought}\n{CALL_START}\n{call}\n{CALL_END}\n"
            f"Tool: {result}\n"
            "Assistant: Done.\n\n"
        )


EXAMPLES: tuple[Example, ...] = (
    Example(
        "Which .conf files are in /etc?",
        "ls /etc/*.conf",
        "ls /etc/*.conf",
        "/etc/host.conf\n/etc/resolv.conf",
    ),
    Example(
        "Make a file ~/area.txt with the value of 12 * 90",
        "echo $((12 * 90))",
        "echo $((12 * 90)) > ~/area.txt",
    ),
    Example(
        "Make a file ~/fruit.txt that holds exactly: Apples and pears",
        "echo 'Apples and pears'",
        "echo 'Apples and pears' > ~/fruit.txt",
    ),
    Example(
        "Make a file ~/bill.txt with the value of 811 + 64",
        "echo $((811 + 64))",
        "echo $((811 + 64)) > ~/bill.txt",
    ),
    Example(
        "Make a file ~/range.txt with the numbers 20 to 24, each on its own line",
        "seq 20 24",
        "seq 20 24 > ~/range.txt",
    ),
    Example(
        "Make a file ~/poem.txt that holds exactly: Roses are red",
        "echo 'Roses are red'",
        "echo 'Roses are red' > ~/poem.txt",
    ),
    Example(
        "Make a file ~/steps.txt with the numbers 31 to 38, each on its own line",
        "seq 31 38",
        "seq 31 38 > ~/steps.txt",
    ),
)


def preamble(tools: Sequence[JSONObject]) -> str:
    """Return the text before the first message.

    Args:
        tools: Schemas in OpenAI form. Without ``terminal`` among them there are no examples: they
            would teach a tool that is not there.
    """
    names = [tool["function"]["name"] for tool in tools]
    head = "".join(f"{_signature(tool['function'])}\n" for tool in tools)
    head = f"Tools:\n{head}\n" if head else ""
    return head + (_examples() if EXAMPLE_TOOL in names else "")


@cache
def _examples() -> str:
    return "".join(example.render() for example in EXAMPLES)


def _signature(function: JSONObject) -> str:
    required = function.get("parameters", {}).get("required", [])
    return f"{function['name']}({', '.join(required)})"

"""What the embedded model reads before every conversation: its tools, and how to use them.

Which wording, which kinds and which order was chosen by measuring. They hold no text, path or
number of any task that is bundled with this library; a test checks it.
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
        "Make a file ~/range.txt with the numbers 40 to 44, each on its own line",
        "seq 40 44",
        "seq 40 44 > ~/range.txt",
    ),
    Example(
        "Make a file ~/fruit.txt that holds exactly: Apples and pears",
        "printf 'Apples and pears'",
        "printf 'Apples and pears' > ~/fruit.txt",
    ),
    Example(
        "How many users does this machine know?",
        "wc -l",
        "wc -l /etc/passwd",
        "29 /etc/passwd",
    ),
    Example(
        "Make a file ~/steps.txt with the numbers 31 to 36, each on its own line",
        "seq 31 36",
        "seq 31 36 > ~/steps.txt",
    ),
    Example(
        "Compute 95 + 707 and put the result into ~/budget.txt",
        "echo $((95 + 707))",
        "echo $((95 + 707)) > ~/budget.txt",
    ),
    Example(
        "Make a file ~/poem.txt that holds exactly: Roses are red",
        "printf 'Roses are red'",
        "printf 'Roses are red' > ~/poem.txt",
    ),
    Example(
        "Compute 811 + 64 and put the result into ~/bill.txt",
        "echo $((811 + 64))",
        "echo $((811 + 64)) > ~/bill.txt",
    ),
    Example(
        "Compute 31 * 90 and put the result into ~/area.txt",
        "echo $((31 * 90))",
        "echo $((31 * 90)) > ~/area.txt",
    ),
    Example(
        "Make a file ~/lines.txt with the numbers 57 to 65, each on its own line",
        "seq 57 65",
        "seq 57 65 > ~/lines.txt",
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

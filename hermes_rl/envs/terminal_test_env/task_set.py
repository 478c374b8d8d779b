"""``terminal-test``: create one small file in the home directory.

Three classic training tasks, one held-out task, and seeded variants of the same four kinds, so
that a rate over them means something. Reward: 1.0 if the file holds exactly what was asked for
(white space at its ends does not count), 0.5 if that is somewhere in it, else 0.0.

``evaluate`` runs all of them. ``--env.task_filter split=train`` (or ``held_out``, ``variants``)
runs one part, ``--env.task_filter category=sum`` one kind, ``--env.seed`` makes other variants.
"""

from __future__ import annotations

import random
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hermes_rl.tasks import Solution
from hermes_rl.types import AgentResult

if TYPE_CHECKING:
    from hermes_rl.context import ToolContext

__all__ = ["FileTask", "TerminalTest"]

VARIANTS_PER_KIND = 12
"""48 variants in all: the 95 % interval of a rate of one half is then about +-0.14."""

_WORDS = [
    "amber",
    "basin",
    "cedar",
    "delta",
    "ember",
    "fjord",
    "glade",
    "harbor",
    "island",
    "jasmine",
    "kestrel",
    "lantern",
    "meadow",
    "nectar",
    "orchid",
    "pebble",
    "quartz",
    "ripple",
    "saffron",
    "tundra",
    "umber",
    "valley",
    "willow",
    "yonder",
    "zephyr",
]
_FILES = [
    "note",
    "label",
    "memo",
    "title",
    "caption",
    "slogan",
    "badge",
    "banner",
    "signal",
    "marker",
    "ticket",
    "record",
]


@dataclass(slots=True, frozen=True, kw_only=True)
class FileTask:
    """Create ``path`` with the text ``expected``."""

    id: str
    prompt: str
    path: str
    expected: str
    metadata: Mapping[str, Any]

    @property
    def solution(self) -> Solution:
        """The command that does it."""
        return Solution(command=f"printf '%s\\n' {shlex.quote(self.expected)} > {self.path}")

    async def reward(self, result: AgentResult, ctx: ToolContext) -> float:
        """Read the file as the agent left it; a missing one scores 0."""
        seen = await ctx.read_file(self.path)
        content = str(seen.get("content") or "").strip()
        if content == self.expected:
            return 1.0
        return 0.5 if self.expected in content else 0.0


class TerminalTest:
    """The task set.

    Args:
        seed: Chooses the variants; the classic tasks do not depend on it.
    """

    name = "terminal-test"

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed

    @property
    def version(self) -> str:
        """Names the variants."""
        return f"1-seed{self._seed}"

    async def load(self) -> Sequence[FileTask]:
        """Return the classic tasks, then the variants kind by kind."""
        return [*_classic(), *_variants(self._seed)]


def _classic() -> list[FileTask]:
    numbers = "\n".join(map(str, range(1, 6)))
    return [
        FileTask(
            id="greeting",
            prompt="Create a file at ~/greeting.txt containing exactly: Hello from Hermes Agent",
            path="~/greeting.txt",
            expected="Hello from Hermes Agent",
            metadata={"split": "train", "category": "text"},
        ),
        FileTask(
            id="count",
            prompt="Create a file at ~/count.txt containing the numbers 1 to 5, one per line",
            path="~/count.txt",
            expected=numbers,
            metadata={"split": "train", "category": "count"},
        ),
        FileTask(
            id="answer",
            prompt="Create a file at ~/answer.txt containing the result of 123 + 456",
            path="~/answer.txt",
            expected="579",
            metadata={"split": "train", "category": "sum"},
        ),
        FileTask(
            id="result",
            prompt="Create a file at ~/result.txt containing the result of 6 * 7",
            path="~/result.txt",
            expected="42",
            metadata={"split": "held_out", "category": "product"},
        ),
    ]


def _text(rng: random.Random) -> tuple[str, str]:
    phrase = " ".join(rng.sample(_WORDS, rng.randint(2, 4))).capitalize()
    return f"containing exactly: {phrase}", phrase


def _count(rng: random.Random) -> tuple[str, str]:
    first, length = rng.randint(1, 20), rng.randint(3, 9)
    last = first + length - 1
    numbers = "\n".join(map(str, range(first, last + 1)))
    return f"containing the numbers {first} to {last}, one per line", numbers


def _sum(rng: random.Random) -> tuple[str, str]:
    left, right = rng.randint(11, 499), rng.randint(11, 499)
    return f"containing the result of {left} + {right}", str(left + right)


def _product(rng: random.Random) -> tuple[str, str]:
    left, right = rng.randint(3, 19), rng.randint(3, 19)
    return f"containing the result of {left} * {right}", str(left * right)


_KINDS: Mapping[str, Callable[[random.Random], tuple[str, str]]] = {
    "text": _text,
    "count": _count,
    "sum": _sum,
    "product": _product,
}


def _variants(seed: int) -> list[FileTask]:
    tasks = []
    for kind, make in _KINDS.items():
        rng = random.Random(f"terminal-test:{seed}:{kind}")
        names = rng.sample(_FILES, VARIANTS_PER_KIND)
        for number, name in enumerate(names, start=1):
            wanted, expected = make(rng)
            path = f"~/{name}-{kind}.txt"
            tasks.append(
                FileTask(
                    id=f"{kind}-{number:02d}",
                    prompt=f"Create a file at {path} {wanted}",
                    path=path,
                    expected=expected,
                    metadata={"split": "variants", "category": kind},
                )
            )
    return tasks

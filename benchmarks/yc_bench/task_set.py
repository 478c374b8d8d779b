"""``yc-bench``: presets x seeds, each a game of a simulated company.

Every rollout has a database of its own in its own sandbox, so games may run at once.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from hermes_rl.benchmarks.yc_bench.package import YCPackage, examine_package, load_package
from hermes_rl.benchmarks.yc_bench.prompt import OPENING, system_prompt
from hermes_rl.benchmarks.yc_bench.score import (
    Books,
    composite_score,
    doubts_about,
    outcome_of,
    read_books,
)
from hermes_rl.benchmarks.yc_bench.settings import (
    AGENT_DEFAULTS,
    DEFAULT_PRESETS,
    DEFAULT_SEEDS,
    YCBenchConfig,
)
from hermes_rl.errors import RewardUnreadable, TaskError, UnknownName
from hermes_rl.loop_limiter import LoopLimiter
from hermes_rl.sandbox import Check
from hermes_rl.tamper import FLAG
from hermes_rl.tasks import Deadlines
from hermes_rl.types import AgentResult, Message, Reward

if TYPE_CHECKING:
    from hermes_rl.context import ToolContext

__all__ = ["Game", "YCBench", "drop_old_turns"]

FOLDER = "~/.yc-bench"
OLDEST_PYTHON = (3, 11)
LARGEST_DATABASE_BYTES = 64 << 20
WAIT_FOR_COMMAND_S = 30
"""For a command in flight to end, before the database is copied as it is."""
SHOWN_TURNS, KEPT_TURNS = 60, 30
"""Above the first number of turns, all but the second are dropped: one fork every 30 turns."""
DEADLINES = Deadlines(setup_s=300, agent_s=4 * 3600, reward_s=120)
"""A game is hundreds of turns of a slow model; the turn limit ends it, not the clock."""
_NOTE = "earlier turns are not shown any more. Your notes: yc-bench scratchpad read)"
_reading = LoopLimiter(4)

_SAY_VERSION = 'import sys; print("%d.%d" % sys.version_info[:2])'
_PREPARE = """\
set -e
cd {folder}
printf %s {preset} > preset
chmod +x bin/yc-bench
python3 unpack.py site.tar.gz site
export PYTHONPATH="$PWD/site" YC_BENCH_EXPERIMENT={preset}
export DATABASE_URL="sqlite:///$PWD/company.db"
python3 bootstrap.py {preset} {seed}
rm bootstrap.py unpack.py site.tar.gz
"""


def drop_old_turns(messages: list[Message]) -> list[Message]:
    """Drop the oldest turns of a long game; what opened it and the latest turns stay."""
    turns = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    if len(turns) <= SHOWN_TURNS:
        return messages
    opening, rest = messages[: turns[0]], messages[turns[-KEPT_TURNS] :]
    before = sum(_dropped(message) for message in opening)
    note: Message = {
        "role": "user",
        "content": f"({before + len(turns) - KEPT_TURNS} {_NOTE}",
    }
    return [*(message for message in opening if not _dropped(message)), note, *rest]


def _dropped(message: Message) -> int:
    """Return how many turns a message says are not shown; 0 if it is no such note."""
    number, _, text = str(message.get("content", "")).removeprefix("(").partition(" ")
    return int(number) if text == _NOTE and number.isdecimal() else 0


@dataclass(slots=True, frozen=True, kw_only=True)
class Game:
    """One game: a preset and a seed."""

    preset: str
    seed: int
    package: YCPackage
    deadlines: Deadlines = DEADLINES

    @property
    def id(self) -> str:
        """Preset and seed."""
        return f"{self.preset}-seed{self.seed}"

    @property
    def prompt(self) -> list[Message]:
        """The rules, then the go."""
        return [
            {"role": "system", "content": system_prompt(self.package, self.preset)},
            {"role": "user", "content": OPENING},
        ]

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Preset, seed and the package's version and hash."""
        return {
            "category": self.preset,
            "seed": self.seed,
            "package": self.package.digest,
            "digest": f"{self.package.digest}:{self.preset}:{self.seed}",
        }

    @property
    def initial_funds_cents(self) -> int:
        """Money at the start."""
        return int(self.package.presets[self.preset]["initial_funds_cents"])

    compact = staticmethod(drop_old_turns)

    async def setup(self, ctx: ToolContext) -> None:
        """Put the package into the sandbox and make the company."""
        found = await ctx.terminal(f"python3 -c '{_SAY_VERSION}'")
        if found["exit_code"]:
            raise TaskError("yc-bench needs python3 in the sandbox; use an image that has it.")
        python = found["output"].strip()
        if tuple(map(int, python.split("."))) < OLDEST_PYTHON:
            raise TaskError(
                f"yc-bench needs Python 3.11 or newer in the sandbox, which has {python}; use an "
                "image that has it."
            )
        package = await load_package(python=python)
        await ctx.terminal(f"mkdir -p {FOLDER}/bin")
        await ctx.sandbox.upload(package.archive, f"{FOLDER}/site.tar.gz")
        source = files("hermes_rl.benchmarks.yc_bench.in_sandbox")
        for name, target in (
            ("bootstrap.py", "bootstrap.py"),
            ("unpack.py", "unpack.py"),
            ("worker.py", "worker.py"),
            ("yc_bench_command.py", "bin/yc-bench"),
        ):
            text = source.joinpath(name).read_text(encoding="utf-8")
            text = f"#!/usr/bin/env python3\n{text}" if target.startswith("bin/") else text
            await ctx.write_file(f"{FOLDER}/{target}", text)
        command = _PREPARE.format(folder=FOLDER, preset=self.preset, seed=self.seed)
        made = await ctx.terminal(command, timeout=120)
        if made["exit_code"]:
            raise TaskError(f"The company could not be made: {made['output'][-1000:]}")
        await ctx.terminal(f'export PATH="$(cd {FOLDER} && pwd)/bin:$PATH"', session="agent")

    async def reward(self, result: AgentResult, ctx: ToolContext) -> Reward:
        """Read the company's books, as of its last finished command.

        The company was there when the agent began: books that are gone or unreadable now are its
        doing, and score 0.
        """
        await ctx.terminal(f"rm -f {FOLDER}/worker.sock")
        with tempfile.TemporaryDirectory(prefix="yc-bench-") as folder:
            local = Path(folder) / "company.db"
            problem = await _fetch(ctx, local)
            try:
                if problem:
                    raise RewardUnreadable(f"The company's database is gone: {problem}")
                books = await anyio.to_thread.run_sync(read_books, local, limiter=_reading)
            except RewardUnreadable as error:
                return Reward(0.0, evidence={"outcome": "destroyed", "problem": str(error)})
        return self.reward_of(books)

    def reward_of(self, books: Books) -> Reward:
        """Return the score with its evidence; books that the game did not write are flagged."""
        evidence = {
            "outcome": outcome_of(books),
            "funds_cents": books.funds_cents,
            "initial_funds_cents": self.initial_funds_cents,
            "sim_time": books.sim_time.isoformat(),
            "horizon_end": books.horizon_end.isoformat(),
            "tasks": books.tasks,
        }
        facts = self.package.presets[self.preset]
        doubts = doubts_about(
            books,
            initial_funds_cents=self.initial_funds_cents,
            start_date=str(facts["start_date"]),
            horizon_years=int(facts["horizon_years"]),
        )
        score = composite_score(books, self.initial_funds_cents)
        return Reward(score, evidence=evidence, flags=tuple(f"{FLAG}: {doubt}" for doubt in doubts))


async def _examine_python() -> Check:
    """Look at what local sandboxes have; images of other backends need the same."""
    oldest = ".".join(map(str, OLDEST_PYTHON))
    fix = f"Install Python {oldest} or newer as python3, or use an image that has it."
    try:
        done = await anyio.run_process(["python3", "-c", _SAY_VERSION], check=False)
        found = done.stdout.decode().strip()
    except OSError:
        found = ""
    is_new = bool(found) and tuple(map(int, found.split("."))) >= OLDEST_PYTHON
    detail = f"{found or 'none'}; images of other backends need {oldest} or newer as well"
    return Check("python3 of local sandboxes", is_new, detail, fix, optional=True)


async def _fetch(ctx: ToolContext, local: Path) -> str:
    """Copy the database to this machine; return what is in the way, "" if it is here."""
    source = files("hermes_rl.benchmarks.yc_bench.in_sandbox").joinpath("close_books.py")
    script = source.read_text(encoding="utf-8")
    closed = f"{FOLDER}/closed.db"
    # By standard input: nothing in the folder has to be as it was.
    arguments = f"{FOLDER}/company.db {closed} {WAIT_FOR_COMMAND_S}"
    command = f"python3 - {arguments} <<'CLOSE_BOOKS'\n{script}\nCLOSE_BOOKS"
    done = await ctx.terminal(command, timeout=2 * WAIT_FOR_COMMAND_S + 5)
    remote = f"{FOLDER}/company.db" if done["exit_code"] else closed
    got = await ctx.download_file(remote, local)
    if not got.get("success"):
        return str(got.get("error"))
    if int(got["bytes"]) > LARGEST_DATABASE_BYTES:
        return "it is larger than any game makes it."
    return ""


class YCBench:
    """The task set.

    Args:
        presets: Presets of the package; None = fast_test, medium, hard.
        seeds: Seeds of each; None = 1, 2, 3.
    """

    name = "yc-bench"
    env_config_cls = YCBenchConfig

    def __init__(
        self, presets: Sequence[str] | None = None, seeds: Sequence[int] | None = None
    ) -> None:
        self._presets = tuple(presets or DEFAULT_PRESETS)
        self._seeds = tuple(seeds or DEFAULT_SEEDS)

    @classmethod
    def config_init(cls) -> YCBenchConfig:
        """Return the benchmark's settings."""
        return YCBenchConfig(**AGENT_DEFAULTS)

    @property
    def version(self) -> str:
        """Version and hash of the package."""
        from hermes_rl.benchmarks.yc_bench.package import VERSION, WHEEL_SHA256

        return f"{VERSION}+{WHEEL_SHA256[:12]}"

    async def doctor(self) -> Sequence[Check]:
        """Check what games need; changes nothing."""
        return [*examine_package(), await _examine_python()]

    async def load(self) -> Sequence[Game]:
        """Install the package at first use and return the games.

        Raises:
            UnknownName: A preset that the package does not have.
            TaskError: The package cannot be installed.
        """
        package = await load_package()
        for preset in self._presets:
            if preset not in package.presets:
                raise UnknownName.of("yc-bench preset", preset, package.presets)
        return [
            Game(preset=preset, seed=seed, package=package)
            for preset in self._presets
            for seed in self._seeds
        ]

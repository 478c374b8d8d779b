"""``hermes-swe``: write a function; hidden tests run in the same sandbox.

Rows as in ``bigcode/humanevalpack``, whose configurations are languages (``--env.language``:
python, js, java, go, cpp, rust): ``prompt`` (signature and docstring, or the configured field),
``test``, ``entry_point`` and optionally ``task_id``, ``test_setup``, ``declaration``, ``import``,
``canonical_solution``. Of other data sets, the rows whose ``task_id`` begins with a language
(``Java/12``) are in that one, the others in ``language``.

Reward: 1.0 if the tests pass; 0.1 if they do not but the agent wrote a source file in the
language; else 0.0. The tests are written to files in the sandbox only when the agent is done, are
compiled and run there under deadlines of their own, and removed.
"""

from __future__ import annotations

import hashlib
import secrets
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

from hermes_rl.config import AFFECTS_SCORE, ConfigModel, EnvConfig
from hermes_rl.envs.dataset import examine_data_set, load_rows, require_columns, tasks_of
from hermes_rl.envs.hermes_swe_env.languages import (
    LANGUAGES,
    HiddenTest,
    Language,
    TestSource,
    language_of,
)
from hermes_rl.errors import ConfigError, RewardError, TaskError, Unsupported
from hermes_rl.sandbox import Check
from hermes_rl.tasks import Deadlines, Solution
from hermes_rl.types import AgentResult, Reward

if TYPE_CHECKING:
    from hermes_rl.context import ToolContext

__all__ = ["DATASET", "HermesSwe", "LanguageField", "SweConfig", "SweTask", "row_id", "swe_task"]

DATASET = "bigcode/humanevalpack"
PARTIAL = 0.1
BUILD_S = 300.0
"""Seconds to compile the tests; beyond that the machine is at fault, not the solution."""
TEST_S = 60.0
"""Seconds for the hidden tests; those of the default data set take under one."""
SHOWN_CHARACTERS = 2000
"""Of the tests' output, kept as evidence."""
_STARTED = "~/.hermes_swe_started"
"""Older than all that the agent makes."""
_INSTRUCTION = """\
Write the {title} function described below to the file ~/{file} (in your home directory), together \
with the imports and helpers that are shown with it; more helpers are fine. {advice} Try it on a \
few examples of your own before you finish.

{prompt}
"""


class LanguageField(ConfigModel):
    """What both configurations of ``hermes-swe`` have beside the usual."""

    language: Annotated[Literal["python", "js", "java", "go", "cpp", "rust"], AFFECTS_SCORE] = (
        "python"
    )
    """Language of the tasks; of the default data set, the configuration to load."""


class SweConfig(LanguageField, EnvConfig):
    """For ``evaluate``."""


@dataclass(slots=True, frozen=True, kw_only=True)
class SweTask:
    """Write a function so that hidden tests pass."""

    id: str
    prompt: str
    language: Language
    test: TestSource
    reference: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def solution(self) -> Solution | None:
        """The data set's own solution, if it has one."""
        if self.reference is None:
            return None
        return Solution(command=f"printf %s {shlex.quote(self.reference)} > ~/{self.language.file}")

    @property
    def deadlines(self) -> Deadlines:
        """The tests' own; compiling them comes on top."""
        return Deadlines(reward_s=TEST_S, reward_margin_s=BUILD_S + 60)

    async def setup(self, ctx: ToolContext) -> None:
        """See that the sandbox can run the tests, before a token is spent.

        Raises:
            ConfigError: It lacks the language's tools; no other sandbox will have them.
            Unsupported: The tests need more than the language brings: the task is skipped.
        """
        for tool, question in self.language.tools.items():
            answer = await ctx.terminal(f"{question} && touch {_STARTED}")
            if answer["exit_code"]:
                raise ConfigError(
                    f"The sandbox has no {tool} that works, and {self.language.title} tasks need "
                    "it: give an image that has it (--env.terminal_image), or another "
                    f"--env.language. {answer['output'].strip()[:SHOWN_CHARACTERS]}".strip()
                )
        need = self.language.needs(self.test)
        if need and (need.check is None or (await ctx.terminal(need.check))["exit_code"]):
            raise Unsupported(f"The hidden tests of {self.id} need {need.what}.")

    async def reward(self, result: AgentResult, ctx: ToolContext) -> Reward:
        """Run the hidden tests on a copy of the agent's file.

        Raises:
            RewardError: The tests could not be written, or not be compiled in time.
        """
        seen = await ctx.read_file(f"~/{self.language.file}")
        if seen.get("error"):
            return await self._without_file(ctx, str(seen["error"]))
        word = f"passed-{secrets.token_hex(8)}"
        test = self.language.hidden_test(self.test, str(seen["content"]), word)
        # A directory of its own: nothing the agent left beside its file is seen by the tests.
        folder = await self._folder(ctx)
        try:
            await self._write(ctx, folder, test)
            return await self._run(ctx, shlex.quote(folder), test, word)
        finally:
            await ctx.terminal(f"rm -rf {shlex.quote(folder)}")

    async def _without_file(self, ctx: ToolContext, problem: str) -> Reward:
        other = await ctx.terminal(
            f"find ~ -maxdepth 4 -type f -name '*{self.language.suffix}' "
            f"-not -path '*/.*' -newer {_STARTED} | head -n 1"
        )
        if other["exit_code"] or not other["output"].strip():
            return Reward(0.0, evidence={"file": "missing", "problem": problem})
        path = other["output"].strip()
        return Reward(PARTIAL, evidence={"file": "unusable", "path": path, "problem": problem})

    async def _folder(self, ctx: ToolContext) -> str:
        """Make the directory of the tests, with a copy of the agent's file; return its name."""
        made = await ctx.terminal(f"d=$(mktemp -d) && cp ~/{self.language.file} $d/ && echo $d")
        if made["exit_code"]:
            raise RewardError(f"The hidden tests could not be written: {made['output']}")
        return str(made["output"]).strip()

    async def _write(self, ctx: ToolContext, folder: str, test: HiddenTest) -> None:
        for name, content in test.files.items():
            written = await ctx.write_file(f"{folder}/{name}", content)
            if written.get("error"):
                raise RewardError(f"The hidden tests could not be written: {written['error']}")

    async def _run(self, ctx: ToolContext, folder: str, test: HiddenTest, word: str) -> Reward:
        if test.build is not None:
            built = await ctx.terminal(f"cd {folder} && {test.build}", timeout=BUILD_S)
            if built["exit_code"] == 124:
                raise RewardError(f"The hidden tests were not compiled within {BUILD_S:g} s.")
            if built["exit_code"]:
                return _reward(False, "compile", built)
        limit_s = TEST_S if ctx.limit_s is None else ctx.limit_s
        run = await ctx.terminal(f"cd {folder} && {test.run}", timeout=limit_s)
        return _reward(run["exit_code"] == 0 and word in run["output"], "run", run)


def _reward(has_passed: bool, step: str, ran: Mapping[str, Any]) -> Reward:
    output = str(ran["output"])[-SHOWN_CHARACTERS:]
    evidence = {"step": step, "exit_code": ran["exit_code"], "output": output}
    return Reward(1.0 if has_passed else PARTIAL, evidence=evidence)


def swe_task(
    row: Mapping[str, Any],
    index: int,
    prompt_field: str = "prompt",
    language: Language = LANGUAGES["python"],
) -> SweTask:
    """Return a row of the data set as a task.

    Args:
        row: The row.
        index: Its place, which makes the id of a row that has none.
        prompt_field: Column of the prompt.
        language: Of rows whose id names none.

    Raises:
        TaskError: The prompt or the test is no text, or empty; names the row and the column.
    """
    for column in (prompt_field, "test"):
        if not isinstance(row.get(column), str) or not row[column].strip():
            raise TaskError(f"{row_id(row, index)}, {column}: it must be text that is not empty.")
    language = language_of(str(row.get("task_id") or "")) or language
    test = TestSource(
        code=row["test"],
        setup=row.get("test_setup") or "",
        declaration=row.get("declaration") or row[prompt_field],
        entry_point=row.get("entry_point") or None,
    )
    body = row.get("canonical_solution")
    facts = {"language": language.name, "digest": _digest(row[prompt_field], test)}
    return SweTask(
        id=row_id(row, index),
        prompt=_INSTRUCTION.format(
            title=language.title,
            file=language.file,
            advice=language.advice,
            prompt=language.shown(row[prompt_field]),
        ),
        language=language,
        test=test,
        reference=language.solution(test.declaration, row[prompt_field], body) if body else None,
        metadata=facts | ({"split": row["split"]} if row.get("split") else {}),
    )


def row_id(row: Mapping[str, Any], index: int) -> str:
    """Return the id of a row's task."""
    return str(row.get("task_id") or f"swe-{index:04d}").replace("/", "-")


def _digest(prompt: str, test: TestSource) -> str:
    parts = [prompt, test.setup, test.code, test.declaration, test.entry_point or ""]
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()


class HermesSwe:
    """The task set.

    Args:
        dataset_name: Hub name, local file or directory; None = the default data set.
        dataset_split: Its split; None = ``test`` of the default data set, ``train`` of others.
        prompt_field: Column of the prompt.
        language: Of the default data set's rows, and of others that name none.
    """

    name = "hermes-swe"
    env_config_cls = SweConfig

    def __init__(
        self,
        dataset_name: str | None = None,
        dataset_split: str | None = None,
        prompt_field: str = "prompt",
        language: str = "python",
    ) -> None:
        self._dataset = dataset_name or DATASET
        self._is_default = self._dataset.partition("@")[0] == DATASET  # at any revision
        self._split = dataset_split or ("test" if self._is_default else "train")
        self._prompt_field = prompt_field
        self._language = LANGUAGES[language]

    async def doctor(self) -> Sequence[Check]:
        """Check what loading the tasks needs; changes nothing."""
        return [examine_data_set(self._dataset)]

    async def load(self) -> Sequence[SweTask]:
        """Load the rows.

        Raises:
            MalformedTasks: Some rows are: all faults.
        """
        config_name = self._language.name if self._is_default else None
        rows = await load_rows(self._dataset, split=self._split, config_name=config_name)
        require_columns(rows, [self._prompt_field, "test"], self._dataset)
        return tasks_of(
            rows,
            lambda row, index: swe_task(row, index, self._prompt_field, self._language),
            row_id=row_id,
        )

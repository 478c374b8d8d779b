"""Which of hermes-agent's tools are usable here, and how to ask it without importing it.

Asking starts a worker process that imports hermes-agent, says what it found and ends: two to four
seconds. So it is asked only where its tools may be wanted, and once for the same settings and
environment variables.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import anyio
import orjson

from hermes_rl.config import AgentFields
from hermes_rl.errors import ConfigError, MissingExtra
from hermes_rl.legacy.process_link import end_process, open_worker, text_of
from hermes_rl.legacy.safety import BY_NAME, KNOWN, OFFERED, refusal
from hermes_rl.legacy.settings import LegacySettings, worker_environment
from hermes_rl.tools.distributions import DISTRIBUTIONS
from hermes_rl.tools.native import NATIVE_TOOLS
from hermes_rl.tools.toolsets import TOOLSETS, Availability, toolset_tools
from hermes_rl.types import JSONObject

__all__ = [
    "NOTHING",
    "Catalog",
    "ask",
    "ask_blocking",
    "catalog_of",
    "is_wanted",
    "read_answer",
    "survey_questions",
]

ASK_TIMEOUT_S = 120.0
"""Importing hermes-agent for the first time compiles 800 modules."""
_MAX_ANSWERS = 8
_Key = tuple[LegacySettings, frozenset[tuple[str, str]]]
_answers: dict[_Key, Catalog] = {}


@dataclass(slots=True, frozen=True, kw_only=True)
class Catalog:
    """What was found.

    Attributes:
        version: Of hermes-agent; None = there is none.
        schemas: Usable tools that may be called, in OpenAI form, by name.
        toolsets: Toolsets of plug-ins: names of tools that this library has no table entry for.
        requirements: Tool -> what it would need, as far as hermes-agent says so.
    """

    version: str | None = None
    schemas: Mapping[str, JSONObject] = field(default_factory=lambda: MappingProxyType({}))
    toolsets: Mapping[str, Sequence[str]] = field(default_factory=lambda: MappingProxyType({}))
    requirements: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def availability(self) -> Availability:
        """What :func:`~hermes_rl.tools.resolve_toolsets` needs to know."""
        return Availability(
            offered=OFFERED & self.schemas.keys(),
            by_name=frozenset(self.schemas) - OFFERED,
            toolsets=self.toolsets,
            why_not=self._why_not,
        )

    def _why_not(self, names: Collection[str]) -> str:
        """Say why none of ``names`` is usable, and what to do."""
        refused = [reason for name in sorted(names) if (reason := refusal(name))]
        if len(refused) == len(names):
            return " ".join(refused)
        if self.version is None:
            return (
                "hermes-agent, which has them, is not installed: pip install 'hermes_rl[hermes]', "
                "or install hermes-agent in an environment of its own and set legacy_python."
            )
        needs = sorted({f"{needs}" for name in names if (needs := self.requirements.get(name))})
        return (
            f"hermes-agent {self.version} is there (the extra 'hermes_rl[hermes]'), but what they "
            f"need is not: {'; '.join(needs) or 'API keys or programs that its docs name'}."
        )


NOTHING = Catalog()
"""There is no hermes-agent, or nobody asked."""


def is_wanted(config: AgentFields) -> bool:
    """Say whether a configuration may use tools of hermes-agent."""
    named: Collection[str] | None = config.enabled_toolsets
    if config.distribution is not None:
        named = DISTRIBUTIONS.get(config.distribution, ())
    if named is None:
        return True
    return any(name not in TOOLSETS or toolset_tools(name) - NATIVE_TOOLS.keys() for name in named)


async def catalog_of(config: AgentFields) -> Catalog:
    """Return what a configuration may use; starts nothing where nothing is wanted.

    Raises:
        ConfigError: hermes-agent is there but cannot be used; says why.
    """
    settings = LegacySettings.of(config)
    if not settings.is_present or not is_wanted(config):
        return NOTHING
    if settings.workers == 0:
        from hermes_rl.legacy.in_process import survey

        return read_answer(await survey(settings, survey_questions()))
    return await ask(settings)


async def ask(settings: LegacySettings) -> Catalog:
    """Ask a worker process. Cancelling ends it.

    Raises:
        ConfigError: hermes-agent cannot be imported there, or does not answer in time.
    """
    key = _key(settings)
    if key not in _answers:
        process = await open_worker(settings.command("probe", **survey_questions()))
        try:
            with anyio.move_on_after(ASK_TIMEOUT_S):
                answer = await text_of(process.stdout)
                _remember(key, _catalog(settings, answer, await text_of(process.stderr)))
        finally:
            await end_process(process, grace_s=0.0)
    if key not in _answers:
        raise _too_late(settings)
    return _answers[key]


def ask_blocking(settings: LegacySettings) -> Catalog:
    """The same for code outside an event loop.

    Raises:
        ConfigError: See :func:`ask`.
    """
    key = _key(settings)
    if key not in _answers:
        # Standard input stays open: its end would tell the worker that nobody is there any more.
        theirs, ours = os.pipe()
        try:
            process = subprocess.Popen(
                settings.command("probe", **survey_questions()),
                stdin=theirs,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=worker_environment(),
                start_new_session=True,
                text=True,
            )
            with process:
                answer, complaint = _communicate(process, settings)
        finally:
            os.close(theirs)
            os.close(ours)
        _remember(key, _catalog(settings, answer, complaint))
    return _answers[key]


def _communicate(process: subprocess.Popen[str], settings: LegacySettings) -> tuple[str, str]:
    try:
        return process.communicate(timeout=ASK_TIMEOUT_S)
    except BaseException as error:
        process.terminate()
        if isinstance(error, subprocess.TimeoutExpired):
            raise _too_late(settings) from None
        raise


def survey_questions() -> JSONObject:
    """Return what a worker is asked about hermes-agent's tools."""
    return {"known": sorted(KNOWN), "wanted": sorted({*OFFERED, *BY_NAME})}


def _key(settings: LegacySettings) -> _Key:
    return settings, frozenset(os.environ.items())


def _remember(key: _Key, catalog: Catalog) -> None:
    if len(_answers) >= _MAX_ANSWERS:
        _answers.pop(next(iter(_answers)))
    _answers[key] = catalog


def _catalog(settings: LegacySettings, answer: str, complaint: str) -> Catalog:
    try:
        value = orjson.loads(answer)
    except orjson.JSONDecodeError:
        value = {"error": complaint.strip() or "it ended at once"}
    if "error" in value:
        raise unusable(settings, value["error"])
    return read_answer(value)


def read_answer(answer: Mapping[str, Any]) -> Catalog:
    """Return what a worker said that there is."""
    schemas = {schema["function"]["name"]: schema for schema in answer["definitions"]}
    return Catalog(
        version=answer["version"],
        schemas=MappingProxyType(schemas),
        toolsets=MappingProxyType(answer["toolsets"]),
        requirements=MappingProxyType(answer["requirements"]),
    )


def unusable(settings: LegacySettings, reason: str) -> ConfigError:
    """Return the error of a hermes-agent that is there but does not work."""
    where = settings.python or "this environment"
    if settings.python is None and "not installed" in reason:
        return MissingExtra.of("A toolset of hermes-agent", "hermes")
    return ConfigError(
        f"The tools of hermes-agent in {where} cannot be used: {reason}. Name toolsets that do "
        "not need it (enabled_toolsets terminal,file), or repair it: pip install "
        "hermes-agent==0.19.0"
    )


def _too_late(settings: LegacySettings) -> ConfigError:
    return unusable(settings, f"it did not answer within {ASK_TIMEOUT_S:g} s")

"""How hermes-agent's tools are run, taken from a configuration."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import sys
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Self

import orjson

from hermes_rl.config import AgentFields
from hermes_rl.errors import ConfigError
from hermes_rl.types import JSONObject

__all__ = ["LegacySettings", "is_installed_here", "worker_environment"]

DISTRIBUTION = "hermes-agent"


def is_installed_here() -> bool:
    """Say whether hermes-agent is installed for this interpreter, without importing it."""
    try:
        importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


@dataclass(slots=True, frozen=True, kw_only=True)
class LegacySettings:
    """See the fields of the same names in :class:`hermes_rl.config.AgentFields`.

    Attributes:
        python: Interpreter of the workers; None = this one.
        home: Directory whose config.yaml and skills the tools see; None = neither.
        workers: Worker processes; 0 = threads in this process.
        threads: Of all workers together.
    """

    python: str | None = None
    home: str | None = None
    workers: int = 2
    threads: int = 128

    @classmethod
    def of(cls, config: AgentFields) -> Self:
        """Take the settings from a configuration.

        Raises:
            ConfigError: Thread mode cannot use another interpreter.
        """
        if config.legacy_python is not None and config.legacy_workers == 0:
            raise ConfigError(
                "legacy_workers 0 runs hermes-agent's tools in this process, so legacy_python "
                "cannot be another interpreter. Leave one of the two out."
            )
        return cls(
            python=config.legacy_python,
            home=config.legacy_home,
            workers=min(config.legacy_workers, config.tool_pool_size),
            threads=config.tool_pool_size,
        )

    @property
    def is_present(self) -> bool:
        """Whether there is a hermes-agent to ask: installed here, or an interpreter is named."""
        return self.python is not None or is_installed_here()

    def threads_of(self, worker: int) -> int:
        """Return the threads of one worker; all of them have ``threads`` together."""
        each, more = divmod(self.threads, max(1, self.workers))
        return each + (worker < more)

    def command(self, mode: str, **arguments: object) -> list[str]:
        """Return the command line of a worker.

        Raises:
            ConfigError: The interpreter cannot be run.
        """
        python = sys.executable
        if self.python is not None:
            python = os.path.expanduser(self.python)
            if shutil.which(python) is None:
                raise ConfigError(
                    f"legacy_python {self.python} is no program. Give the python of an "
                    "environment that has hermes-agent: python3 -m venv DIR && "
                    "DIR/bin/pip install hermes-agent==0.19.0"
                )
        program = Path(str(files("hermes_rl.legacy") / "in_worker"))
        home = str(Path(self.home).expanduser().resolve()) if self.home is not None else None
        settings: JSONObject = {"mode": mode, "home": home, **arguments}
        # -P: neither the working directory nor the program's may stand in for its modules.
        return [python, "-P", str(program), orjson.dumps(settings).decode()]


def worker_environment() -> dict[str, str]:
    """Return the variables of a worker: ours, but for what belongs to this interpreter."""
    own = ("PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__")
    return {name: value for name, value in os.environ.items() if name not in own}

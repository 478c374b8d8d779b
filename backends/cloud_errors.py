"""Tables from a vendor's exceptions to ours; each cloud has one, with a test per row."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import anyio

from hermes_rl.errors import HermesRLError, SandboxError

__all__ = ["ErrorTable", "Phase", "Row"]

Phase = Literal["connect", "image", "create", "use"]
"""What was being done: reaching the vendor, making an image, a sandbox, using one."""


@dataclass(slots=True, frozen=True)
class Row:
    """One row: the exception's types, and what else must hold.

    Attributes:
        make: Makes our error from the vendor's.
        types: Any of these.
        phases: Any of these; empty = any.
        text: Searched for in the message, case ignored; "" = any.
    """

    make: Callable[[Exception], HermesRLError]
    types: tuple[type[Exception], ...]
    phases: frozenset[Phase] = frozenset()
    text: str = ""

    def matches(self, phase: Phase, error: Exception) -> bool:
        """Tell whether this row is about ``error``."""
        return (
            isinstance(error, self.types)
            and (not self.phases or phase in self.phases)
            and re.search(self.text, str(error), re.IGNORECASE) is not None
        )


@dataclass(slots=True, frozen=True)
class ErrorTable:
    """The rows of one vendor, read from the top; the first that matches wins.

    Attributes:
        backend: Its registered name.
        rows: The last one must match everything.
    """

    backend: str
    rows: Sequence[Row]

    def error(
        self, error: Exception, phase: Phase, *, sandbox_id: str | None = None
    ) -> HermesRLError:
        """Return our error for the vendor's."""
        row = next(row for row in self.rows if row.matches(phase, error))
        ours = row.make(error)
        if isinstance(ours, SandboxError):
            ours.backend = self.backend
            ours.sandbox_id = sandbox_id
        return ours

    @contextmanager
    def call(
        self, phase: Phase, *, limit_s: float | None, sandbox_id: str | None = None
    ) -> Iterator[None]:
        """Bound a call of the SDK, and raise our error for whatever it raises."""
        try:
            with anyio.fail_after(limit_s):
                yield
        except HermesRLError:
            raise
        except Exception as error:
            raise self.error(error, phase, sandbox_id=sandbox_id) from error

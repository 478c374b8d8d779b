"""Why a sandbox ended, from what the engine reports."""

from __future__ import annotations

import pytest

from hermes_rl.backends.docker_fate import Fate, gone


@pytest.mark.parametrize(
    ("fate", "expired", "cause", "by_agent"),
    [
        (Fate(exit_code=137, out_of_memory=True), False, "oom", True),
        (Fate(out_of_memory=True, removed=True), False, "oom", True),
        (Fate(exit_code=0), True, "expired", False),
        (Fate(exit_code=137, killed_by_order=True), False, "removed", False),
        (Fate(exit_code=137, killed_by_order=True, out_of_memory=True), False, "removed", False),
        (Fate(exit_code=137), False, "killed", False),
        (Fate(exit_code=139), False, "killed", True),
        (Fate(exit_code=0), False, "unknown", False),
        (Fate(exit_code=1), False, "unknown", False),
        (Fate(removed=True), False, "unknown", False),
        # An earlier command was killed for lack of memory; that is not why the sandbox ended.
        (Fate(exit_code=0, out_of_memory=True), False, "unknown", False),
    ],
)
def test_the_cause_and_whose_fault(fate: Fate, expired: bool, cause: str, by_agent: bool) -> None:
    error = gone(fate, sandbox_id="abc", expired=expired)
    assert (error.cause, error.by_agent) == (cause, by_agent)
    assert error.retryable is not by_agent
    assert (error.backend, error.sandbox_id) == ("docker", "abc")

"""What a backend itself promises, beside the sandboxes that it makes."""

from __future__ import annotations

from hermes_rl.sandbox import Backend, BackendLimits, Capability, Check, Sandbox
from hermes_rl.testing.sandbox_conformance.base import ConformanceBase

__all__ = ["BackendConformance"]


class BackendConformance(ConformanceBase):
    """Needs nothing in the sandbox."""

    async def test_backend_says_what_it_is(self, backend: Backend) -> None:
        """Its name, limits and capabilities are there and of the right kind."""
        assert isinstance(backend.name, str)
        assert backend.name
        assert isinstance(backend.limits, BackendLimits)
        assert isinstance(backend.capabilities, frozenset)
        assert all(isinstance(entry, Capability) for entry in backend.capabilities)

    async def test_sandbox_says_what_it_can(self, backend: Backend, sandbox: Sandbox) -> None:
        """A sandbox can do what its backend declares; whether it has bash, only it knows."""
        assert isinstance(sandbox.id, str)
        assert sandbox.id
        assert isinstance(sandbox.capabilities, frozenset)
        assert backend.capabilities - sandbox.capabilities <= {Capability.BASH}

    async def test_doctor_answers_with_checks(self, backend: Backend) -> None:
        """Each is a Check with a name; one that failed says what to do."""
        checks = list(await backend.doctor())
        assert all(isinstance(check, Check) for check in checks)
        assert all(check.name for check in checks)
        assert all(check.ok or check.fix or check.detail for check in checks)

    async def test_sweep_spares_what_lives(self, backend: Backend, sandbox: Sandbox) -> None:
        """Only what dead owners left may go."""
        removed = list(await backend.sweep())
        assert sandbox.id not in removed
        assert all(isinstance(entry, str) for entry in removed)
        assert await sandbox.ping() >= 0

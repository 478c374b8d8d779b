"""What carrying the bytes or the vendor could break: see ``cloud_conformance.py``."""

from __future__ import annotations

import pytest

from hermes_rl.errors import SandboxGone
from hermes_rl.sandbox import Backend, Capability, Sandbox
from hermes_rl.testing.sandbox_conformance import (
    ArgvConformance,
    CancellationConformance,
    CapabilityConformance,
    KillConformance,
    LifeConformance,
    StreamConformance,
    TransferConformance,
)

from .cloud_conformance import ABSENT, OnDaytona, OnModal

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("docker_image")]


class CarriedConformance(
    KillConformance,
    CancellationConformance,
    CapabilityConformance,
    ArgvConformance,
    StreamConformance,
    TransferConformance,
    LifeConformance,
):
    """The part of the suite that is run in every test, and what holds on clouds only."""

    async def test_declares_what_the_vendor_has(self, backend: Backend, sandbox: Sandbox) -> None:
        everything = frozenset(Capability) - {Capability.BASH}
        assert backend.capabilities == everything - ABSENT
        assert sandbox.capabilities == backend.capabilities | {Capability.BASH}

    async def test_kill_minus_nine_minus_one(self, fresh: Sandbox) -> None:
        """The supervisor is no PID 1 there: whoever kills everything ends his own sandbox."""
        with pytest.raises(SandboxGone) as caught:
            await fresh.exec("kill -9 -1; sleep 60", timeout_s=60)
        assert (caught.value.cause, caught.value.by_agent) == ("killed", True)


class TestModalConformance(OnModal, CarriedConformance):
    pass


class TestDaytonaConformance(OnDaytona, CarriedConformance):
    pass

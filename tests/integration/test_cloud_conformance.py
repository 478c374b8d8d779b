"""What carrying the bytes or the vendor could break: see ``cloud_conformance.py``."""

from __future__ import annotations

import pytest

from hermes_rl.sandbox import Backend, Capability, Sandbox
from hermes_rl.testing.sandbox_conformance import (
    ArgvConformance,
    BackendConformance,
    CancellationConformance,
    CapabilityConformance,
    LifeConformance,
    StreamConformance,
    TransferConformance,
)

from .cloud_conformance import ABSENT, OnDaytona, OnModal

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("docker_image")]


class CarriedConformance(
    CancellationConformance,
    CapabilityConformance,
    ArgvConformance,
    StreamConformance,
    TransferConformance,
    LifeConformance,
    BackendConformance,
):
    """The part of the suite that is run in every test, and what holds on clouds only."""

    async def test_declares_what_the_vendor_has(self, backend: Backend, sandbox: Sandbox) -> None:
        everything = frozenset(Capability) - {Capability.BASH}
        assert backend.capabilities == everything - ABSENT
        assert sandbox.capabilities == backend.capabilities | {Capability.BASH}


class TestModalConformance(OnModal, CarriedConformance):
    pass


class TestDaytonaConformance(OnDaytona, CarriedConformance):
    pass

"""The conformance suite on the clouds, over loopback servers whose sandboxes are containers.

``test_cloud_conformance.py`` runs what carrying the bytes or the vendor could break. The rest,
which is the outpost's own business and runs on Docker and locally in every test, is run on the
clouds in ``tests/scale/test_clouds.py``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, ClassVar

import pytest
import pytest_asyncio

from hermes_rl.errors import SandboxGone
from hermes_rl.sandbox import Backend, Capability, Sandbox
from hermes_rl.testing.hosting import hosted
from hermes_rl.testing.sandbox_conformance import ConformanceBase

from .clouds import DAYTONA, MODAL, Cloud
from .docker_boxes import TEST_IMAGE, box

ABSENT = frozenset(
    {
        Capability.PIDS_LIMIT,
        Capability.PAUSE,
        Capability.CHANGES,
        Capability.ENGINE_ACCESS,
    }
)


class OnCloud(ConformanceBase):
    """The fixtures, for any part of the suite."""

    cloud: ClassVar[Cloud]
    spec = box(image=TEST_IMAGE, workdir="/work")

    @pytest_asyncio.fixture(scope="class", loop_scope="class")
    @classmethod
    async def server(cls) -> AsyncIterator[Any]:
        async with hosted(cls.cloud.serving(in_containers=True)) as server:
            yield server

    @pytest.fixture(scope="class")
    @classmethod
    def unopened_backend(cls, server: Any) -> Backend:
        return cls.cloud.backend(f"{cls.cloud.name}-conformance")

    async def test_kill_minus_nine_minus_one(self, fresh: Sandbox) -> None:
        """The supervisor is no PID 1 there: whoever kills everything ends his own sandbox."""
        with pytest.raises(SandboxGone) as caught:
            await fresh.exec("kill -9 -1; sleep 60", timeout_s=60)
        assert (caught.value.cause, caught.value.by_agent) == ("killed", True)


class OnModal(OnCloud):
    cloud = MODAL


class OnDaytona(OnCloud):
    cloud = DAYTONA

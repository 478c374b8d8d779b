"""Behaviours every sandbox must show; run by each backend's tests and by plug-in authors.

Subclass :class:`SandboxConformance` in a test module and give it one fixture::

    class TestMine(SandboxConformance):
        @pytest.fixture(scope="class")
        @classmethod
        def unopened_backend(cls):
            return open_backend("mine", BackendSettings(run_id="conformance"))

Every method is one behaviour. One that needs a capability is skipped where the sandbox does not
declare it. An image without a shell gets the parts that need none: argv, streams, files,
transfers, life. Needs pytest-asyncio.
"""

from __future__ import annotations

from hermes_rl.testing.sandbox_conformance.backends import BackendConformance
from hermes_rl.testing.sandbox_conformance.base import ConformanceBase, needs
from hermes_rl.testing.sandbox_conformance.commands import ArgvConformance, CommandConformance
from hermes_rl.testing.sandbox_conformance.files import FileConformance
from hermes_rl.testing.sandbox_conformance.kills import CancellationConformance, KillConformance
from hermes_rl.testing.sandbox_conformance.life import CapabilityConformance, LifeConformance
from hermes_rl.testing.sandbox_conformance.sessions import SessionConformance
from hermes_rl.testing.sandbox_conformance.streams import StreamConformance
from hermes_rl.testing.sandbox_conformance.transfers import TransferConformance

__all__ = [
    "ArgvConformance",
    "BackendConformance",
    "CancellationConformance",
    "CapabilityConformance",
    "CommandConformance",
    "ConformanceBase",
    "FileConformance",
    "KillConformance",
    "LifeConformance",
    "SandboxConformance",
    "SessionConformance",
    "ShelllessConformance",
    "StreamConformance",
    "TransferConformance",
    "needs",
]


class ShelllessConformance(
    ArgvConformance,
    StreamConformance,
    FileConformance,
    TransferConformance,
    LifeConformance,
    BackendConformance,
):
    """What holds in any image, even an empty one."""


class SandboxConformance(
    CommandConformance,
    SessionConformance,
    KillConformance,
    CancellationConformance,
    CapabilityConformance,
    ShelllessConformance,
):
    """The whole suite."""

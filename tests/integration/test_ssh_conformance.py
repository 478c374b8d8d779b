"""The ssh backend against the conformance suite, over a real sshd, without isolation."""

from __future__ import annotations

import sys

import pytest

pytest.importorskip("asyncssh", reason="needs hermes_rl[ssh]")

from hermes_rl.sandbox import Backend, BackendSettings, open_backend
from hermes_rl.testing.sandbox_conformance import SandboxConformance

from .loopback_sshd import Sshd


class TestSSHSandbox(SandboxConformance):
    python = (sys.executable,)

    @pytest.fixture(scope="class")
    @classmethod
    def unopened_backend(cls, sshd: Sshd) -> Backend:
        return open_backend("ssh", BackendSettings(run_id="conformance", options=sshd.options()))

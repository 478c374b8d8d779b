"""The local backend against the conformance suite, and what is its own."""

from __future__ import annotations

import sys

import pytest

from hermes_rl.sandbox import Backend, BackendSettings, open_backend
from hermes_rl.testing.sandbox_conformance import SandboxConformance


class TestLocalSandbox(SandboxConformance):
    python = (sys.executable,)

    @pytest.fixture(scope="class")
    @classmethod
    def unopened_backend(cls) -> Backend:
        return open_backend("local", BackendSettings(run_id="conformance"))

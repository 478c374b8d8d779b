"""Fixtures of the integration tests: an ssh server, and a place for what backends keep."""

from __future__ import annotations

from pathlib import Path

import pytest

from .loopback_sshd import sshd

__all__ = ["cache_dir", "sshd"]


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all tests that take it: our interpreter is built into it once."""
    return tmp_path_factory.mktemp("cache")

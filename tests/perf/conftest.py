"""Gives the perf tests their log."""

from tests.proof import proof, pytest_runtest_makereport

__all__ = ["proof", "pytest_runtest_makereport"]

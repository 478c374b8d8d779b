"""Gives the scale tests their log, and an ssh server."""

from tests.integration.loopback_sshd import sshd
from tests.proof import proof, pytest_runtest_makereport

__all__ = ["proof", "pytest_runtest_makereport", "sshd"]

"""Gives the integration tests an ssh server."""

from .loopback_sshd import sshd

__all__ = ["sshd"]

"""What a sandbox needs is held against what a backend has, before anything is spent."""

from __future__ import annotations

import pytest

from hermes_rl.backends.capability_check import check_capabilities
from hermes_rl.errors import Unsupported
from hermes_rl.sandbox import Capability, Network, SandboxSpec

HAS = frozenset({Capability.IMAGES, Capability.NETWORK_PUBLIC})


def check(spec: SandboxSpec, network: Network | None = None) -> None:
    check_capabilities(spec, HAS, backend="shed", network=network)


def test_what_is_there_passes() -> None:
    check(SandboxSpec(image="x", network="public"))
    check(SandboxSpec(network="public"), network="none")  # the spec's own word counts


def test_everything_that_is_missing_is_named() -> None:
    with pytest.raises(Unsupported, match=r"shed backend.*lacks cpu_limit, users") as caught:
        check(SandboxSpec(image="x", user="nobody", cpus=1))
    assert (caught.value.backend, caught.value.capability) == ("shed", "cpu_limit")


def test_no_network_by_default_is_never_a_network_in_silence() -> None:
    with pytest.raises(Unsupported, match="network_none"):
        check(SandboxSpec(), network="none")


def test_a_shell_that_is_known_to_be_missing_is_refused() -> None:
    with pytest.raises(Unsupported, match="bash"):
        check(SandboxSpec(needs=frozenset({Capability.BASH})))

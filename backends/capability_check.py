"""What a sandbox needs of a backend, held against what the backend has."""

from __future__ import annotations

from hermes_rl.errors import Unsupported
from hermes_rl.sandbox import Capability, Network, SandboxSpec

__all__ = ["check_capabilities"]


def check_capabilities(
    spec: SandboxSpec,
    capabilities: frozenset[Capability],
    *,
    backend: str,
    network: Network | None,
) -> None:
    """Check that a backend can make a sandbox, before anything is spent.

    Args:
        spec: The sandbox.
        capabilities: What the backend has, and what shows only in the sandbox.
        backend: Its name.
        network: What a sandbox gets whose spec names none.

    Raises:
        Unsupported: Something is missing; names it.
    """
    wanted = spec.required_capabilities()
    if network == "none" and spec.network is None:
        wanted |= {Capability.NETWORK_NONE}
    missing = wanted - capabilities
    if missing:
        elsewhere = "" if backend == "docker" else "; the docker backend has most"
        raise Unsupported(
            f"The {backend} backend, as it is set up here, lacks {', '.join(sorted(missing))} "
            f"(docs/backends.md{elsewhere}).",
            capability=min(missing).value,
            backend=backend,
        )

"""Our interpreter on an ssh host: uploaded once, then used by every engine with the same one."""

from __future__ import annotations

import secrets
import shlex
from contextlib import suppress
from pathlib import Path

from hermes_rl.backends.runtime import Runtime
from hermes_rl.backends.shipment import Bundle, InterpreterStock, Shipment
from hermes_rl.backends.ssh_connection import HostConnections

__all__ = ["HostInterpreter"]

DEFAULT_PLACE = '"/tmp/hermes_rl-ssh-$(id -u)"'


class HostInterpreter:
    """Brings our interpreter to one host.

    Args:
        connections: To the host.
        stock: Has the interpreter.
        directory: The backend option.
    """

    def __init__(
        self,
        *,
        connections: HostConnections,
        stock: InterpreterStock,
        directory: str,
    ) -> None:
        self._connections = connections
        self._stock = stock
        self._place = shlex.quote(directory) if directory else DEFAULT_PLACE

    async def bring(self) -> Runtime:
        """Upload it if it is not there, whole; return it as it lies on the host.

        Raises:
            NotTaken: The host does not take it; says why.
            ConfigError: The host is not trusted, or refuses the login.
            BackendUnavailable: It cannot be reached.
        """
        bundle = await self._stock.bundle()
        return Runtime(Path(await self._shipped(bundle)), bundle.runtime.loader)

    async def _shipped(self, bundle: Bundle) -> str:
        mark = f"<{secrets.token_hex(12)}>"
        shipment = Shipment(bundle, [self._place], mark=mark)
        stream = await self._connections.open(shipment.command_line(), mark=mark.encode())
        try:
            with suppress(ConnectionError):  # it may have answered and ended already
                await stream.send(shipment.preamble)
            return await shipment.deliver(stream)
        finally:
            await stream.aclose()

"""Our interpreter on an ssh host: uploaded once, then used by every engine with the same one."""

from __future__ import annotations

import secrets
import shlex
from contextlib import suppress

from hermes_rl.backends.shipment import Bundle, InterpreterStock, NotTaken, Shipment
from hermes_rl.backends.ssh_connection import HostConnections
from hermes_rl.backends.ssh_options import SSHAddress
from hermes_rl.errors import BackendUnavailable, ConfigError

__all__ = ["HostInterpreter"]

DEFAULT_PLACE = '"/tmp/hermes_rl-ssh-$(id -u)"'


class HostInterpreter:
    """Brings our interpreter to one host.

    Args:
        address: The host.
        connections: To it.
        stock: Has the interpreter.
        directory: The backend option.
    """

    def __init__(
        self,
        address: SSHAddress,
        *,
        connections: HostConnections,
        stock: InterpreterStock,
        directory: str,
    ) -> None:
        self._address = address
        self._connections = connections
        self._stock = stock
        self._place = shlex.quote(directory) if directory else DEFAULT_PLACE

    async def bring(self) -> tuple[str, ...]:
        """Upload it if it is not there, whole; return the words that start it.

        Raises:
            ConfigError: The host cannot run it; names what helps.
            BackendUnavailable: The host cannot be reached, or cannot take it now.
        """
        try:
            bundle = await self._stock.bundle()
            directory = await self._shipped(bundle)
        except NotTaken as error:
            text = (
                f"{self._address} has no python3 (3.8 or newer), which the supervisor of its "
                f"sandboxes needs, and ours cannot be used there: {error}. Install python3 there "
                "(apt install python3, dnf install python3), or let the backend option "
                "'directory' name one on a disk with 20 MB to spare that is not mounted noexec."
            )
            if error.is_final:
                raise ConfigError(text) from error
            raise BackendUnavailable(text, backend="ssh") from error
        return tuple(bundle.runtime.interpreter(directory))

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

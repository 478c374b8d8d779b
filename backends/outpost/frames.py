"""Frames on the channel between the engine and an outpost.

A frame is a 9-byte header ``>BII`` (type, id, payload length) and its payload. ``id`` names a
request; replies carry the id of their request. Unknown ids are ignored; an unknown type or a
length above :data:`MAX_PAYLOAD_BYTES` closes the channel, because nothing after it can be trusted.
"""

from __future__ import annotations

import struct

__all__ = ["HEADER", "MAX_PAYLOAD_BYTES", "PROTOCOL_VERSION"]

PROTOCOL_VERSION = 1
HEADER = struct.Struct(">BII")
MAX_PAYLOAD_BYTES = 1 << 20
"""Largest payload; bigger data travels in several frames. Bounds memory against a hostile peer."""

"""Where a process sets the kernel that all sandboxes of a machine share.

Where the machine's root starts a sandbox, root inside is the same user to the kernel, which lets it
write here without any capability. ``core_pattern`` alone would be a way out: it names a program
that the kernel runs, as root and outside. So every sandbox of ours has these read-only.
"""

from __future__ import annotations

__all__ = ["KERNEL_SETTINGS"]

_NAMES = (
    *("acpi", "asound", "bus", "driver", "dynamic_debug", "fs", "irq", "mtrr", "scsi", "sys"),
    "sysrq-trigger",
)
KERNEL_SETTINGS = tuple(f"/proc/{name}" for name in _NAMES)
"""Not every kernel has all of them."""

"""A writable view of an image's files for one sandbox on an ssh host; stdlib only, >= 3.8.

Loaded by ``guard.py`` there; see it.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
from typing import Any

CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWNET = 0x20000, 0x10000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REC, MS_PRIVATE = 1, 2, 4, 8, 16384, 1 << 18
MNT_DETACH = 2
SIOCSIFFLAGS, IFF_UP = 0x8914, 1


def mount_image(top: str, image: dict[str, Any]) -> None:
    """In mounts of our own, put a writable view of the image at ``root``.

    An overlay where the kernel allows it, else a copy. Without a network there is a fresh /sys,
    which shows no devices but our own.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    uid, gid = os.getuid(), os.getgid()
    flags = CLONE_NEWNS | (CLONE_NEWUSER if uid else 0)
    if libc.unshare(flags | (0 if image["has_network"] else CLONE_NEWNET)) != 0:
        raise OSError(f"the host allows no namespaces: {os.strerror(ctypes.get_errno())}")
    if uid:
        for name, text in (("setgroups", "deny"), ("uid_map", "0 %d 1"), ("gid_map", "0 %d 1")):
            number = gid if name == "gid_map" else uid
            with open("/proc/self/" + name, "w") as stream:
                stream.write(text % number if "%" in text else text)

    def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> bool:
        words = [word.encode() for word in (source, target, kind)]
        return bool(libc.mount(*words, ctypes.c_ulong(flags), data.encode() or None) == 0)

    mount("none", "/", "", MS_REC | MS_PRIVATE)
    root = os.path.join(top, "root")
    layers = "lowerdir={},upperdir={},workdir={}".format(
        image["root"],
        os.path.join(top, "upper"),
        os.path.join(top, "work"),
    )
    extra = ",userxattr" if uid else ""
    if not mount("overlay", root, "overlay", 0, layers + extra):
        copy_image(image["root"], root)
    elif os.statvfs(root).f_flag & os.ST_RDONLY:  # what its upper layer cannot be, older ones read
        libc.umount2(root.encode(), MNT_DETACH)
        copy_image(image["root"], root)
    if not image["has_network"]:
        lift_loopback()
    sys_dir = os.path.join(root, "sys")
    os.makedirs(sys_dir, exist_ok=True)
    plain = MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC
    if not mount("sysfs", sys_dir, "sysfs", plain) and not image["has_network"]:
        raise OSError("the host allows no /sys without a network")


def copy_image(source: str, root: str) -> None:
    """Copy an image's files, sharing their blocks where the file system can."""
    words = ["cp", "-a", "--reflink=auto", os.path.join(source, "."), root]
    code = os.spawnvp(os.P_WAIT, words[0], words)
    if code != 0:
        raise OSError(f"the image {source} can be neither overlaid nor copied")


def lift_loopback() -> None:
    """Switch the loopback device on, as a fresh network has it off."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", IFF_UP))

"""Finds where an upload really goes, and makes the directory for it; stdlib only.

    place.py PATH file|directory

Prints ``ROOT KIND DIRECTORY NAME``, separated by NUL: whether the place is on the root file system
(1 or 0), what is there (none, file, directory), the real directory to put into, and the name in it
(empty for a directory's contents). The directory exists afterwards.
"""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Work on ``sys.argv``."""
    path = os.path.realpath(os.fsencode(sys.argv[1]))
    kind = b"none"
    if os.path.lexists(path):
        kind = b"directory" if os.path.isdir(path) else b"file"
    directory, name = (path, b"") if sys.argv[2] == "directory" else os.path.split(path)
    if sys.argv[2] == "directory" and kind == b"file":
        directory, name = os.path.split(path)
    os.makedirs(directory, exist_ok=True)
    on_root = os.stat(directory).st_dev == os.stat("/").st_dev
    fields = (b"%d" % on_root, kind, directory, name)
    sys.stdout.buffer.write(b"\0".join(fields))


if __name__ == "__main__":
    main()

"""Names files that were written since a moment, whatever their size and times say; stdlib only.

    rewritten.py SECONDS PATTERN [TOP]

A container engine tells what differs from the image by size, owner, mode and modification time,
all of which a program can put back. The time of the last change of status it cannot: nobody in a
sandbox may set the clock. Looks at the paths on TOP's file system (default: /) that PATTERN matches
from the start; prints those that are no directory, each ended by a NUL byte.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator


def written_since(since_s: float, pattern: re.Pattern[str], top: str = "/") -> Iterator[str]:
    """Yield matching paths below ``top``; what cannot be read is passed over."""
    device = os.lstat(top).st_dev
    pending = [top]
    while pending:
        try:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    is_directory = entry.is_dir(follow_symlinks=False)
                    if not is_directory and not pattern.match(entry.path):
                        continue
                    try:
                        status = entry.stat(follow_symlinks=False)
                    except OSError:  # It is gone; its neighbours are not.
                        continue
                    if not is_directory:
                        if status.st_ctime >= since_s:
                            yield entry.path
                    elif status.st_dev == device:
                        pending.append(entry.path)
        except OSError:
            continue


def main() -> None:
    """Search as ``sys.argv`` says."""
    for path in written_since(float(sys.argv[1]), re.compile(sys.argv[2]), *sys.argv[3:4]):
        sys.stdout.buffer.write(os.fsencode(path) + b"\0")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()

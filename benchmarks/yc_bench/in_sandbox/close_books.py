"""Copy a company's database as it is between two commands.

Usage: close_books.py DATABASE COPY WAIT_S, with exit code 0 if the copy is there. Waits up to
WAIT_S seconds for a command in flight, undoes one that was killed half-way, and takes in what is
still in a log beside the file; a plain copy of the file alone does none of these.
"""

import os
import signal
import sqlite3
import sys
from urllib.parse import quote


def main(database, copy, wait_s):
    """Make the copy."""
    # sqlite3's backup() tries again for ever while another process keeps a lock on either file.
    signal.alarm(2 * wait_s)
    if os.path.lexists(copy):
        os.unlink(copy)
    address = "file:%s?mode=rw" % quote(database)
    # Two connections: one keeps writers out, the other reads (a copy of one's own transaction
    # waits for itself).
    lock = sqlite3.connect(address, uri=True, timeout=wait_s, isolation_level=None)
    books = sqlite3.connect(address, uri=True, timeout=wait_s)
    closed = sqlite3.connect(copy)
    try:
        lock.execute("BEGIN IMMEDIATE")
        books.backup(closed)
        lock.execute("ROLLBACK")
    finally:
        closed.close()
        books.close()
        lock.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))

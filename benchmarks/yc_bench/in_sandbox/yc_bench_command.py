"""The ``yc-bench`` command: hands its arguments to the worker, starting one if there is none.

Lies in DIR/bin, beside DIR/site (the package), DIR/worker.py and DIR/company.db.
"""

import array
import json
import os
import socket
import subprocess
import sys
import time

START_S = 30.0


def ask(path):
    """Let the worker run this command; return its exit code."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        streams = array.array("i", [0, 1, 2])
        request = json.dumps(sys.argv[1:]).encode() + b"\0"
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)]
        sent = connection.sendmsg([request], rights)
        connection.sendall(request[sent:])
        return int(connection.recv(16) or b"1")


def start(folder, path):
    """Start a worker and wait until its socket is there."""
    with open(os.path.join(folder, "worker.log"), "ab") as log:
        subprocess.Popen(
            [sys.executable, os.path.join(folder, "worker.py"), path],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd=folder,
        )
    deadline = time.monotonic() + START_S
    while not os.path.exists(path) and time.monotonic() < deadline:
        time.sleep(0.02)


def main():
    """Run the command."""
    folder = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    with open(os.path.join(folder, "preset")) as file:
        preset = file.read().strip()
    os.environ["YC_BENCH_EXPERIMENT"] = preset
    os.environ["DATABASE_URL"] = "sqlite:///" + os.path.join(folder, "company.db")
    os.environ["PYTHONPATH"] = os.path.join(folder, "site")
    path = os.path.join(folder, "worker.sock")
    try:
        return ask(path)
    except OSError:
        if os.path.exists(path):
            os.unlink(path)  # left by a worker that was killed
        start(folder, path)
        return ask(path)


if __name__ == "__main__":
    sys.exit(main())

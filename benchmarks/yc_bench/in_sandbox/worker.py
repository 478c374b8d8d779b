"""Runs ``yc-bench`` commands in forks of a process that has imported the package already.

A command costs 0.4-1.1 s of imports otherwise. Usage: worker.py SOCKET. A client sends its
argument vector as JSON together with its standard streams; the fork writes there directly. The
answer is the exit code as one line of text. Ends when its socket file is removed.
"""

import array
import json
import os
import socket
import sys
import traceback

LONGEST_REQUEST = 1 << 20


def receive(connection):
    """Return the argument vector and the three streams of one request."""
    descriptors = array.array("i")
    data, ancillary, _, _ = connection.recvmsg(
        LONGEST_REQUEST, socket.CMSG_SPACE(3 * descriptors.itemsize)
    )
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(content[: len(content) - len(content) % descriptors.itemsize])
    while not data.endswith(b"\0"):
        more = connection.recv(LONGEST_REQUEST)
        if not more:
            raise ValueError("the request is cut off")
        data += more
    return json.loads(data[:-1]), list(descriptors)


def run(arguments, streams):
    """Run one command in this (forked) process and return its exit code."""
    from yc_bench.cli import app

    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
    sys.argv = ["yc-bench", *arguments]
    try:
        app(args=arguments, prog_name="yc-bench")
    except SystemExit as end:
        code = end.code
        return code if isinstance(code, int) else int(code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def serve(connection):
    """Answer one request in this (forked) process."""
    arguments, streams = receive(connection)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = run(arguments, streams)
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    connection.sendall(str(os.waitstatus_to_exitcode(status) & 255).encode())


def main(path):
    """Listen on the socket ``path`` until it is removed."""
    import yc_bench.cli  # noqa: F401 - imported once, here

    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path + ".new")
    listener.listen(64)
    os.rename(path + ".new", path)
    listener.settimeout(5)
    while os.path.exists(path):
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            continue
        reap()
        if os.fork() == 0:
            try:
                serve(connection)
            finally:
                os._exit(0)
        connection.close()


def reap():
    """Collect finished forks."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            continue
    except ChildProcessError:
        return


if __name__ == "__main__":
    main(sys.argv[1])

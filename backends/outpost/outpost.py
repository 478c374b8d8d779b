"""The outpost: a supervisor that lives inside a sandbox and runs commands for the engine.

It speaks frames (see ``frames.py``) over its standard input and output, needs only a Python >= 3.8
standard library, and is started as ``python3 -ISc SOURCE [--option=value ...]``; as PID 1 where
possible. When its input ends, or its lease is over, it kills all it started and exits.

Options::

    --state-dir=DIR     where session state is kept (default: a fresh directory in TMPDIR or /tmp)
    --remove=DIR        remove this tree at exit; may be given more than once
    --lease-s=SECONDS   end by itself after this time
    --silence-s=SECONDS end by itself when the engine has sent nothing for this time
    --user=NAME[:GROUP] default user of commands and file operations (name or number)
    --runtime-dir=DIR   where a mounted interpreter lives: PYTHON* and LD_* that point there
                        are not passed on to commands
    --env=NAME=VALUE    set in the environment of commands only; may be given more than once
    --cwd=DIR           where to start, made if it is not there (default: where we are started)
    --more-options=SIZE so many bytes of further options, with NUL between them, come first on
                        standard input: out of sight of who lists processes

What holds for every command:

* It runs in its own session (``setsid``) with its own pipes.
* The result is sent when its *process* ends, not when its pipes close; the pipes are drained for
  as long as background children hold them, so those never get SIGPIPE.
* Its output is kept as head and tail (``keep``), passed on under credit so that an unread stream
  blocks the command and nothing else (``flow``), or reported as a rolling tail (``tail``).
* Its processes are found by descent, by session, by a cookie in their environment, and by a
  cookie in a resource limit that never bites (RLIMIT_RTTIME), which children inherit even when
  they clear their environment, call setsid and fork twice.
* Session state (environment, working directory; with bash also functions and aliases) is written
  by the shell at exit into a new file and read by the next command. A state file counts only
  with its end mark, so a killed command leaves the previous state standing.
"""

from __future__ import annotations

import errno
import heapq
import os
import select
import signal
import stat
import struct
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import tarfile
    from typing import Callable, Dict, Iterator, List, Optional, Sequence, Tuple, Union

    Fields = Dict[str, bytes]
    Env = Dict[bytes, bytes]

PROTOCOL_VERSION = 1
HEADER = struct.Struct(">BII")
LENGTH = struct.Struct(">I")
MAX_PAYLOAD_BYTES = 1 << 20

RUN, STDIN, STDIN_EOF, KILL, CREDIT, PING, READ, WRITE, DATA, END, LIST = range(1, 12)
PACK, UNPACK, KILL_ALL, SHUTDOWN, RESIZE = range(12, 17)
HELLO, STDOUT, STDERR, RESULT, FAILED, PONG, CHUNK, DONE, STARTED, ROOM, TAIL, BYE = range(64, 76)

CHUNK_BYTES = 256 * 1024  # of file data and kept output in one frame
READ_BYTES = 64 * 1024  # one read of a pipe: its usual capacity
FRAMES_BYTES = 96 * 1024  # one read of frames; from 128 KiB on each buffer is mapped anew
CONGESTED_BYTES = 1 << 20  # unsent frames above which command output is no longer read
INLINE_OUTPUT_BYTES = 64 * 1024  # kept output that travels inside the result frame
MAX_ARGUMENT_BYTES = 100 * 1000  # the kernel takes 128 KiB per argument
MAX_PENDING_BYTES = 64 << 20  # of a command text that comes in pieces
MAX_MESSAGE_CHARACTERS = 5000  # of a refusal, which may name a path
MAX_LIST_ENTRIES = 10000
MAX_DATABASE_BYTES = 1 << 20  # of users or groups
EXIT_TAMPERED = 93  # something inside wrote into our stream or limited us
MAX_SCANNED_ENTRIES = 200000  # directory entries looked at for one list request
TAIL_INTERVAL_S = 0.1  # between two reports of a rolling tail
SETTLE_S = 0.01  # from a process' end to its result, if its output is still held open
LIMITS_INTERVAL_S = 0.05  # between two looks at our resource limits
HUNT_INTERVAL_S = 0.002
HUNT_REPORT_S = 0.2  # a killed command is reported after this time even if some process lingers
HUNT_LIMIT_S = 5.0
MANY_PROCESSES = 32  # above this a tree is stopped before it is killed, lest it outrun us
FOREVER_S = 3600.0
F_GETPIPE_SZ = 1032
PR_SET_CHILD_SUBREAPER = 36
COOKIE = b"HERMES_CMD"
START_NAMES = (b"HOME", b"SHELL")  # where one is missing bash asks the user database: 0.3 ms
DEFAULT_PATH = b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
IGNORED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE)
RESET_SIGNALS = (*IGNORED_SIGNALS, signal.SIGXFSZ)  # Python ignores SIGPIPE and SIGXFSZ

# What runs a command of a session. All on one line, so that the shell's messages about the
# command count lines from 1. Arguments: SETUP, state file to read, state file to write, command,
# then NAME=VALUE for this call only.
#
# SETUP comes from a file where there is one, for the sake of whoever reads a list of processes.
RUN_COMMAND = (
    b'eval " $__hermes_cmd"; '
    b'{ set -- "$?"; eval "$__hermes_save"; } >/dev/null 2>/dev/null; exit "$1"'
)
WRAPPER = b'eval "$1"; ' + RUN_COMMAND
WRAPPER_WITH_FILE = b'. "$1"; ' + RUN_COMMAND
# PWD is ours (the process was started in the right place); HERMES_CMD must be this command's.
# HOME and SHELL are there only for the shell's own start (see START_NAMES); the state has them.
SETUP = rb"""
__hermes_out=$3 __hermes_cmd=$4 __hermes_pwd=$PWD __hermes_id=$HERMES_CMD __hermes_undo=
if [ -n "$2" ]; then command unset HOME SHELL; . "$2"; fi
{ PWD=$__hermes_pwd HERMES_CMD=$__hermes_id; command export PWD HERMES_CMD; } 2>/dev/null
shift 4
for __hermes_kv do
  __hermes_name=${__hermes_kv%%=*}
  if eval "[ -n \"\${$__hermes_name+x}\" ]"; then
    eval "__hermes_old_$__hermes_name=\$$__hermes_name"
    __hermes_undo="$__hermes_undo export $__hermes_name=\"\$__hermes_old_$__hermes_name\";"
  else
    __hermes_undo="$__hermes_undo unset $__hermes_name;"
  fi
  command export "$__hermes_kv"
done
set --
trap '{ eval "$__hermes_save"; } >/dev/null 2>/dev/null' EXIT
"""
# The state ends with "return 0" so that a directory name with a newline is never executed.
BASH_SAVE = b"""
shopt -s expand_aliases
__hermes_save='{ builtin trap - DEBUG ERR RETURN; set +euxvf
if [ -n "$__hermes_out" ]; then eval "$__hermes_undo"; {
builtin export -p && if shopt -q extglob; then builtin echo "shopt -s extglob"; fi &&
builtin declare -f && builtin declare -Fx && builtin alias -p &&
builtin printf "\\nreturn 0\\n#%s\\n#end" "$PWD"; } >|"$__hermes_out"; __hermes_out=
fi; } 2>/dev/null'
"""
SH_SAVE = b"""
__hermes_save='{ set +euxvf; if [ -n "$__hermes_out" ]; then eval "$__hermes_undo"; {
export -p && printf "\\nreturn 0\\n#%s\\n#end" "$PWD"; } >|"$__hermes_out"; __hermes_out=
fi; } 2>/dev/null'
"""
STATE_END = b"\n#end"
STATE_CWD = b"\nreturn 0\n#"
# Arguments: state file to read, then the program and its arguments.
ARGV_WRAPPER = b"""
__hermes_pwd=$PWD __hermes_id=$HERMES_CMD
{ command unset HOME SHELL; . "$1"; } 2>/dev/null
{ PWD=$__hermes_pwd HERMES_CMD=$__hermes_id; command export PWD HERMES_CMD; } 2>/dev/null
shift
while [ "$1" != -- ]; do command export "$1"; shift; done
shift
exec "$@"
"""


class Refused(Exception):
    """A request that cannot be carried out; its text goes to the engine."""

    def __init__(self, code: int, text: str, reason: str = "errno") -> None:
        Exception.__init__(self, text)
        self.code = code
        self.reason = reason


def pack_fields(fields: Dict[str, Union[bytes, str, int]]) -> bytes:
    parts = []
    for name, value in fields.items():
        data = value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogateescape")
        parts.append(bytes((len(name),)) + name.encode("ascii") + LENGTH.pack(len(data)) + data)
    return b"".join(parts)


def unpack_fields(payload: bytes) -> Fields:
    fields = {}
    position = 0
    while position < len(payload):
        name_end = position + 1 + payload[position]
        name = payload[position + 1 : name_end].decode("ascii")
        start = name_end + LENGTH.size
        position = start + LENGTH.unpack_from(payload, name_end)[0]
        fields[name] = payload[start:position]
    return fields


def pack_list(items: Sequence[bytes]) -> bytes:
    return b"".join(LENGTH.pack(len(item)) + item for item in items)


def unpack_list(payload: bytes) -> List[bytes]:
    items = []
    position = 0
    while position < len(payload):
        start = position + LENGTH.size
        position = start + LENGTH.unpack_from(payload, position)[0]
        items.append(payload[start:position])
    return items


def slurp(path: str) -> bytes:
    """Return the contents of a /proc file, b"" if the process is gone."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        parts: List[bytes] = []
        while True:
            part = os.read(fd, READ_BYTES)
            if not part:
                return b"".join(parts)
            parts.append(part)
    except OSError:
        return b""
    finally:
        os.close(fd)


def write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def unlink_quietly(path: bytes) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass


def remove_tree(top: bytes) -> None:
    """Remove a directory tree without following links; leave what cannot be removed."""
    for directory, names, files in os.walk(top, topdown=False):
        for name in files:
            unlink_quietly(os.path.join(directory, name))
        for name in names:
            path = os.path.join(directory, name)
            try:
                os.unlink(path) if os.path.islink(path) else os.rmdir(path)
            except OSError:
                pass
    try:
        os.rmdir(top)
    except OSError:
        pass


# Users


class User:
    """Who a command or a file operation runs as. Read from /etc/passwd itself: no NSS needed."""

    def __init__(self, uid: int, gid: int, groups: List[int], name: bytes, home: bytes) -> None:
        self.uid = uid
        self.gid = gid
        self.groups = groups
        self.name = name
        self.home = home


def database(path: bytes) -> List[List[bytes]]:
    """Read a table of users or groups; one that is no honest file is empty."""
    try:
        fd = open_regular(path)
    except (OSError, Refused):
        return []
    try:
        text = b"".join(read_pieces(fd, 0, MAX_DATABASE_BYTES))
    except OSError:
        return []
    return [line.split(b":") for line in text.splitlines() if line.count(b":") >= 3]


def look_up_user(text: bytes) -> User:
    """Resolve ``name``, ``uid``, ``name:group`` or ``uid:gid``."""
    wanted, _, wanted_group = text.partition(b":")
    row = None
    for entry in database(b"/etc/passwd"):
        if len(entry) >= 6 and (entry[0] == wanted or entry[2] == wanted):
            row = entry
            break
    if row is None and not wanted.isdigit():
        raise Refused(errno.ENOENT, "no user %s in the sandbox" % os.fsdecode(wanted), "user")
    uid, gid = (int(row[2]), int(row[3])) if row else (int(wanted), 0)
    name, home = (row[0], row[5]) if row else (wanted, b"/")
    groups = database(b"/etc/group")
    if wanted_group:
        matches = [int(g[2]) for g in groups if wanted_group in (g[0], g[2])]
        if not matches and not wanted_group.isdigit():
            text_group = os.fsdecode(wanted_group)
            raise Refused(errno.ENOENT, "no group %s in the sandbox" % text_group, "user")
        gid = matches[0] if matches else int(wanted_group)
    extra = [int(g[2]) for g in groups if name in g[3].split(b",")]
    return User(uid, gid, sorted({gid, *extra}), name, home or b"/")


class Acting:
    """Makes file operations happen as ``user``; a root outpost must not lend out its rights."""

    def __init__(self, user: Optional[User]) -> None:
        self.user = user if user is not None and user.uid != os.geteuid() else None

    def __enter__(self) -> None:
        if self.user is not None:
            self.own_groups = os.getgroups()
            self.own_gid = os.getegid()
            os.setgroups(self.user.groups)
            os.setegid(self.user.gid)
            os.seteuid(self.user.uid)

    def __exit__(self, *_: object) -> None:
        if self.user is not None:
            os.seteuid(0)
            os.setegid(self.own_gid)
            os.setgroups(self.own_groups)


# Processes


class Processes:
    """Finds our descendants, and which command each belongs to."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.tag = os.urandom(6).hex().encode()
        self.limit_base = (1 << 50) + (int.from_bytes(os.urandom(3), "big") << 24)
        self.adopts = self.pid == 1 or become_subreaper()
        self.has_children_file = bool(
            os.path.exists("/proc/%d/task/%d/children" % (self.pid, self.pid))
        )

    def cookie(self, id: int) -> bytes:
        return b"%s.%d" % (self.tag, id)

    def limit(self, id: int) -> int:
        return self.limit_base + id % (1 << 24)

    def mark_children(self, id: Optional[int]) -> None:
        """Let processes started from now on carry the limit cookie of ``id``."""
        if RTTIME is not None:
            soft = resource.RLIM_INFINITY if id is None else self.limit(id)
            resource.setrlimit(RTTIME, (soft, resource.RLIM_INFINITY))

    def tree(self, id: Optional[int], main: int) -> Iterator[int]:
        """Yield the living processes of command ``id``, parents first; all if ``id`` is None."""
        inside = set()
        for pid, parent in self.descendants():
            fields = slurp("/proc/%d/stat" % pid).rpartition(b")")[2].split()
            if len(fields) < 4 or fields[0] in (b"Z", b"X"):
                continue
            if (
                id is None
                or pid == main
                or parent in inside
                or (main and int(fields[3]) == main)  # 0: a session begun outside our namespace
                or self.is_marked(pid, id)
            ):
                inside.add(pid)
                yield pid

    def is_marked(self, pid: int, id: int) -> bool:
        cookie = COOKIE + b"=" + self.cookie(id)
        if (b"\0" + cookie + b"\0") in b"\0" + slurp("/proc/%d/environ" % pid):
            return True
        if RTTIME is None:
            return False
        limits = slurp("/proc/%d/limits" % pid)
        words = limits[limits.find(b"Max realtime timeout") :].split(None, 4)
        return len(words) > 3 and words[3] == b"%d" % self.limit(id)

    def descendants(self) -> Iterator[Tuple[int, int]]:
        """Yield (pid, parent) of all our descendants, parents first."""
        if not (self.adopts and self.has_children_file):
            yield from self.descendants_by_listing()
            return
        pending = [(self.pid, 0)]
        while pending:
            pid, parent = pending.pop()
            if parent:
                yield pid, parent
            try:
                threads = os.listdir("/proc/%d/task" % pid)
            except OSError:
                continue
            for thread in threads:
                children = slurp("/proc/%d/task/%s/children" % (pid, thread)).split()
                pending.extend((int(child), pid) for child in children)

    def descendants_by_listing(self) -> Iterator[Tuple[int, int]]:
        children: Dict[int, List[int]] = {}
        try:
            names = [name for name in os.listdir("/proc") if name.isdigit()]
        except OSError:
            return
        for name in names:
            fields = slurp("/proc/%s/stat" % name).rpartition(b")")[2].split()
            if len(fields) > 1:
                children.setdefault(int(fields[1]), []).append(int(name))
        pending = [(child, self.pid) for child in children.get(self.pid, [])]
        if not self.adopts:  # orphans went elsewhere: only their environment tells
            mark = COOKIE + b"=" + self.tag + b"."
            marked = [int(name) for name in names if mark in slurp("/proc/%s/environ" % name)]
            pending += [(pid, 0) for pid in marked if pid != self.pid]
        seen = set()
        while pending:
            pid, parent = pending.pop()
            if pid not in seen:
                seen.add(pid)
                yield pid, parent
                pending.extend((child, pid) for child in children.get(pid, []))


def become_subreaper() -> bool:
    """Adopt orphaned descendants, as PID 1 would. False where ctypes or the kernel lack it."""
    try:
        import ctypes

        return bool(ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
    except (ImportError, OSError, AttributeError):
        return False


try:
    import resource

    RTTIME: Optional[int] = resource.RLIMIT_RTTIME
    if resource.getrlimit(resource.RLIMIT_RTTIME)[1] != resource.RLIM_INFINITY:
        RTTIME = None
except (ImportError, AttributeError, OSError, ValueError):
    RTTIME = None


class OwnLimits:
    """Our resource limits. Only a program in the sandbox changes them, to be rid of us.

    A limit of CPU time ends even process 1, and looks like the doing of the host.
    """

    def __init__(self) -> None:
        names = ("AS", "CPU", "DATA", "FSIZE", "NOFILE", "NPROC", "STACK")
        self.module = sys.modules.get("resource")
        self.numbers = [getattr(self.module, "RLIMIT_" + name) for name in names if self.module]
        self.given = self.read()
        self.looked_at = time.monotonic()

    def read(self) -> List[Tuple[int, int]]:
        return [self.module.getrlimit(number) for number in self.numbers if self.module]

    def are_changed(self) -> bool:
        """Tell whether they are other than at our start; look now and then."""
        now = time.monotonic()
        if now < self.looked_at + LIMITS_INTERVAL_S:
            return False
        self.looked_at = now
        return self.read() != self.given


class Hunt:
    """Kills the processes of one command, or all, again and again until none is found."""

    def __init__(self, outpost: Outpost, id: Optional[int], main: int) -> None:
        self.outpost = outpost
        self.id = id
        self.main = main
        self.started = time.monotonic()
        self.over = False
        self.reported = False
        self.many = False
        self.watchers: List[Callable[[], None]] = []

    def when_dead(self, watcher: Callable[[], None]) -> None:
        """Call ``watcher`` once nothing is left (or a process will not die in time)."""
        if self.reported:
            watcher()
        else:
            self.watchers.append(watcher)

    def round(self) -> None:
        """Kill what is there; come back while there was something."""
        if self.over:
            return
        tree = self.outpost.processes.tree
        if self.many:
            stopped = [pid for pid in tree(self.id, self.main) if send_signal(pid, signal.SIGSTOP)]
            self.many = len(stopped) > MANY_PROCESSES
        count = 0
        for pid in tree(self.id, self.main):
            count += send_signal(pid, signal.SIGKILL)
        self.many = self.many or count > MANY_PROCESSES
        elapsed = time.monotonic() - self.started
        if count == 0 or elapsed > HUNT_LIMIT_S:
            self.over = True
            self.outpost.hunts.pop(self.id, None)
        if (self.over or elapsed > HUNT_REPORT_S) and not self.reported:
            self.reported = True
            for watcher in self.watchers:
                watcher()
        if not self.over:
            pause_s = HUNT_INTERVAL_S if elapsed < HUNT_REPORT_S else 10 * HUNT_INTERVAL_S
            self.outpost.call_later(pause_s, self.round)


def send_signal(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except OSError:
        return False
    return True


# The stream to the engine


class Link:
    """Frames in and out. Sending never blocks; ``congested`` asks producers to wait."""

    def __init__(self, outpost: Outpost, fd_in: int, fd_out: int) -> None:
        self.outpost = outpost
        self.fd_in = fd_in
        self.fd_out = fd_out
        self.received = bytearray()
        self.unsent: List[bytes] = []
        self.unsent_bytes = 0
        self.heard_at = time.monotonic()
        os.set_blocking(fd_in, False)
        os.set_blocking(fd_out, False)
        outpost.watch(fd_in, select.EPOLLIN, self.readable)

    @property
    def congested(self) -> bool:
        return self.unsent_bytes > CONGESTED_BYTES

    def send(self, kind: int, id: int, payload: bytes = b"") -> None:
        """Queue one frame; the main loop flushes."""
        data = HEADER.pack(kind, id, len(payload)) + payload
        self.unsent.append(data)
        self.unsent_bytes += len(data)

    def flush(self) -> None:
        """Write what the peer takes now and watch for the rest."""
        if not self.unsent:
            return
        data = b"".join(self.unsent)
        try:
            data = data[os.write(self.fd_out, data) :]
        except BlockingIOError:
            pass
        except OSError:
            data = b""
            self.outpost.finish("lost")
        self.unsent = [data] if data else []
        self.unsent_bytes = len(data)
        if data and not self.outpost.is_watched(self.fd_out):
            self.outpost.watch(self.fd_out, select.EPOLLOUT, self.writable)
        if not self.congested:
            self.outpost.resume_paused()

    def writable(self) -> None:
        self.outpost.unwatch(self.fd_out)
        self.flush()

    def readable(self) -> None:
        try:
            data = os.read(self.fd_in, FRAMES_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.outpost.finish("closed")
            return
        self.heard_at = time.monotonic()
        self.outpost.check_limits()
        if not self.outpost.ending:
            self.received += data
            self.parse()

    def parse(self) -> None:
        buffer = self.received
        start = 0
        while len(buffer) - start >= HEADER.size:
            kind, id, length = HEADER.unpack_from(buffer, start)
            if kind not in self.outpost.handlers or length > MAX_PAYLOAD_BYTES:
                self.outpost.finish("garbage")
                break
            end = start + HEADER.size + length
            if end > len(buffer):
                break
            payload = bytes(memoryview(buffer)[start + HEADER.size : end])
            start = end
            try:
                self.outpost.handlers[kind](id, payload)
            except OSError as error:
                self.outpost.fail(id, error)
            except (struct.error, LookupError, ArithmeticError, ValueError):
                self.outpost.finish("garbage")
                break
        del buffer[:start]


# Output of commands


class Tap:
    """Reads one output pipe. After the result it discards, so that nobody gets SIGPIPE."""

    def __init__(self, outpost: Outpost, command: Command, fd: int, kind: int) -> None:
        self.outpost = outpost
        self.command = command
        self.fd = fd
        self.kind = kind
        self.total = 0
        self.discarding = False
        self.closed = False
        os.set_blocking(fd, False)
        outpost.watch(fd, select.EPOLLIN, self.pump)

    def pump(self) -> None:
        """Read once, as much as may be taken now."""
        self.outpost.check_limits()
        room = READ_BYTES if self.discarding else self.room()
        if room <= 0:
            self.outpost.unwatch(self.fd)
            return
        self.read(room)

    def read(self, size: int) -> int:
        try:
            data = os.read(self.fd, size)
        except BlockingIOError:
            return 0
        except OSError:  # EIO: the last holder of a terminal is gone
            data = b""
        if not data:
            self.close()
        elif not self.discarding:
            self.total += len(data)
            self.take(data)
        return len(data)

    def drain(self) -> None:
        """Take what is in the pipe now, credit or not; more than a pipe holds is not waited for."""
        if self.closed:
            return
        left = pipe_size(self.fd) + READ_BYTES  # the last read tells whether anybody holds it
        while left > 0 and not self.closed:
            count = self.read(min(left, READ_BYTES))
            if not count:
                break
            left -= count

    def resume(self) -> None:
        if not self.closed and not self.outpost.is_watched(self.fd):
            self.outpost.watch(self.fd, select.EPOLLIN, self.pump)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.outpost.unwatch(self.fd)
            os.close(self.fd)
            self.command.tap_closed()

    def room(self) -> int:
        return READ_BYTES

    def take(self, data: bytes) -> None:
        raise AssertionError("a kind of tap must say what it does with data")

    def ended(self) -> Tuple[bytes, int]:
        """The process has ended: return (kept bytes, length of their head)."""
        self.discarding = True
        self.resume()
        return b"", 0


class Keep(Tap):
    """Keeps the first 40 % and the last 60 % of ``limit`` bytes."""

    def __init__(self, outpost: Outpost, command: Command, fd: int, kind: int, limit: int) -> None:
        self.head_limit = limit * 2 // 5
        self.tail_limit = limit - self.head_limit
        self.head = bytearray()
        self.tail = bytearray()
        Tap.__init__(self, outpost, command, fd, kind)

    def take(self, data: bytes) -> None:
        missing = self.head_limit - len(self.head)
        if missing > 0:
            self.head += data[:missing]
            data = data[missing:]
        self.tail += data
        if len(self.tail) > 2 * self.tail_limit + READ_BYTES:
            self.trim()

    def trim(self) -> None:
        del self.tail[: max(0, len(self.tail) - self.tail_limit)]

    def ended(self) -> Tuple[bytes, int]:
        self.trim()
        kept = bytes(self.head) + bytes(self.tail)
        head = len(self.head)
        self.head = self.tail = bytearray()
        Tap.ended(self)
        return kept, head


class Flow(Tap):
    """Passes output on while the command has credit and the engine reads."""

    def room(self) -> int:
        if self.outpost.link.congested:
            self.outpost.paused.append(self)
            return 0
        return min(READ_BYTES, self.command.credit)

    def take(self, data: bytes) -> None:
        self.command.credit -= len(data)
        self.outpost.link.send(self.kind, self.command.id, data)


class Roll(Tap):
    """Reports the last bytes, at most every TAIL_INTERVAL_S; never blocks the command."""

    def __init__(self, outpost: Outpost, command: Command, fd: int, kind: int, limit: int) -> None:
        self.limit = limit
        self.tail = bytearray()
        self.reported = 0
        self.scheduled = False
        self.reported_at = 0.0
        Tap.__init__(self, outpost, command, fd, kind)

    def take(self, data: bytes) -> None:
        self.tail += data
        if len(self.tail) > 2 * self.limit + READ_BYTES:
            del self.tail[: len(self.tail) - self.limit]
        if not self.scheduled:
            self.scheduled = True
            wait_s = self.reported_at + TAIL_INTERVAL_S - time.monotonic()
            self.outpost.call_later(max(0.0, wait_s), self.report)

    def report(self) -> None:
        self.scheduled = False
        fresh = min(self.total - self.reported, self.limit, len(self.tail))
        if self.outpost.link.congested and not self.closed:
            self.scheduled = True
            self.outpost.call_later(TAIL_INTERVAL_S, self.report)
        elif fresh or self.total > self.reported:
            self.reported = self.total
            self.reported_at = time.monotonic()
            data = bytes(self.tail[len(self.tail) - fresh :])
            for start in range(0, max(1, len(data)), CHUNK_BYTES):
                part = data[start : start + CHUNK_BYTES]
                end = self.total - len(data) + start + len(part)
                self.outpost.link.send(TAIL, self.command.id, struct.pack(">Q", end) + part)

    def ended(self) -> Tuple[bytes, int]:
        self.report()
        return b"", 0  # background children may go on: the tail goes on with them


def pipe_size(fd: int) -> int:
    try:
        import fcntl

        return min(int(fcntl.fcntl(fd, F_GETPIPE_SZ)), CONGESTED_BYTES)
    except (ImportError, OSError):
        return READ_BYTES


class Feed:
    """Writes a command's standard input; reports room so that the engine's window bounds it."""

    def __init__(self, outpost: Outpost, id: int, fd: int, is_terminal: bool) -> None:
        self.outpost = outpost
        self.id = id
        self.fd = fd
        self.is_terminal = is_terminal
        self.buffer = bytearray()
        self.ending = False
        self.closed = False
        os.set_blocking(fd, False)

    def add(self, data: bytes) -> None:
        if not self.closed:
            self.buffer += data
            self.push()

    def end(self) -> None:
        if self.is_terminal:
            self.add(b"\x04")
        else:
            self.ending = True
            self.push()

    def push(self) -> None:
        watched = self.outpost.is_watched(self.fd)
        try:
            while self.buffer:
                count = os.write(self.fd, memoryview(self.buffer)[:READ_BYTES])
                del self.buffer[:count]
                self.outpost.link.send(ROOM, self.id, LENGTH.pack(count))
        except BlockingIOError:
            if not watched:
                self.outpost.watch(self.fd, select.EPOLLOUT, self.push)
            return
        except OSError:
            self.outpost.link.send(ROOM, self.id, LENGTH.pack(0))  # nobody reads any more
            self.close()
            return
        if watched:
            self.outpost.unwatch(self.fd)
        if self.ending:
            self.close()

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.buffer = bytearray()
            self.outpost.unwatch(self.fd)
            os.close(self.fd)


# Sessions


def stamp_of(path: bytes) -> Optional[Tuple[int, int, int]]:
    """Return what tells a file from any other, or later one; times of change cannot be set."""
    try:
        info = os.lstat(path)
    except OSError:
        return None
    return info.st_ino, info.st_size, info.st_ctime_ns


class State:
    """One version of a session's state: a file, and how many commands start from it."""

    def __init__(self, path: bytes) -> None:
        self.path = path
        self.stamp = stamp_of(path)
        self.users = 0
        self.superseded = False

    def release(self) -> None:
        self.users -= 1
        self.tidy()

    def supersede(self) -> None:
        self.superseded = True
        self.tidy()

    def tidy(self) -> None:
        if self.superseded and self.users <= 0:
            unlink_quietly(self.path)


class Session:
    """A named shell session of one user: its working directory and current state."""

    def __init__(self, cwd: bytes) -> None:
        self.cwd = cwd
        self.state: Optional[State] = None

    def check_state(self) -> None:
        """Start anew if somebody removed the state file, or wrote it in our place."""
        if self.state is not None and self.state.stamp != stamp_of(self.state.path):
            self.state = None

    def advance(self, path: bytes, *, keep_cwd: bool) -> None:
        """Take over the state file a command wrote, if it is complete."""
        cwd = read_state_cwd(path)
        if cwd is None:
            unlink_quietly(path)
            return
        if self.state is not None:
            self.state.supersede()
        self.state = State(path)
        if not keep_cwd:
            self.cwd = cwd


def read_state_cwd(path: bytes) -> Optional[bytes]:
    """Return the working directory at the end of a state file, None if it is torn."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        size = os.fstat(fd).st_size
        end = os.pread(fd, 8192, max(0, size - 8192))
    except OSError:
        return None
    finally:
        os.close(fd)
    start = end.rfind(STATE_CWD)
    if start < 0 or not end.endswith(STATE_END):
        return None
    return end[start + len(STATE_CWD) : -len(STATE_END)]


# Commands


class Command:
    """A process started for the engine, from its start until its last pipe closes."""

    def __init__(self, outpost: Outpost, id: int) -> None:
        self.outpost = outpost
        self.id = id
        self.pid = 0
        self.started = time.monotonic()
        self.ended = 0.0
        self.taps: List[Tap] = []
        self.feed: Optional[Feed] = None
        self.credit = 0
        self.status: Optional[int] = None
        self.hunt: Optional[Hunt] = None
        self.deadline_timer: Optional[Timer] = None
        self.timed_out = False
        self.settling = False
        self.settled = False
        self.reported = False
        self.session: Optional[Session] = None
        self.state_in: Optional[State] = None
        self.state_out = b""
        self.keep_cwd = False
        self.script = b""

    def deadline(self) -> None:
        if self.status is None:
            self.timed_out = True
            self.kill()

    def kill(self, grace_s: float = 0.0) -> None:
        """Kill the tree; with a grace, ask first."""
        if grace_s > 0 and self.status is None:
            for pid in list(self.outpost.processes.tree(self.id, self.pid)):
                send_signal(pid, signal.SIGTERM)
                send_signal(pid, signal.SIGCONT)
            self.outpost.call_later(grace_s, self.kill_now)
        else:
            self.kill_now()

    def kill_now(self) -> None:
        if self.hunt is None or self.hunt.over:
            main = self.pid if self.status is None else 0
            self.hunt = self.outpost.start_hunt(self.id, main, self.maybe_report)

    def exited(self, status: int) -> None:
        self.status = status
        self.ended = time.monotonic()
        if self.deadline_timer is not None:
            self.outpost.cancel(self.deadline_timer)
        if self.hunt is not None and not self.hunt.over:
            self.hunt.main = 0  # the number may soon be another process'
            self.hunt.round()
        self.maybe_report()

    def maybe_report(self) -> None:
        """Send the result once: when the process has ended and, if killed, its tree is dead."""
        if self.reported or self.status is None or self.outpost.ending:
            return  # what dies with the sandbox has no result of its own
        if self.hunt is not None and not self.hunt.reported:
            return
        for tap in self.taps:
            tap.drain()
        if self.reported:  # by the last tap's closing
            return
        held = any(not tap.closed for tap in self.taps)
        if held and self.hunt is None and not self.settled:
            self.settle()
            return
        self.reported = True
        if self.feed is not None:
            self.feed.close()
        self.save_session()
        result: Dict[str, Union[bytes, str, int]] = {
            "code": exit_code(self.status),
            "signal": self.status & 0x7F,
            "timed_out": int(self.timed_out),
            "duration_us": int((self.ended - self.started) * 1e6),
            "background": int(held),
        }
        for tap in self.taps:
            self.report_output(tap, result)
        if self.session is not None:
            result["cwd"] = self.session.cwd
        self.outpost.link.send(RESULT, self.id, pack_fields(result))
        self.outpost.forget_if_done(self)

    def settle(self) -> None:
        """Give a background child a moment to redirect its output elsewhere before we count it."""
        if not self.settling:
            self.settling = True
            self.outpost.call_later(SETTLE_S, self.settle_over)

    def settle_over(self) -> None:
        self.settling = False
        self.settled = True
        self.maybe_report()

    def report_output(self, tap: Tap, result: Dict[str, Union[bytes, str, int]]) -> None:
        kept, head = tap.ended()
        name = "out" if tap.kind == STDOUT else "err"
        result[name + "_total"] = tap.total
        result[name + "_head"] = head
        if len(kept) <= INLINE_OUTPUT_BYTES:
            result[name] = kept
            return
        for start in range(0, len(kept), CHUNK_BYTES):
            self.outpost.link.send(tap.kind, self.id, kept[start : start + CHUNK_BYTES])

    def save_session(self) -> None:
        if self.session is not None and self.state_out:
            self.session.advance(self.state_out, keep_cwd=self.keep_cwd)
        if self.state_in is not None:
            self.state_in.release()
        if self.script:
            unlink_quietly(self.script)

    def tap_closed(self) -> None:
        if self.reported:
            self.outpost.forget_if_done(self)
        elif self.settling:
            self.maybe_report()


def exit_code(status: int) -> int:
    number = status & 0x7F
    return 128 + number if number else (status >> 8) & 0xFF


def find_program(name: bytes, path: bytes) -> bytes:
    """Look ``name`` up as a shell does.

    Raises:
        Refused: 127 not found, 126 found but not executable.
    """
    shown = os.fsdecode(name)
    if b"\0" in name or not name:
        raise Refused(127, "%r: command not found" % shown, "start")
    if b"/" in name:
        if not os.path.exists(name):
            raise Refused(127, "%s: No such file or directory" % shown, "start")
        return name
    found = b""
    for directory in (path or DEFAULT_PATH).split(b":"):
        candidate = os.path.join(directory or b".", name)
        if os.path.isfile(candidate):
            if os.access(candidate, os.X_OK):
                return candidate
            found = candidate
    if found:
        raise Refused(126, "%s: Permission denied" % shown, "start")
    raise Refused(127, "%s: command not found" % shown, "start")


def is_name(text: bytes) -> bool:
    return text.replace(b"_", b"a").isalnum() and not text[:1].isdigit()


def is_odd(name: bytes) -> bool:
    """Tell whether a shell passes this variable on but cannot save it."""
    return not is_name(name) and not name.startswith(b"BASH_FUNC_")


def existing_directory(path: bytes) -> bytes:
    """Return ``path`` or its nearest ancestor that is still there."""
    while path not in (b"", b"/") and not os.path.isdir(path):
        path = os.path.dirname(path.rstrip(b"/"))
    return path or b"/"


# Files


def file_type(mode: int) -> bytes:
    if stat.S_ISDIR(mode):
        return b"dir"
    if stat.S_ISLNK(mode):
        return b"link"
    return b"file" if stat.S_ISREG(mode) else b"other"


def list_directory(path: bytes) -> List[bytes]:
    """Return [name, kind, size, mtime in ns, mode, name, ...] of at most MAX_LIST_ENTRIES."""
    names = []
    with os.scandir(path) as entries:
        for entry in entries:
            names.append(entry.name)
            if len(names) >= MAX_SCANNED_ENTRIES:
                break
    items: List[bytes] = []
    for name in sorted(names)[:MAX_LIST_ENTRIES]:
        try:
            info = os.lstat(os.path.join(path, name))
        except OSError:
            continue
        numbers = (info.st_size, info.st_mtime_ns, stat.S_IMODE(info.st_mode))
        items += [name, file_type(info.st_mode), *(b"%d" % number for number in numbers)]
    return items


def open_regular(path: bytes) -> int:
    """Open for reading without ever blocking on a FIFO or a device."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        return fd
    os.close(fd)
    if stat.S_ISDIR(mode):
        raise Refused(errno.EISDIR, os.strerror(errno.EISDIR))
    raise Refused(errno.EINVAL, "not a regular file")


def open_in_place(path: bytes) -> int:
    """Open for writing and make empty; what is a pipe by now does not hold us up."""
    fd = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise Refused(errno.EINVAL, "not a regular file")


class Writing:
    """A file being written: into a temporary beside it, renamed at the end.

    An existing file keeps its mode and owner. Where a rename cannot do that (a foreign owner, a
    directory we may not write, a bind mount) the contents are written in place.
    """

    def __init__(self, path: bytes, mode: Optional[int], user: Optional[User]) -> None:
        self.user = user
        with Acting(user):
            self.target = os.path.realpath(path)
            os.makedirs(os.path.dirname(self.target), exist_ok=True)
            try:
                self.old: Optional[os.stat_result] = os.stat(self.target)
            except FileNotFoundError:
                self.old = None
            if self.old is not None:
                self.check_target(self.old)
            name = b".%s.hermes-%s" % (os.path.basename(path)[:200], os.urandom(4).hex().encode())
            self.temporary = os.path.join(os.path.dirname(self.target), name)
            self.in_place = False
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            try:
                self.fd = os.open(self.temporary, flags | os.O_EXCL, 0o666)
                self.adopt_attributes(mode)
            except OSError as error:
                if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT):
                    raise
                self.open_in_place()

    def check_target(self, old: os.stat_result) -> None:
        if stat.S_ISDIR(old.st_mode):
            raise Refused(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(old.st_mode):
            raise Refused(errno.EINVAL, "not a regular file")
        if not os.access(
            self.target, os.W_OK, effective_ids=os.access in os.supports_effective_ids
        ):
            raise Refused(errno.EACCES, os.strerror(errno.EACCES))

    def adopt_attributes(self, mode: Optional[int]) -> None:
        if self.old is None:
            if mode is not None:
                os.fchmod(self.fd, mode)
            return
        try:
            mine = os.fstat(self.fd)
            if (mine.st_uid, mine.st_gid) != (self.old.st_uid, self.old.st_gid):
                os.fchown(self.fd, self.old.st_uid, self.old.st_gid)
            os.fchmod(self.fd, stat.S_IMODE(self.old.st_mode))
        except OSError:
            os.close(self.fd)
            unlink_quietly(self.temporary)
            raise

    def open_in_place(self) -> None:
        if self.old is None:
            raise Refused(errno.EACCES, os.strerror(errno.EACCES))
        self.in_place = True
        self.fd = open_in_place(self.target)

    def add(self, data: bytes) -> None:
        write_all(self.fd, data)

    def commit(self) -> None:
        if not self.in_place:
            with Acting(self.user):
                try:
                    os.rename(self.temporary, self.target)
                except OSError as error:
                    if error.errno not in (errno.EBUSY, errno.EXDEV):
                        raise
                    self.copy_over()
        os.close(self.fd)

    def copy_over(self) -> None:
        """The target is a mount point (Docker's /etc/hosts): keep its inode."""
        target = open_in_place(self.target)
        try:
            os.lseek(self.fd, 0, os.SEEK_SET)
            while True:
                data = os.read(self.fd, CHUNK_BYTES)
                if not data:
                    break
                write_all(target, data)
        finally:
            os.close(target)
        os.unlink(self.temporary)

    def abandon(self) -> None:
        os.close(self.fd)
        if not self.in_place:
            unlink_quietly(self.temporary)


# Trees as tar streams; these run in a forked child


def tree_entries(top: bytes) -> Iterator[Tuple[bytes, bytes]]:
    """Yield (path, name in the archive), parents first; the top itself is "." if a directory."""
    if not stat.S_ISDIR(os.stat(top).st_mode):
        yield os.path.realpath(top), os.path.basename(top) or b"file"
        return
    yield os.path.realpath(top), b"."
    pending = [(os.path.realpath(top), b"")]
    while pending:
        directory, prefix = pending.pop()
        for name in sorted(os.listdir(directory)):
            path = os.path.join(directory, name)
            yield path, prefix + name
            if os.path.isdir(path) and not os.path.islink(path):
                pending.append((path, prefix + name + b"/"))


def pack_tree(top: bytes, fd: int) -> None:
    """Write ``top`` to ``fd`` as a tar stream. What vanishes meanwhile is left out."""
    import tarfile

    for path, name in tree_entries(top):
        source = -1
        try:
            info = os.lstat(path)
            if stat.S_ISREG(info.st_mode):
                source = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY)
                info = os.fstat(source)  # it may be another file by now
        except FileNotFoundError:
            continue
        member = tarfile.TarInfo(os.fsdecode(name))
        member.mode = stat.S_IMODE(info.st_mode)
        member.mtime = int(info.st_mtime)
        if stat.S_ISREG(info.st_mode):
            member.size = info.st_size
        elif stat.S_ISDIR(info.st_mode):
            member.type = tarfile.DIRTYPE
        elif stat.S_ISLNK(info.st_mode):
            member.type = tarfile.SYMTYPE
            member.linkname = os.fsdecode(os.readlink(path))
        elif stat.S_ISSOCK(info.st_mode):
            continue
        else:
            member.type = tarfile.FIFOTYPE if stat.S_ISFIFO(info.st_mode) else tarfile.CHRTYPE
        write_all(fd, member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))
        if source >= 0:
            copy_exactly(source, fd, member.size)
            os.close(source)
    write_all(fd, bytes(1024))


def copy_exactly(source: int, target: int, size: int) -> None:
    """Copy ``size`` bytes and pad to a block; a file that shrank is filled with zeros."""
    left = size
    while left > 0:
        data = os.read(source, min(left, CHUNK_BYTES)) or bytes(min(left, CHUNK_BYTES))
        write_all(target, data)
        left -= len(data)
    write_all(target, bytes(-size % 512))


def unpack_tree(top: bytes, fd: int) -> None:
    """Lay a tar stream from the engine out at ``top``: a directory, or one file.

    What stands in the way inside ``top`` is replaced, never written through: a link planted there
    does not lead elsewhere.
    """
    import tarfile

    with os.fdopen(fd, "rb", CHUNK_BYTES) as stream:
        archive = tarfile.open(
            fileobj=stream, mode="r|", encoding="utf-8", errors="surrogateescape"
        )
        is_tree = False
        for member in archive:
            name = os.fsencode(member.name).strip(b"/")
            if name in (b"", b"."):
                os.makedirs(top, exist_ok=True)
                is_tree = True
                continue
            path = os.path.join(top, name) if is_tree else top
            if not is_tree and os.path.isdir(path):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            os.makedirs(os.path.dirname(path), exist_ok=True)
            unpack_member(archive, member, path)


def unpack_member(archive: tarfile.TarFile, member: tarfile.TarInfo, path: bytes) -> None:
    if os.path.islink(path) or (os.path.lexists(path) and not os.path.isdir(path)):
        os.unlink(path)
    if member.isdir():
        os.makedirs(path, exist_ok=True)
        os.chmod(path, member.mode)
        return
    if os.path.isdir(path):
        remove_tree(path)
    if member.issym():
        os.symlink(os.fsencode(member.linkname), path)
        return
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    target = os.open(path, flags, 0o600)
    source = archive.extractfile(member)
    while source is not None:
        data = source.read(CHUNK_BYTES)
        if not data:
            break
        write_all(target, data)
    os.fchmod(target, member.mode)
    os.utime(target, (member.mtime, member.mtime))
    os.close(target)


# The supervisor


class Timer:
    """A callback to be made at a time; ``callback`` is None once it is cancelled."""

    __slots__ = ("callback", "number", "when")

    def __init__(self, when: float, number: int, callback: Callable[[], None]) -> None:
        self.when = when
        self.number = number
        self.callback: Optional[Callable[[], None]] = callback

    def __lt__(self, other: Timer) -> bool:
        return (self.when, self.number) < (other.when, other.number)


class Outpost:
    """The main loop: requests in, replies out, children reaped, deadlines kept."""

    def __init__(self, options: Dict[str, List[str]], fd_in: int, fd_out: int) -> None:
        self.epoll = select.epoll()
        self.watched: Dict[int, Callable[[], None]] = {}
        self.timers: List[Timer] = []
        self.timer_count = 0
        self.cancelled_count = 0
        self.processes = Processes()
        self.limits = OwnLimits()
        self.commands: Dict[int, Command] = {}
        self.by_pid: Dict[int, Command] = {}
        self.hunts: Dict[Optional[int], Hunt] = {}
        self.sessions: Dict[Tuple[int, bytes], Session] = {}
        self.writings: Dict[int, Writing] = {}
        self.partial_runs: Dict[int, bytearray] = {}
        self.sources: List[Tuple[int, Iterator[bytes]]] = []
        self.paused: List[Tap] = []
        self.ending = ""
        self.over = False
        self.state_count = 0
        self.handlers = {
            RUN: self.on_run,
            STDIN: self.on_stdin,
            STDIN_EOF: self.on_stdin_eof,
            KILL: self.on_kill,
            CREDIT: self.on_credit,
            PING: self.on_ping,
            READ: self.on_read,
            WRITE: self.on_write,
            DATA: self.on_data,
            END: self.on_end,
            LIST: self.on_list,
            PACK: self.on_pack,
            UNPACK: self.on_unpack,
            KILL_ALL: self.on_kill_all,
            SHUTDOWN: self.on_shutdown,
            RESIZE: self.on_resize,
        }
        self.devnull = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        self.signals_in, signals_out = os.pipe()
        os.set_blocking(self.signals_in, False)
        os.set_blocking(signals_out, False)
        signal.set_wakeup_fd(signals_out, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in IGNORED_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        self.watch(self.signals_in, select.EPOLLIN, self.reap)
        self.link = Link(self, fd_in, fd_out)
        self.configure(options)

    def configure(self, options: Dict[str, List[str]]) -> None:
        self.removed = [os.fsencode(path) for path in options.get("remove", [])]
        for path in options.get("cwd", []):
            os.makedirs(path, exist_ok=True)
            os.chdir(path)
        self.base_cwd = os.getcwdb()
        self.base_env = scrubbed(dict(os.environb), options.get("runtime-dir", [""])[-1])
        self.base_env.update(split_env([os.fsencode(item) for item in options.get("env", [])]))
        self.shell, self.shell_name = find_shell(self.base_env.get(b"PATH", b""))
        self.user: Optional[User] = None
        if options.get("user"):
            self.user = self.as_user(os.fsencode(options["user"][-1]))
        if self.user is None:
            self.base_env = {**identity(self.own_user()), **self.base_env}
        if self.shell:
            self.base_env.setdefault(b"SHELL", self.shell)
        self.state_dir = self.make_state_dir(options.get("state-dir", []))
        self.setup_text = SETUP + (BASH_SAVE if self.shell_name == "bash" else SH_SAVE)
        self.setup_stamp: Optional[Tuple[int, int, int]] = None
        self.setup_path = self.write_setup()
        lease_s = float(options.get("lease-s", ["0"])[-1])
        if lease_s > 0:
            self.call_later(lease_s, lambda: self.finish("expired"))
        self.silence_s = float(options.get("silence-s", ["0"])[-1])
        if self.silence_s > 0:
            self.call_later(self.silence_s, self.listen)

    def listen(self) -> None:
        """End if the engine has been silent for too long, else look again when it could be."""
        left_s = self.link.heard_at + self.silence_s - time.monotonic()
        if left_s <= 0:
            self.finish("silence")
        else:
            self.call_later(left_s, self.listen)

    def own_user(self) -> User:
        try:
            return look_up_user(b"%d" % os.geteuid())
        except Refused:
            return User(os.geteuid(), os.getegid(), [], b"%d" % os.geteuid(), b"/")

    def make_state_dir(self, wanted: List[str]) -> bytes:
        """Return a directory for session state, b"" where nothing can be written."""
        name = b"hermes-" + os.urandom(6).hex().encode()
        places = [self.base_env.get(b"TMPDIR", b""), b"/tmp", b"/dev/shm", b"/var/tmp", b"/run"]
        candidates = [os.fsencode(path) for path in wanted]
        candidates += [os.path.join(place, name) for place in places if place]
        for path in candidates:
            try:
                os.makedirs(path, 0o711, exist_ok=True)
                os.chmod(path, 0o711)
            except OSError:
                continue
            self.removed.append(path)
            return path
        return b""

    # the loop

    def watch(self, fd: int, events: int, callback: Callable[[], None]) -> None:
        self.epoll.register(fd, events)
        self.watched[fd] = callback

    def unwatch(self, fd: int) -> None:
        if self.watched.pop(fd, None) is not None:
            self.epoll.unregister(fd)

    def is_watched(self, fd: int) -> bool:
        return fd in self.watched

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        self.timer_count += 1
        timer = Timer(time.monotonic() + delay_s, self.timer_count, callback)
        heapq.heappush(self.timers, timer)
        return timer

    def cancel(self, timer: Timer) -> None:
        """Forget a timer; the heap is cleared of such when they are most of it."""
        timer.callback = None
        self.cancelled_count += 1
        if self.cancelled_count > 64 and 2 * self.cancelled_count > len(self.timers):
            self.timers = [each for each in self.timers if each.callback is not None]
            heapq.heapify(self.timers)
            self.cancelled_count = 0

    def serve(self) -> None:
        """Work until the stream ends, the lease is over or the engine says so."""
        self.hello()
        while not self.over:
            self.link.flush()
            for fd, _ in self.epoll.poll(self.wait_s()):
                callback = self.watched.get(fd)  # an earlier one may have taken it off
                if callback is not None:
                    callback()
            now = time.monotonic()
            while self.timers and self.timers[0].when <= now:
                callback = heapq.heappop(self.timers).callback
                if callback is not None:
                    callback()
            self.pump_sources()

    def wait_s(self) -> float:
        if self.over or (self.sources and not self.link.congested):
            return 0.0
        if not self.timers:
            return FOREVER_S
        # Not at once for as long as a lease may be: the kernel counts milliseconds in an int.
        return min(FOREVER_S, max(0.0, self.timers[0].when - time.monotonic()))

    def hello(self) -> None:
        home = self.user.home if self.user else self.base_env.get(b"HOME", b"/")
        fields: Dict[str, Union[bytes, str, int]] = {
            "version": PROTOCOL_VERSION,
            "variant": "python",
            "python": "%d.%d" % sys.version_info[:2],
            "pid": os.getpid(),
            "uid": os.geteuid(),
            "shell": self.shell_name,
            "cwd": self.base_cwd,
            "home": home,
            "adopts": int(self.processes.adopts),
        }
        self.link.send(HELLO, 0, pack_fields(fields))

    def reap(self) -> None:
        """Collect every dead child: commands, and orphans that were left to us."""
        try:
            os.read(self.signals_in, 4096)
        except BlockingIOError:
            pass
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            command = self.by_pid.pop(pid, None)
            if command is not None:
                command.exited(status)

    def pump_sources(self) -> None:
        """Send one piece of each file being read, unless the engine is behind."""
        if self.sources and not self.link.congested:
            id, pieces = self.sources.pop(0)
            try:
                self.link.send(CHUNK, id, next(pieces))
                self.sources.append((id, pieces))
            except StopIteration:
                self.link.send(DONE, id)
            except (OSError, OverflowError) as error:
                self.fail(id, error)

    def check_limits(self) -> None:
        if self.limits.are_changed():
            self.finish("limited")

    def resume_paused(self) -> None:
        paused, self.paused = self.paused, []
        for tap in paused:
            tap.resume()

    def finish(self, cause: str) -> None:
        """Kill everything, say why, remove our files and leave the loop."""
        if self.ending:
            return
        self.ending = cause
        self.unwatch(self.link.fd_in)
        self.start_hunt(None, 0, self.leave)

    def leave(self) -> None:
        for writing in self.writings.values():
            writing.abandon()
        for path in self.removed:
            remove_tree(path)
        self.link.send(BYE, 0, self.ending.encode())
        self.link.flush()
        self.over = True

    # who and where

    def as_user(self, text: bytes) -> Optional[User]:
        """Return the user to switch to, None where that is ourselves."""
        user = look_up_user(text)
        if user.uid == os.geteuid() and b":" not in text:
            return None
        if os.geteuid() != 0:
            raise Refused(errno.EPERM, "cannot switch users: not root in the sandbox", "user")
        return user

    def requested_user(self, fields: Fields) -> Optional[User]:
        return self.as_user(fields["user"]) if fields.get("user") else self.user

    def session(self, user: Optional[User], name: bytes) -> Session:
        key = (user.uid if user else os.geteuid(), name)
        if key not in self.sessions:
            self.sessions[key] = Session(self.base_cwd)
        return self.sessions[key]

    def resolve(self, path: bytes, user: Optional[User], base: bytes) -> bytes:
        if b"\0" in path or not path:
            raise Refused(errno.EINVAL, "not a path")
        if path == b"~" or path.startswith(b"~/"):
            home = user.home if user else self.base_env.get(b"HOME", b"/")
            path = home + path[1:]
        return os.path.join(base, path)

    def file_path(self, fields: Fields) -> Tuple[bytes, Optional[User]]:
        user = self.requested_user(fields)
        key = (user.uid if user else os.geteuid(), b"agent")
        base = self.sessions[key].cwd if key in self.sessions else self.base_cwd
        return self.resolve(fields["path"], user, base), user

    def private_path(self, user: Optional[User], kind: str) -> bytes:
        """Return a new file name in the state directory that ``user`` alone may write to."""
        if not self.state_dir:
            return b""
        directory = os.path.join(self.state_dir, b"%d" % (user.uid if user else os.geteuid()))
        try:
            if not os.path.isdir(directory):
                os.makedirs(self.state_dir, 0o711, exist_ok=True)  # it may have been removed
                os.mkdir(directory, 0o700)
                if user is not None:
                    os.chown(directory, user.uid, user.gid)
        except OSError:
            return b""
        self.state_count += 1
        return os.path.join(directory, b"%s-%d" % (kind.encode(), self.state_count))

    # requests

    def fail(self, id: int, error: BaseException) -> None:
        if isinstance(error, Refused):
            fields: Dict[str, Union[bytes, str, int]] = {
                "errno": error.code,
                "text": str(error)[:MAX_MESSAGE_CHARACTERS],
                "reason": error.reason,
            }
        else:
            number = error.errno if isinstance(error, OSError) else None
            text = os.strerror(number) if number else str(error)
            fields = {"errno": number or errno.EINVAL, "text": text, "reason": "errno"}
        self.link.send(FAILED, id, pack_fields(fields))

    def on_ping(self, id: int, payload: bytes) -> None:
        self.link.send(PONG, id, payload)

    def on_run(self, id: int, payload: bytes) -> None:
        fields = unpack_fields(payload)
        if fields.pop("more", b""):
            self.partial_runs[id] = bytearray(payload)
            return
        self.run(id, fields)

    def run(self, id: int, fields: Fields) -> None:
        try:
            self.start(id, fields)
        except (Refused, OSError, ValueError) as error:
            self.fail(id, error)

    def on_data(self, id: int, payload: bytes) -> None:
        if id in self.partial_runs:
            self.partial_runs[id] += payload
            if len(self.partial_runs[id]) > MAX_PENDING_BYTES:
                del self.partial_runs[id]
                self.fail(id, Refused(126, "Argument list too long", "start"))
        elif id in self.writings:
            try:
                self.writings[id].add(payload)
            except OSError as error:
                self.writings.pop(id).abandon()
                self.fail(id, error)

    def on_end(self, id: int, _: bytes) -> None:
        if id in self.partial_runs:
            fields = unpack_fields(bytes(self.partial_runs.pop(id)))
            fields.pop("more", None)
            self.run(id, fields)
        elif id in self.writings:
            writing = self.writings.pop(id)
            try:
                writing.commit()
                self.link.send(DONE, id)
            except (Refused, OSError) as error:
                writing.abandon()
                self.fail(id, error)

    def on_stdin(self, id: int, payload: bytes) -> None:
        command = self.commands.get(id)
        if command is not None and command.feed is not None:
            command.feed.add(payload)

    def on_stdin_eof(self, id: int, _: bytes) -> None:
        command = self.commands.get(id)
        if command is not None and command.feed is not None:
            command.feed.end()

    def on_kill(self, id: int, payload: bytes) -> None:
        """Kill a command's tree, also after its result; DONE when nothing of it lives."""
        self.partial_runs.pop(id, None)
        if id in self.writings:
            self.writings.pop(id).abandon()
        self.sources = [source for source in self.sources if source[0] != id]
        grace_s = LENGTH.unpack(payload)[0] / 1000.0
        command = self.commands.get(id)
        if command is not None and command.status is None and grace_s > 0:
            command.kill(grace_s)
            return
        if command is not None:
            command.kill_now()
        hunt = self.hunts.get(id) or self.start_hunt(id, 0, None)
        hunt.when_dead(lambda: self.link.send(DONE, id))

    def on_credit(self, id: int, payload: bytes) -> None:
        command = self.commands.get(id)
        if command is not None:
            command.credit += LENGTH.unpack(payload)[0]
            for tap in command.taps:
                tap.resume()

    def on_resize(self, id: int, payload: bytes) -> None:
        command = self.commands.get(id)
        feed = command.feed if command is not None else None
        if feed is not None and feed.is_terminal and not feed.closed:
            set_window_size(feed.fd, *struct.unpack(">HH", payload))

    def on_kill_all(self, id: int, _: bytes) -> None:
        self.start_hunt(None, 0, lambda: self.link.send(DONE, id))

    def on_shutdown(self, id: int, _: bytes) -> None:
        self.finish("shutdown")

    def start_hunt(
        self, id: Optional[int], main: int, watcher: Optional[Callable[[], None]]
    ) -> Hunt:
        hunt = self.hunts.get(id)
        if hunt is None:
            hunt = self.hunts[id] = Hunt(self, id, main)
            if watcher is not None:
                hunt.watchers.append(watcher)
            hunt.round()
        elif watcher is not None:
            hunt.when_dead(watcher)
        return hunt

    def on_read(self, id: int, payload: bytes) -> None:
        fields = unpack_fields(payload)
        try:
            path, user = self.file_path(fields)
            with Acting(user):
                fd = open_regular(path)
            offset, limit = int(fields["offset"]), int(fields["limit"])
            if os.fstat(fd).st_size - offset > limit:
                os.close(fd)
                raise Refused(errno.EFBIG, "larger than %d bytes" % limit)
        except (Refused, OSError) as error:
            self.fail(id, error)
            return
        self.sources.append((id, read_pieces(fd, offset, limit)))

    def on_write(self, id: int, payload: bytes) -> None:
        fields = unpack_fields(payload)
        try:
            path, user = self.file_path(fields)
            mode = int(fields["mode"]) if fields.get("mode") else None
            writing = Writing(path, mode, user)
        except (Refused, OSError) as error:
            self.fail(id, error)
            return
        self.writings[id] = writing
        self.on_data(id, fields.get("data", b""))
        if not fields.get("more"):
            self.on_end(id, b"")

    def on_list(self, id: int, payload: bytes) -> None:
        try:
            path, user = self.file_path(unpack_fields(payload))
            with Acting(user):
                items = list_directory(path)
        except (Refused, OSError) as error:
            self.fail(id, error)
            return
        step = 5 * 1000  # names have at most 255 bytes: well below one frame
        pieces = [pack_list(items[i : i + step]) for i in range(0, len(items), step)]
        self.sources.append((id, iter(pieces)))

    def on_pack(self, id: int, payload: bytes) -> None:
        fields = unpack_fields(payload)
        try:
            path, user = self.file_path(fields)
            window = int(fields["window"])
            self.start_child(id, user, lambda fd: pack_tree(path, fd), credit=window)
        except (Refused, OSError) as error:
            self.fail(id, error)

    def on_unpack(self, id: int, payload: bytes) -> None:
        try:
            path, user = self.file_path(unpack_fields(payload))
            self.start_child(id, user, lambda fd: unpack_tree(path, fd))
        except (Refused, OSError) as error:
            self.fail(id, error)

    # starting

    def start(self, id: int, fields: Fields) -> None:
        """Start a command; its pipes and process belong to ``self.commands`` afterwards."""
        user = self.requested_user(fields)
        command = Command(self, id)
        session = self.session(user, fields["session"]) if "session" in fields else None
        note = b""
        if fields.get("cwd"):
            cwd = self.resolve(fields["cwd"], user, session.cwd if session else self.base_cwd)
        else:
            cwd = session.cwd if session else self.base_cwd
            if not os.path.isdir(cwd):
                note = b"hermes: %s is gone; working in %s\n" % (cwd, existing_directory(cwd))
                cwd = existing_directory(cwd)
        command.session = session
        command.keep_cwd = bool(fields.get("cwd"))
        try:
            argv, env = self.command_line(command, fields, user, cwd)
            self.launch(command, argv, env, cwd, user, fields)
        except BaseException:
            if command.state_in is not None:
                command.state_in.release()
            if command.script:
                unlink_quietly(command.script)
            raise
        if note and command.taps:
            tap = command.taps[-1]
            tap.total += len(note)
            tap.take(note)
        if fields.get("timeout_ms"):
            timeout_s = int(fields["timeout_ms"]) / 1000.0
            command.deadline_timer = self.call_later(timeout_s, command.deadline)
        if fields["output"] != b"keep":
            self.link.send(STARTED, id, pack_fields({"pid": command.pid}))

    def command_line(
        self, command: Command, fields: Fields, user: Optional[User], cwd: bytes
    ) -> Tuple[List[bytes], Env]:
        """Return (arguments, environment) of the process to start."""
        extra = [item for item in unpack_list(fields.get("env", b"")) if b"=" in item[1:]]
        env = dict(self.base_env)
        if user is not None:
            env.update(identity(user))
        marks = {COOKIE: self.processes.cookie(command.id), b"PWD": cwd}
        session = command.session
        if session is not None and session.state is not None and self.shell:
            session.check_state()
        if session is not None and session.state is not None and self.shell:
            # The state holds the whole environment, without what the session has unset.
            env = {name: env[name] for name in env if is_odd(name) or name in START_NAMES}
            command.state_in = session.state
            command.state_in.users += 1
        env.update(marks)
        env.update(split_env([item for item in extra if not is_name(item.partition(b"=")[0])]))
        extra = [item for item in extra if is_name(item.partition(b"=")[0])]
        state = command.state_in.path if command.state_in else b""
        if "argv" in fields:
            argv = unpack_list(fields["argv"])
            if state and argv:
                start = [*self.shell_start(), ARGV_WRAPPER, b"bash", state]
                return [*start, *extra, b"--", *argv], env
            env.update(split_env(extra))
            return argv, env
        if not self.shell:
            raise Refused(127, "the image has no shell: pass an argument list", "start")
        text = self.short_text(command, fields["cmd"], user)
        if session is None:
            env.update(split_env(extra))
            return [*self.shell_start(), text], env
        if fields.get("save"):
            command.state_out = self.private_path(user, "state")
        start = [*self.shell_start(), *self.setup_words()]
        return [*start, state, command.state_out, text, *extra], env

    def setup_words(self) -> List[bytes]:
        """Return the wrapper, $0 and $1 of a session's command; the setup file may be gone."""
        stamp = stamp_of(self.setup_path)
        if stamp is not None and stamp == self.setup_stamp:
            return [WRAPPER_WITH_FILE, b"bash", self.setup_path]
        if stamp is None:
            self.setup_path = self.write_setup()
        return [WRAPPER, b"bash", self.setup_text]

    def write_setup(self) -> bytes:
        path = os.path.join(self.state_dir, b"setup") if self.state_dir else b""
        try:
            with open(path, "xb") as file:
                file.write(self.setup_text)
        except OSError:
            return b""
        self.setup_stamp = stamp_of(path)
        return path

    def shell_start(self) -> List[bytes]:
        options = [b"--norc", b"--noprofile"] if self.shell_name == "bash" else []
        return [self.shell, *options, b"-c", b"--"]

    def short_text(self, command: Command, text: bytes, user: Optional[User]) -> bytes:
        """Return ``text``, or what reads it from a file if no argument may be that long."""
        if b"\0" in text:
            raise Refused(126, "the command holds a NUL byte", "start")
        if len(text) <= MAX_ARGUMENT_BYTES:
            return text
        path = self.private_path(user, "script")
        if not path:
            raise Refused(126, "Argument list too long", "start")
        command.script = path
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            write_all(fd, text)
            if user is not None:
                os.fchown(fd, user.uid, user.gid)
        finally:
            os.close(fd)
        return b". '%s'" % path.replace(b"'", b"'\\''")

    def launch(
        self,
        command: Command,
        argv: List[bytes],
        env: Env,
        cwd: bytes,
        user: Optional[User],
        fields: Fields,
    ) -> None:
        """Make the pipes, start the process in ``cwd`` and register both."""
        pipes = Pipes(self.devnull, fields)
        try:
            self.processes.mark_children(command.id)
            if user is None:
                command.pid = spawn(argv, env, cwd, pipes)
            else:
                command.pid = fork_and_exec(argv, env, cwd, pipes, user)
        except BaseException:
            pipes.close_ours()
            raise
        finally:
            self.processes.mark_children(None)
            pipes.close_theirs()
        self.register(command, pipes, fields)

    def register(self, command: Command, pipes: Pipes, fields: Fields) -> None:
        id = command.id
        self.commands[id] = command
        self.by_pid[command.pid] = command
        command.credit = int(fields.get("window", b"0"))
        limit = int(fields.get("limit", b"0"))
        for fd, kind in pipes.outputs:
            if fields["output"] == b"keep":
                command.taps.append(Keep(self, command, fd, kind, limit))
            elif fields["output"] == b"flow":
                command.taps.append(Flow(self, command, fd, kind))
            else:
                command.taps.append(Roll(self, command, fd, kind, limit))
        if pipes.input >= 0:
            command.feed = Feed(self, id, pipes.input, pipes.terminal >= 0)
            if fields.get("stdin"):
                command.feed.add(fields["stdin"])
            if not fields.get("stdin_open"):
                command.feed.end()

    def start_child(
        self, id: int, user: Optional[User], work: Callable[[int], None], credit: int = 0
    ) -> None:
        """Run ``work`` in a forked child, as a command without exec: killable, under credit."""
        import tarfile  # noqa: F401 - here, since the child's user may not read our library

        fields = {"output": b"flow" if credit else b"keep", "limit": b"4096"}
        fields["stdin_open"] = b"" if credit else b"1"
        fields["window"] = b"%d" % credit
        pipes = Pipes(self.devnull, fields)
        command = Command(self, id)
        self.processes.mark_children(id)
        try:
            command.pid = os.fork()
        except OSError:
            self.processes.mark_children(None)
            pipes.close_theirs()
            pipes.close_ours()
            raise
        if command.pid == 0:
            become_child(pipes, user, b"/")
            run_child(work, 1 if credit else 0)
        self.processes.mark_children(None)
        pipes.close_theirs()
        self.register(command, pipes, fields)
        self.link.send(STARTED, id, pack_fields({"pid": command.pid}))

    def forget_if_done(self, command: Command) -> None:
        if command.reported and all(tap.closed for tap in command.taps):
            self.commands.pop(command.id, None)


class Pipes:
    """The two ends of a command's standard streams."""

    def __init__(self, devnull: int, fields: Fields) -> None:
        self.theirs: List[int] = []
        self.outputs: List[Tuple[int, int]] = []
        self.input = -1
        self.terminal = -1
        self.terminal_name = b""
        try:
            if fields.get("pty"):
                self.open_terminal(fields)
            else:
                self.open_pipes(devnull, fields)
        except OSError:
            self.close_theirs()
            self.close_ours()
            raise

    def open_pipes(self, devnull: int, fields: Fields) -> None:
        self.stdin = devnull
        if fields.get("stdin") or fields.get("stdin_open"):
            self.stdin, self.input = os.pipe()
            self.theirs.append(self.stdin)
        out, self.stdout = os.pipe()
        self.theirs.append(self.stdout)
        self.outputs.append((out, STDOUT))
        self.stderr = self.stdout
        if not fields.get("merge"):
            err, self.stderr = os.pipe()
            self.theirs.append(self.stderr)
            self.outputs.append((err, STDERR))

    def open_terminal(self, fields: Fields) -> None:
        master, slave = os.openpty()
        self.terminal = master
        self.terminal_name = os.fsencode(os.ttyname(slave))
        self.input = os.dup(master)
        self.stdin = self.stdout = self.stderr = slave
        self.theirs.append(slave)
        self.outputs.append((master, STDOUT))
        columns, rows = struct.unpack(">HH", fields["pty"])
        set_window_size(master, columns, rows)

    def close_theirs(self) -> None:
        for fd in self.theirs:
            os.close(fd)
        self.theirs = []

    def close_ours(self) -> None:
        for fd, _ in self.outputs:
            os.close(fd)
        if self.input >= 0:
            os.close(self.input)


def set_window_size(fd: int, columns: int, rows: int) -> None:
    import fcntl
    import termios

    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def spawn(argv: List[bytes], env: Env, cwd: bytes, pipes: Pipes) -> int:
    """Start a process as ourselves. The directory is ours for a moment: we have one thread."""
    enter(cwd)
    try:
        program = find_program(argv[0], env.get(b"PATH", b"")) if argv else b""
        if pipes.terminal >= 0:
            actions: List[Tuple[object, ...]] = [
                (os.POSIX_SPAWN_OPEN, 0, pipes.terminal_name, os.O_RDWR, 0),
                (os.POSIX_SPAWN_DUP2, 0, 1),
                (os.POSIX_SPAWN_DUP2, 0, 2),
            ]
        else:
            actions = [
                (os.POSIX_SPAWN_DUP2, pipes.stdin, 0),
                (os.POSIX_SPAWN_DUP2, pipes.stdout, 1),
                (os.POSIX_SPAWN_DUP2, pipes.stderr, 2),
            ]
        try:
            return os.posix_spawn(
                program,
                argv,
                env,
                file_actions=actions,
                setsid=True,
                setsigdef=RESET_SIGNALS,
            )
        except OSError as error:
            raise Refused(126, start_failure(argv[0], error), "start") from None
        except NotImplementedError:  # a libc without POSIX_SPAWN_SETSID
            return fork_and_exec(argv, env, cwd, pipes, None)
        except ValueError as error:
            raise Refused(126, str(error), "start") from None
    finally:
        os.chdir("/")


def start_failure(name: bytes, error: OSError) -> str:
    return "%s: %s" % (os.fsdecode(name), os.strerror(error.errno or errno.EINVAL))


def enter(cwd: bytes) -> None:
    try:
        os.chdir(cwd)
    except (OSError, ValueError) as error:
        number = error.errno if isinstance(error, OSError) else None
        text = "cd: %s: %s" % (os.fsdecode(cwd), os.strerror(number or errno.ENOENT))
        raise Refused(126, text, "start") from None


def fork_and_exec(
    argv: List[bytes], env: Env, cwd: bytes, pipes: Pipes, user: Optional[User]
) -> int:
    """Start a process as ``user``. The child tells through a pipe why it could not."""
    trouble, told = os.pipe()
    try:
        pid = os.fork()
    except OSError:
        os.close(trouble)
        os.close(told)
        raise
    if pid == 0:
        try:
            become_child(pipes, user, cwd)
            program = find_program(argv[0], env.get(b"PATH", b"")) if argv else b""
            os.execve(program, argv, env)
        except Refused as refused:
            write_all(told, b"%d %s" % (refused.code, os.fsencode(str(refused))))
        except (OSError, ValueError) as error:
            write_all(told, b"126 " + os.fsencode(str(error)))
        finally:
            os._exit(126)
    os.close(told)
    with os.fdopen(trouble, "rb") as stream:
        message = stream.read()
    if message:
        os.waitpid(pid, 0)
        code, _, text = message.partition(b" ")
        raise Refused(int(code), os.fsdecode(text), "start")
    return pid


def become_child(pipes: Pipes, user: Optional[User], cwd: bytes) -> None:
    """In a forked child: own session, default signals, the command's streams, place and user.

    The directory is entered before the user is changed, as container engines do: a user may be
    started in a directory that it could not enter itself.
    """
    signal.set_wakeup_fd(-1)
    os.setsid()
    for number in RESET_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if pipes.terminal >= 0:
        slave = os.open(pipes.terminal_name, os.O_RDWR)  # becomes the controlling terminal
        for fd in (0, 1, 2):
            os.dup2(slave, fd)
    else:
        os.dup2(pipes.stdin, 0)
        os.dup2(pipes.stdout, 1)
        os.dup2(pipes.stderr, 2)
    enter(cwd)
    if user is not None:
        os.setgroups(user.groups)
        os.setgid(user.gid)
        os.setuid(user.uid)


def run_child(work: Callable[[int], None], fd: int) -> None:
    """Run ``work`` on ``fd`` and exit; a failure goes to stderr as "errno text"."""
    code = 1
    try:
        close_all_above(2)  # above all, the writing end of our own standard input
        work(fd)
        code = 0
    except OSError as error:
        number = error.errno or errno.EIO
        write_all(2, b"%d %s" % (number, os.strerror(number).encode()))
    except BaseException as error:  # whatever it was, the engine must hear of it
        write_all(2, b"%d %s" % (errno.EIO, repr(error).encode()))
    finally:
        os._exit(code)


def close_all_above(highest: int) -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) > highest:
            try:
                os.close(int(name))
            except OSError:
                pass  # the listing's own descriptor


def read_pieces(fd: int, offset: int, limit: int) -> Iterator[bytes]:
    """Yield the file from ``offset``; at most ``limit`` bytes or an error."""
    try:
        total = 0
        while True:
            data = os.pread(fd, CHUNK_BYTES, offset + total)
            if not data:
                return
            total += len(data)
            if total > limit:
                raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
            yield data
    finally:
        os.close(fd)


def split_env(items: Sequence[bytes]) -> Env:
    return {item.partition(b"=")[0]: item.partition(b"=")[2] for item in items}


def identity(user: User) -> Env:
    return {b"HOME": user.home, b"USER": user.name, b"LOGNAME": user.name}


def scrubbed(env: Env, runtime_dir: str) -> Env:
    """Return ``env`` without what comes from our interpreter, mounted at ``runtime_dir``."""
    env.pop(COOKIE, None)
    given = split_env([item for item in slurp("/proc/self/environ").split(b"\0") if item])
    if given.get(b"LC_CTYPE") != env.get(b"LC_CTYPE"):  # Python sets it where no UTF-8 locale is
        env.pop(b"LC_CTYPE", None)
        env.update({name: value for name, value in given.items() if name == b"LC_CTYPE"})
    mount = os.fsencode(runtime_dir).rstrip(b"/")
    if not mount:
        return env
    kept = {}
    for name, value in env.items():
        if name.startswith((b"PYTHON", b"LD_")):
            parts = [p for p in value.split(b":") if p != mount and not p.startswith(mount + b"/")]
            if value and not parts:
                continue
            value = b":".join(parts)
        kept[name] = value
    return kept


def find_shell(path: bytes) -> Tuple[bytes, str]:
    """Return the shell for commands and its kind: bash, sh, or nothing."""
    for name, kind in ((b"bash", "bash"), (b"sh", "sh")):
        for directory in (b"/bin", b"/usr/bin", *path.split(b":")):
            candidate = os.path.join(directory, name)
            if directory.startswith(b"/") and os.access(candidate, os.X_OK):
                return candidate, kind
    return b"", ""


def parse_options(arguments: Sequence[str]) -> Dict[str, List[str]]:
    options: Dict[str, List[str]] = {}
    for argument in arguments:
        name, _, value = argument.partition("=")
        options.setdefault(name[2:], []).append(value)
    return options


def private_streams() -> Tuple[int, int]:
    """Move our stream away from 0 and 1, so that no child inherits it and no print garbles it."""
    import fcntl

    fd_in = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 10)
    fd_out = fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, 10)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    if null > 2:
        os.close(null)
    return fd_in, fd_out


def read_exactly(fd: int, size: int) -> bytes:
    """Read so many bytes, fewer at the end of the stream."""
    data = b""
    while len(data) < size:
        piece = os.read(fd, size - len(data))
        if not piece:
            break
        data += piece
    return data


def main(arguments: Sequence[str]) -> int:
    """Serve to the end; return our exit code, which nothing in the sandbox can take away."""
    fd_in, fd_out = private_streams()
    options = parse_options(arguments)
    for size in options.pop("more-options", []):
        more = os.fsdecode(read_exactly(fd_in, int(size))).split("\0")
        for name, values in parse_options(more).items():
            options.setdefault(name, []).extend(values)
    outpost = Outpost(options, fd_in, fd_out)
    outpost.serve()
    return EXIT_TAMPERED if outpost.ending in ("garbage", "limited") else 0


if __name__ == "__main__":
    os._exit(main(sys.argv[1:]))

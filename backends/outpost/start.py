"""Starting an outpost with an interpreter that is already inside the sandbox.

That is the sandbox's own python3, or ours, which was brought there before
(:mod:`hermes_rl.backends.shipment`).

Nothing is installed there and nothing of ours appears on the command line but a loader of a few
lines: the outpost's options and source follow on its standard input. So no limit on arguments
applies, no secret of the options can be seen in a list of processes, and a ``pkill -f`` of the
agent's finds nothing of the source's text in ours.

On a pipe the command is run as it is. On a terminal it is typed to a shell, some of which take a
thousand characters and no more: so even the loader follows. What is typed turns the terminal into
a plain byte stream, then prints the mark that the stream begins after.
"""

from __future__ import annotations

import base64
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files

from hermes_rl.errors import CreateError

__all__ = [
    "NO_PYTHON_EXIT_CODE",
    "PYTHON",
    "OutpostStart",
    "PythonMissing",
    "outpost_options",
]

NO_PYTHON_EXIT_CODE = 127
"""Exit code of the start command where there is no python3, or one older than 3.8."""

_LOADER = """
import os, sys
if sys.version_info < (3, 8):
    sys.exit(127)
def take(size):
    data = b""
    while len(data) < size:
        piece = os.read(0, size - len(data))
        if not piece:
            sys.exit(3)
        data += piece
    return data
sizes = sys.argv[1:3]
{prepare}
options = take(int(sizes[0])).decode("utf-8", "surrogateescape")
source = take(int(sizes[1]))
sys.argv[1:] = options.split("\\0") if options else []
exec(compile(source, "<outpost>", "exec"), {{"__name__": "__main__"}})
"""
_QUIET = "os.dup2(os.open(os.devnull, os.O_WRONLY), 2)"
"""On a terminal what is written to standard error would be read as frames."""
_TYPED = (
    "import os,sys,termios as t;sys.version_info<(3,8)and sys.exit(127);"
    "m=t.tcgetattr(0);m[0]=m[1]=m[3]=0;m[6][t.VMIN],m[6][t.VTIME]=1,0;t.tcsetattr(0,t.TCSANOW,m);"
    "os.write(1,sys.argv[3][::-1].encode());n=int(sys.argv[4]);"
    "exec(\"d=b''\\nwhile len(d)<n:d+=os.read(0,n-len(d))\\nexec(d)\")"
)
_SHELL = (
    'if [ -n "$1" ]; then mkdir -p "$1" && cd "$1" || exit 1; fi; shift; '
    'command -v "$1" >/dev/null 2>&1 || exit 127; exec "$@"'
)
PYTHON = ("python3", "-ISu")
"""Words that start a sandbox's own."""


class PythonMissing(CreateError):
    """There is no python3 where the outpost was to start, or one older than 3.8."""

    def __init__(
        self,
        message: str = "There is no python3 (3.8 or newer) to run the sandbox's supervisor on.",
        *,
        backend: str | None = None,
        sandbox_id: str | None = None,
    ) -> None:
        super().__init__(message, backend=backend, sandbox_id=sandbox_id)


def outpost_options(
    *,
    lease_s: float,
    silence_s: float | None = None,
    env: Mapping[str, str] | None = None,
    user: str | None = None,
) -> list[str]:
    """Return the outpost's options; see ``outpost.py``."""
    options = [f"--lease-s={lease_s:.3f}"]
    if silence_s is not None:
        options.append(f"--silence-s={silence_s:.3f}")
    if user is not None:
        options.append(f"--user={user}")
    options += [f"--env={name}={value}" for name, value in (env or {}).items()]
    return options


@dataclass(slots=True, frozen=True)
class OutpostStart:
    """What to run and what to send first.

    Attributes:
        options: The outpost's.
        source: Its program text.
        workdir: Where it starts, made if it is not there; None = where it is started.
        interpreter: Words that start a Python there.
    """

    options: bytes
    source: bytes
    workdir: str | None = None
    interpreter: Sequence[str] = PYTHON

    @classmethod
    def of(cls, options: Sequence[str], *, workdir: str | None = None) -> OutpostStart:
        """Read the outpost's source and join the options.

        Raises:
            ValueError: An option holds a NUL character, which nothing in a sandbox can.
        """
        if any("\0" in option for option in options):
            raise ValueError("an environment variable holds a NUL character")
        text = "\0".join(options).encode("utf-8", "surrogateescape")
        return cls(text, files(__package__).joinpath("outpost.py").read_bytes(), workdir)

    @property
    def preamble(self) -> bytes:
        """What the loader reads before frames begin."""
        return self.options + self.source

    @property
    def program(self) -> list[str]:
        """What the interpreter is to run: the loader and what it must know."""
        return ["-c", _LOADER.format(prepare=""), *self._sizes()]

    def argv(self) -> list[str]:
        """Return the command for a start on pipes. Exit code 127 = no python3 there."""
        return ["/bin/sh", "-c", *self._words("sh", *self.program)]

    def command_line(self) -> str:
        """Return the command for a login shell of any kind, on pipes: one line, quoted words."""
        loader = base64.b64encode(_LOADER.format(prepare="").encode()).decode()
        # Our own interpreter has no module base64.
        program = f'from binascii import a2b_base64 as a;exec(a("{loader}"))'
        return f"exec /bin/sh -c {shlex.join(self._words('', '-c', program, *self._sizes()))}"

    def typed(self, mark: str) -> str:
        """Return the line for a shell on a terminal, which then becomes the outpost.

        Args:
            mark: Letters and digits, other than any word read backwards; appears reversed in the
                output right before the stream begins, and as it is in the terminal's echo.
        """
        program = ["-c", _TYPED, *self._sizes(), mark, str(len(self._typed_loader))]
        return f" exec /bin/sh -c {shlex.join(self._words('', *program))}\n"

    @property
    def typed_preamble(self) -> bytes:
        """What is read after the mark on a terminal, before frames begin."""
        return self._typed_loader + self.preamble

    @property
    def _typed_loader(self) -> bytes:
        return _LOADER.format(prepare=_QUIET).encode()

    def _words(self, name: str, *program: str) -> list[str]:
        return [_SHELL, name, self.workdir or "", *self.interpreter, *program]

    def _sizes(self) -> list[str]:
        return [str(len(self.options)), str(len(self.source))]

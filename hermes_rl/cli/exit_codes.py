"""What the exit code of every command means."""

from __future__ import annotations

import enum
import errno
import os
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress

from hermes_rl.backends.host_room import fix_for
from hermes_rl.cli.importing import STOPPED
from hermes_rl.cli.plain import printable
from hermes_rl.errors import ConfigError, HermesRLError, RunLogError, TaskError

__all__ = ["EXIT_CODE_HELP", "ExitCode", "exit_code_after", "exit_code_of"]


NO_MORE_THREADS = "can't start new thread"
"""Python's own words for it."""


class ExitCode(enum.IntEnum):
    """See :data:`EXIT_CODE_HELP`; a command ended by signal N exits with 128 + N."""

    OK = 0
    SOME_ERRORED = 1
    USAGE = 2
    STOPPED = 3
    NOTHING_DONE = 4
    BUG = 70


EXIT_CODE_HELP = """\
exit codes:
  0    everything was done (whatever the score)
  1    done, but some rollouts ended in an error of infrastructure (the headline counts them as 0)
  2    wrong usage, configuration, task set or run directory; nothing was run
  3    stopped by what no other rollout could get past: model or backend refused, disk full
  4    nothing was evaluated: no task left, or every task skipped
  70   a bug in hermes_rl; the traceback says where
  130, 143, 129   stopped by Ctrl-C, SIGTERM, SIGHUP; what finished is on disk
  141  whoever read the output went away
"""


def exit_code_of(error: HermesRLError) -> ExitCode:
    """Return the exit code of a command that ended with ``error``."""
    is_usage = isinstance(error, ConfigError | TaskError | RunLogError)
    return ExitCode.USAGE if is_usage else ExitCode.STOPPED


def exit_code_after(work: Callable[[], int]) -> int:
    """Return the exit code of ``work``, or of what it raised, which is shown as a user needs it."""
    try:
        code = work()
        sys.stdout.flush()  # else the interpreter finds at its exit what is wrong with it
        return code
    except HermesRLError as error:
        _complain(f"hermes_rl: {printable(str(error))}")
        return exit_code_of(error)
    except (Exception, KeyboardInterrupt, BaseExceptionGroup) as error:
        if _is_interrupt(error):
            _complain(STOPPED)
            return 128 + signal.SIGINT
        if not isinstance(error, Exception):
            raise
        return _exit_code_of_other(error)


def _exit_code_of_other(error: Exception) -> int:
    """Return the exit code after what is none of ours: often the machine's, else a bug."""
    causes = _leaves(error)
    if all(map(_is_lost_reader, causes)):
        _silence()
        return 128 + signal.SIGPIPE
    if all(map(_is_of_the_machine, causes)):
        _complain(f"hermes_rl: {_machine_text(causes[0])}")
        return ExitCode.STOPPED
    _complain("".join(traceback.format_exception(error)).rstrip())
    _complain("hermes_rl: this is a bug; please report the lines above.")
    return ExitCode.BUG


def _leaves(error: Exception) -> list[Exception]:
    """Return what came out of task groups, flat."""
    if not isinstance(error, ExceptionGroup):
        return [error]
    return [leaf for each in error.exceptions for leaf in _leaves(each)]


def _silence() -> None:
    """The reader went away; the interpreter's own flush at exit must not complain again."""
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(null, stream.fileno())


def _is_lost_reader(error: Exception) -> bool:
    is_lost_terminal = isinstance(error, OSError) and error.errno == errno.EIO
    return isinstance(error, BrokenPipeError) or is_lost_terminal


def _is_of_the_machine(error: Exception) -> bool:
    is_threads = isinstance(error, RuntimeError) and str(error) == NO_MORE_THREADS
    return is_threads or (isinstance(error, OSError) and fix_for(error) is not None)


def _machine_text(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"The machine refused: {error}. To go on, {fix_for(error)}."
    return (
        "This machine allows no more threads: raise the limit on processes (ulimit -u, or pids.max "
        "of the cgroup)."
    )


def _complain(text: str) -> None:
    with suppress(OSError):  # nobody is there to be told; the exit code says it
        print(text, file=sys.stderr, flush=True)


def _is_interrupt(error: BaseException) -> bool:
    """Say whether Ctrl-C was pressed, also if that came out of a task group."""
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(KeyboardInterrupt) is not None
    return isinstance(error, KeyboardInterrupt)

"""What the exit code of every command means."""

from __future__ import annotations

import enum
import os
import signal
import sys
import traceback
from collections.abc import Callable

from hermes_rl.cli.importing import STOPPED
from hermes_rl.cli.plain import printable
from hermes_rl.errors import ConfigError, HermesRLError, RunLogError, TaskError

__all__ = ["EXIT_CODE_HELP", "ExitCode", "exit_code_after", "exit_code_of"]


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
        return work()
    except HermesRLError as error:
        print(f"hermes_rl: {printable(str(error))}", file=sys.stderr)
        return exit_code_of(error)
    except BrokenPipeError:
        # The reader went away; the interpreter's own flush at exit must not complain again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except (Exception, KeyboardInterrupt, BaseExceptionGroup) as error:
        if _is_interrupt(error):
            print(STOPPED, file=sys.stderr)
            return 128 + signal.SIGINT
        if not isinstance(error, Exception):
            raise
        traceback.print_exc()
        print("hermes_rl: this is a bug; please report the lines above.", file=sys.stderr)
        return ExitCode.BUG


def _is_interrupt(error: BaseException) -> bool:
    """Say whether Ctrl-C was pressed, also if that came out of a task group."""
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(KeyboardInterrupt) is not None
    return isinstance(error, KeyboardInterrupt)

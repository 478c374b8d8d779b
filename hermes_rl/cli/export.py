"""Write rollouts as supervised fine-tuning data: OpenAI messages, one JSON object per line.

SOURCE is a run directory of 'evaluate' or a JSONL file of 'process'. The output loads with
datasets.load_dataset("json", data_files=...) and trains with TRL's SFTTrainer as it is.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import orjson

from hermes_rl.cli.exit_codes import ExitCode
from hermes_rl.config_sources import Flag
from hermes_rl.errors import ConfigError
from hermes_rl.runlog.sft import sft_rows


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``export``."""
    parser.add_argument("source", type=Path, metavar="SOURCE")
    parser.add_argument("output", type=Path, metavar="OUTPUT", help="file to write; must not exist")
    parser.add_argument(
        "--min-score", type=float, metavar="S", help="leave out rollouts that scored less"
    )


def run(arguments: argparse.Namespace, flags: Sequence[Flag]) -> int:
    """Write the file; an existing one is never overwritten."""
    if flags:
        raise ConfigError(f"export takes no settings, but got {flags[0]}.")
    rows = sft_rows(arguments.source, min_score=arguments.min_score)
    count = 0
    try:
        with arguments.output.open("xb") as file:
            for row in rows:
                file.write(orjson.dumps(row) + b"\n")
                count += 1
    except FileExistsError:
        raise ConfigError(f"{arguments.output} exists; name another file.") from None
    except OSError as error:
        with suppress(OSError):  # it may never have been made
            arguments.output.unlink()
        raise ConfigError(f"{arguments.output} cannot be written: {error.strerror}.") from error
    except BaseException:
        arguments.output.unlink(missing_ok=True)
        raise
    print(f"{count} rows in {arguments.output}", file=sys.stderr)
    return ExitCode.OK if count else ExitCode.NOTHING_DONE

"""Show what a tool-call parser makes of raw model text, as JSON.

Reads FILE, or standard input. Formats that write arguments as tags need the tools' schemas to
tell a number from its digits: give them with --tools.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import orjson

from hermes_rl.config_sources import Flag
from hermes_rl.errors import ConfigError
from hermes_rl.parsers import get_parser
from hermes_rl.parsers.contract import parse_turn
from hermes_rl.types import JSONObject


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``parse``."""
    parser.add_argument("--parser", required=True, metavar="NAME", help="see: hermes_rl list")
    parser.add_argument(
        "--tools", type=Path, metavar="JSON_FILE", help="tool schemas, as in an OpenAI request"
    )
    parser.add_argument("--finish-reason", choices=["stop", "length"], help="why the text ends")
    parser.add_argument("file", nargs="?", type=Path, metavar="FILE", help="raw text, UTF-8")


def run(arguments: argparse.Namespace, flags: Sequence[Flag]) -> int:
    """Print the result."""
    if flags:
        raise ConfigError(f"parse takes no settings, but got {flags[0]}.")
    parser = get_parser(arguments.parser)
    tools = _read_tools(arguments.tools)
    text = _read(arguments.file).decode(errors="replace")
    result = asdict(parse_turn(parser, text, tools, arguments.finish_reason))
    sys.stdout.buffer.write(orjson.dumps(result, option=orjson.OPT_INDENT_2) + b"\n")
    return 0


def _read(path: Path | None) -> bytes:
    if path is None:
        return sys.stdin.buffer.read()
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"Cannot read {path}: {error.strerror or error}.") from error


def _read_tools(path: Path | None) -> list[JSONObject] | None:
    if path is None:
        return None
    try:
        tools = orjson.loads(_read(path))
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"{path} is not JSON: {error}.") from error
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise ConfigError(f"{path} must hold a list of tool schemas, as in an OpenAI request.")
    return tools

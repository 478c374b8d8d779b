"""Every parser under fuzzing: 20 seconds each, all cores, HERMES_FUZZ_SECONDS to change it."""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor

import pytest

from hermes_rl.parsers import get_parser, list_parsers
from hermes_rl.parsers.format import Format
from hermes_rl.testing.parser_conformance import fuzz

SECONDS = float(os.environ.get("HERMES_FUZZ_SECONDS", "20"))
SEED = int(os.environ.get("HERMES_FUZZ_SEED", "1"))


def _fuzz_one(name: str) -> int:
    parser = get_parser(name)
    assert isinstance(parser, Format)
    return fuzz(parser, seconds=SECONDS, seed=SEED)


@pytest.mark.timeout(120 + SECONDS * 40)
def test_no_parser_raises_or_turns_superlinear_under_fuzzing() -> None:
    workers = min(os.cpu_count() or 1, len(list_parsers()))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        counts = dict(zip(list_parsers(), pool.map(_fuzz_one, list_parsers()), strict=True))
    assert min(counts.values()) > 20 * SECONDS, counts  # far below what it does, yet not nothing

"""Ten minutes of fuzzing for every scanner: ``make fuzz``; HERMES_FUZZ_SECONDS to change it."""

from __future__ import annotations

import multiprocessing
import os
import random
from concurrent.futures import ProcessPoolExecutor

import pytest

from hermes_rl.parsers import get_parser, list_parsers
from hermes_rl.parsers.format import Format
from hermes_rl.testing.parser_conformance import fuzz

SECONDS = float(os.environ.get("HERMES_FUZZ_SECONDS", "600"))
SCANNERS = {
    "marked_json": ["hermes", "qwen", "longcat", "granite", "granite4", "mistral"],
    "delimited_json": ["deepseek_v3", "deepseek_v3_1", "kimi_k2"],
    "elements": [
        *("qwen3_coder", "step3p5", "mimo", "seed_oss"),
        *("minimax_m2", "deepseek_v3_2", "deepseek_v4"),
    ],
    "key_values": ["glm45", "glm47", "longcat"],
    "python_calls": ["llama4_pythonic", "olmo3", "lfm2"],
    "llama3_json": ["llama3_json"],
    "gemma4": ["gemma4"],
    "gpt_oss": ["gpt_oss"],
}


def _fuzz_scanner(scanner: str, seed: int) -> int:
    names = SCANNERS[scanner]
    count = 0
    for name in names:
        parser = get_parser(name)
        assert isinstance(parser, Format)
        count += fuzz(parser, seconds=SECONDS / len(names), seed=seed)
    return count


@pytest.mark.fuzz
@pytest.mark.timeout(300 + SECONDS * len(SCANNERS))
def test_every_scanner_survives_ten_minutes() -> None:
    assert {name for names in SCANNERS.values() for name in names} == set(list_parsers())
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"\nseed {seed}, {SECONDS:.0f} s per scanner")
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count() or 1, mp_context=context) as pool:
        futures = {name: pool.submit(_fuzz_scanner, name, seed) for name in SCANNERS}
        for name, future in futures.items():
            print(f"{name:15} {future.result():9,} texts")

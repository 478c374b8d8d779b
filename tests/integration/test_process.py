"""``process``: groups into a file that survives whatever ends the run."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import anyio
import orjson
import pytest

pytest.importorskip("atroposlib", reason="needs hermes_rl[atropos]")

from hermes_rl.atropos.jsonl import GroupFile, read_groups
from hermes_rl.atropos.process import Processor
from hermes_rl.cli.main import main
from hermes_rl.errors import (
    ConfigError,
    ModelTransient,
    ModelUnauthorized,
    ResumeMismatch,
    RunLogError,
)
from hermes_rl.runlog.sft import sft_rows

from .serving import TokenModel, config_for, opened

ATROPOS_KEYS = [
    "tokens",
    "masks",
    "scores",
    "advantages",
    "ref_logprobs",
    "messages",
    "group_overrides",
    "overrides",
    "images",
    "distill_token_ids",
    "distill_logprobs",
]


async def process(path: Path, *, model: TokenModel | None = None, **values: Any) -> Processor:
    resume = values.pop("resume", False)
    config = config_for("http://unused", **{"group_size": 1, "total_steps": 5} | values)
    async with opened(config, model) as env:
        processor = Processor(env, path, resume=resume)
        await processor.run()
    return processor


async def test_a_line_is_one_scored_trajectory_in_the_old_keys_and_order(tmp_path: Path) -> None:
    path = tmp_path / "data" / "groups.jsonl"
    processor = await process(path)
    rows = list(read_groups(path))
    assert processor.counters.written == len(rows) == 5
    assert list(rows[0])[: len(ATROPOS_KEYS)] == ATROPOS_KEYS
    assert len(rows[0]["tokens"]) == len(rows[0]["inference_logprobs"]) == 1
    assert [message["role"] for message in rows[0]["messages"][0]] == ["user", "assistant"]
    page = path.with_suffix(".html").read_text()
    assert page.count("<details><summary>group") == 5


async def test_several_rollouts_make_a_group_line_or_trajectory_lines(tmp_path: Path) -> None:
    await process(tmp_path / "g.jsonl", group_size=3, total_steps=2)
    await process(tmp_path / "t.jsonl", group_size=3, total_steps=2, jsonl_rows="trajectory")
    groups = list(read_groups(tmp_path / "g.jsonl"))
    rows = list(read_groups(tmp_path / "t.jsonl"))
    assert [len(group["scores"]) for group in groups] == [3, 3]
    assert [len(row["scores"]) for row in rows] == [1] * 6


async def test_resuming_runs_only_what_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "g.jsonl"
    await process(path, total_steps=3)
    again = await process(path, total_steps=5, resume=True)
    assert (again.counters.skipped, again.counters.written) == (3, 2)
    items = [row["hermes"]["item"] for row in read_groups(path)]
    assert sorted(items) == [f"item-{n}" for n in range(1, 6)]


async def test_a_torn_line_is_cut_off_and_its_group_run_again(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    await process(path, group_size=2, total_steps=3, jsonl_rows="trajectory")
    whole = path.read_bytes()
    for cut in (len(whole) - 1, len(whole) - 40, whole.rindex(b"\n", 0, -1) + 1):
        path.write_bytes(whole[:cut])
        again = await process(
            path, group_size=2, total_steps=3, jsonl_rows="trajectory", resume=True
        )
        assert (again.counters.skipped, again.counters.written) == (2, 1)
        rows = list(read_groups(path))
        assert sorted(row["hermes"]["group"] for row in rows) == [0, 0, 1, 1, 2, 2]


async def test_a_file_that_is_there_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "g.jsonl"
    await process(path, total_steps=1)
    with pytest.raises(ConfigError, match="--resume"):
        await process(path, total_steps=1)


async def test_a_file_that_cannot_be_is_told_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a directory"):
        await process(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(RunLogError, match=r"file/below.* cannot be written: Not a directory"):
        await process(tmp_path / "file" / "below.jsonl")


async def test_resuming_with_other_settings_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "g.jsonl"
    await process(path, total_steps=1)
    with pytest.raises(ResumeMismatch, match=r"env\.agent_temperature \(1\.0 -> 0\.5\)"):
        await process(path, total_steps=2, resume=True, agent_temperature=0.5)


async def test_a_failing_group_costs_only_itself(tmp_path: Path) -> None:
    calls = itertools.count(1)
    model = TokenModel()
    model.fail = lambda: ModelTransient("reset") if next(calls) in range(3, 20) else None
    processor = await process(tmp_path / "g.jsonl", model=model, total_steps=8, max_num_workers=1)
    assert processor.counters.failed >= 1
    assert processor.counters.written == 8 - processor.counters.failed
    assert len(list(read_groups(tmp_path / "g.jsonl"))) == processor.counters.written


async def test_a_refused_key_stops_the_run_and_keeps_what_finished(tmp_path: Path) -> None:
    calls = itertools.count(1)
    model = TokenModel()
    model.fail = lambda: ModelUnauthorized("wrong key") if next(calls) > 2 else None
    with pytest.raises(ModelUnauthorized):
        await process(tmp_path / "g.jsonl", model=model, total_steps=50, max_num_workers=1)
    assert len(list(read_groups(tmp_path / "g.jsonl"))) == 2


async def test_cancelling_leaves_whole_lines_and_a_page(tmp_path: Path) -> None:
    path = tmp_path / "g.jsonl"
    with anyio.move_on_after(1):
        await process(path, model=TokenModel(delay_s=0.05), total_steps=10_000)
    data = path.read_bytes()
    assert data.endswith(b"\n")
    assert data.count(b"\n") == len(list(read_groups(path))) > 0
    assert path.with_suffix(".html").exists()


async def test_model_output_cannot_put_markup_into_the_page(tmp_path: Path) -> None:
    path = tmp_path / "g.jsonl"
    hostile = "<script>alert(1)</script>"
    group = {
        "tokens": [[]],
        "masks": [[]],
        "scores": [1.0],
        "messages": [
            [
                {"role": hostile, "content": hostile, "reasoning_content": hostile},
                {
                    "role": "assistant",
                    "content": [{"type": "text", "text": hostile}],
                    "tool_calls": [{"function": {"name": hostile, "arguments": hostile}}],
                },
            ]
        ],
    }
    with GroupFile(path) as file:
        await file.append(group, number=0, item=hostile)
    from hermes_rl.atropos.html import write_html

    assert "<script" not in write_html(path).read_text()


async def test_rows_for_fine_tuning_load_as_a_data_set(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="needs hermes_rl[datasets]")
    path = tmp_path / "g.jsonl"
    await process(path, group_size=2, total_steps=3)
    assert main(["export", str(path), str(tmp_path / "sft.jsonl")]) == 0
    loaded = datasets.load_dataset(
        "json", data_files=str(tmp_path / "sft.jsonl"), split="train", cache_dir=str(tmp_path)
    )
    assert len(loaded) == 6
    assert loaded[0]["messages"][0]["role"] == "user"
    assert isinstance(orjson.loads(loaded[0]["tools"]), list)


async def test_rows_below_the_least_score_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "g.jsonl"
    await process(path, total_steps=4)
    scores = sorted(row["score"] for row in sft_rows(path))
    assert len(list(sft_rows(path, min_score=scores[2]))) == 2

"""``serve`` with a real model in real sandboxes, into the real ``run-api``, for a stub trainer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

pytest.importorskip("atroposlib", reason="needs hermes_rl[atropos]")

from .real_serve import (
    SLOTS,
    Group,
    Size,
    check_lengths,
    check_record,
    check_turns,
    llamacpp_server,
    serve_all,
)
from .recording_proxy import RecordingProxy, recording_proxy

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(600)]

SIZE = Size(groups=4, group_size=4)


@pytest.fixture(scope="module")
def llamacpp() -> Iterator[str]:
    with llamacpp_server(SIZE) as url:
        yield url


@pytest_asyncio.fixture
async def proxy(llamacpp: str) -> AsyncIterator[RecordingProxy]:
    async with recording_proxy(llamacpp) as running:
        yield running


async def test_the_embedded_model_trains_through_the_command(llamacpp: str, tmp_path: Path) -> None:
    local = ("--openai.server_type", "local", "--openai.slots", str(SLOTS))
    groups = await serve_all(tmp_path, SIZE, *local)
    check_lengths(groups, SIZE)
    check_turns(groups, llamacpp, SIZE)


async def test_masks_and_logprobs_are_those_of_the_servers_own_record(
    llamacpp: str, proxy: RecordingProxy, tmp_path: Path
) -> None:
    there = ("--openai.server_type", "llamacpp", "--openai.base_url", proxy.url)
    groups = await serve_all(tmp_path, SIZE, *there)
    check_lengths(groups, SIZE)
    check_turns(groups, llamacpp, SIZE)
    check_record(groups, proxy.sampled)
    with pytest.raises((StopIteration, AssertionError)):
        check_record([shifted(group) for group in groups], proxy.sampled)


def shifted(group: Group) -> Group:
    """Return the group with its masks and logprobs one position late: a fault to be found."""
    return {
        **group,
        "masks": [[-100, *masks[:-1]] for masks in group["masks"]],
        "inference_logprobs": [[1.0, *values[:-1]] for values in group["inference_logprobs"]],
    }

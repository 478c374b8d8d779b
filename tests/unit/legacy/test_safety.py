"""The tables: complete, and no way around them."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest

from hermes_rl.legacy.safety import (
    BY_NAME,
    KNOWN,
    OFFERED,
    READ_ONLY,
    REFUSED,
    argument_problem,
    is_web_address,
    refusal,
)
from hermes_rl.tools import NATIVE_TOOLS, TOOLSETS


def test_every_tool_of_every_toolset_is_in_exactly_one_table() -> None:
    tools = {name for toolset in TOOLSETS.values() for name in toolset.tools}
    assert tools <= KNOWN
    tables = [OFFERED, set(BY_NAME), set(REFUSED), set(NATIVE_TOOLS)]
    for one, other in combinations(tables, 2):
        assert not one & other
    assert len(KNOWN) == 79  # As many as hermes-agent 0.19 registers.
    assert READ_ONLY <= OFFERED


@pytest.mark.parametrize(
    ("tool", "reason"),
    [
        ("execute_code", "use terminal"),
        ("skill_manage", "share"),
        ("terminal", "natively, in the rollout's sandbox"),
        ("read_file", "would run on the host"),
    ],
)
def test_a_refusal_says_why(tool: str, reason: str) -> None:
    assert reason in (refusal(tool) or "")


def test_safe_tools_and_unknown_ones_are_not_refused() -> None:
    assert all(refusal(tool) is None for tool in [*OFFERED, *BY_NAME, "a_tool_of_yours"])


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("browser_navigate", {"url": "file:///etc/passwd"}),
        ("browser_navigate", {"url": "FILE:///etc/passwd"}),
        ("browser_navigate", {"url": "/etc/passwd"}),
        ("browser_navigate", {"url": "view-source:http://x"}),
        ("browser_navigate", {"url": "javascript:alert(1)"}),
        ("browser_navigate", {"url": "http://"}),
        ("browser_navigate", {"url": "http://[x"}),
        ("browser_press", {"key": "--allow-file-access"}),
        ("browser_type", {"ref": "@e1", "text": " --executable-path=/tmp/x"}),
        ("image_generate", {"prompt": "x", "image_url": "/root/secret.png"}),
        ("image_generate", {"prompt": "x", "reference_image_urls": ["https://x/y", "~/z.png"]}),
        ("xai_video_edit", {"prompt": "x", "video_url": "file:///v.mp4"}),
        ("text_to_speech", {"text": "x", "output_path": "/root/.bashrc"}),
        ("yb_send_dm", {"message": "", "media_files": ["/etc/passwd"]}),
    ],
)
def test_what_would_reach_files_of_the_host_is_refused(tool: str, arguments: Any) -> None:
    assert argument_problem(tool, arguments) is not None


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("browser_navigate", {"url": "https://example.com/a?b=c"}),
        ("browser_press", {"key": "-"}),
        ("browser_type", {"ref": "@e1", "text": "-1"}),
        ("image_generate", {"prompt": "x"}),
        ("image_generate", {"prompt": "x", "image_url": None, "reference_image_urls": []}),
        ("text_to_speech", {"text": "x"}),
        ("web_search", {"query": "--help"}),
    ],
)
def test_ordinary_arguments_pass(tool: str, arguments: Any) -> None:
    assert argument_problem(tool, arguments) is None


def test_only_http_and_https_are_web_addresses() -> None:
    assert is_web_address(" HTTPS://example.com ")
    assert not any(map(is_web_address, ["", None, 7, "example.com", "ftp://x/", "data:,x"]))

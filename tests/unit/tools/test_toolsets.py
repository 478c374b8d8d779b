import random
from collections import Counter

import pytest

from hermes_rl.errors import ConfigError, UnknownName
from hermes_rl.tools import (
    DISTRIBUTIONS,
    NATIVE_TOOLS,
    TOOLSETS,
    Availability,
    resolve_toolsets,
    sample_distribution,
    toolset_names,
)
from hermes_rl.tools.toolsets import toolset_tools


def test_terminal_and_file_are_the_seven_native_tools_with_todo() -> None:
    assert resolve_toolsets(["terminal", "file", "todo"]) == sorted(NATIVE_TOOLS)


def test_none_is_everything_usable_here() -> None:
    assert resolve_toolsets(None) == sorted(NATIVE_TOOLS)
    more = Availability(offered=frozenset({"web_search"}), by_name=frozenset({"image_generate"}))
    assert set(resolve_toolsets(None, availability=more)) == {*NATIVE_TOOLS, "web_search"}


def test_an_empty_list_is_no_tool() -> None:
    assert resolve_toolsets([]) == []


def test_disabled_toolsets_are_taken_away_last() -> None:
    assert resolve_toolsets(["terminal", "file"], ["file"]) == ["process", "terminal"]


def test_a_named_toolset_that_is_not_available_names_the_extra() -> None:
    with pytest.raises(ConfigError, match=r"'web' .*pip install 'hermes_rl\[hermes\]'"):
        resolve_toolsets(["terminal", "web"])


def test_a_composite_takes_what_is_available() -> None:
    assert resolve_toolsets(["debugging"]) == resolve_toolsets(["terminal", "file"])


def test_an_unknown_toolset_lists_the_nearest() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'terminal'"):
        resolve_toolsets(["termnal"])
    with pytest.raises(UnknownName, match="Did you mean 'file'"):
        resolve_toolsets(None, ["fille"])


@pytest.mark.parametrize("name", toolset_names())
def test_every_name_resolves_to_its_tools(name: str) -> None:
    assert toolset_tools(name) or name == "context_engine"


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("web", 2),
        ("browser", 13),
        ("coding", 32),
        ("hermes-acp", 29),
        ("hermes-api-server", 35),
        ("hermes-cli", 52),
        ("hermes-discord", 54),
        ("hermes-feishu", 57),
        ("hermes-webhook", 4),
        ("terminal_tools", 1),
        ("file_tools", 4),
    ],
)
def test_toolsets_have_the_size_they_have_in_hermes_agent(name: str, count: int) -> None:
    assert len(toolset_tools(name)) == count


def test_distributions_use_known_toolsets_only() -> None:
    assert len(DISTRIBUTIONS) == 17
    for percentages in DISTRIBUTIONS.values():
        assert set(percentages) <= set(TOOLSETS)


def test_the_same_seed_draws_the_same_toolsets() -> None:
    first, second = random.Random(5), random.Random(5)
    draws = [sample_distribution("balanced", first) for _ in range(20)]
    assert draws == [sample_distribution("balanced", second) for _ in range(20)]
    assert len({tuple(draw) for draw in draws}) > 1


def test_draws_follow_the_percentages() -> None:
    generator = random.Random(1)
    draws = Counter(t for _ in range(2000) for t in sample_distribution("reasoning", generator))
    assert draws["web"] / 2000 == pytest.approx(0.932, abs=0.03)  # with the empty draws
    assert draws["file"] / 2000 == pytest.approx(0.60, abs=0.04)
    assert draws["terminal"] / 2000 == pytest.approx(0.20, abs=0.04)


def test_an_empty_draw_takes_the_likeliest() -> None:
    class Never(random.Random):
        def random(self) -> float:
            return 0.999

    assert sample_distribution("research", Never()) == ["web"]


def test_an_unknown_distribution_lists_the_nearest() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'terminal_only'"):
        sample_distribution("terminal_onyl", random.Random(0))

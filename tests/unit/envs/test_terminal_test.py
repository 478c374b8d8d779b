import re
from collections import Counter

import pytest

from hermes_rl.envs.terminal_test_env.task_set import FileTask, TerminalTest
from hermes_rl.tasks import describe
from hermes_rl.types import AgentResult


class Reader:
    """The one method of the context that these tasks use."""

    def __init__(self, content: str | None) -> None:
        self.content = content

    async def read_file(self, path: str) -> dict[str, object]:
        return (
            {"error": f"{path}: not found"} if self.content is None else {"content": self.content}
        )


async def reward(task: FileTask, content: str | None) -> float:
    return await task.reward(AgentResult([]), Reader(content))  # type: ignore[arg-type]


async def tasks(seed: int = 0) -> dict[str, FileTask]:
    return {task.id: task for task in await TerminalTest(seed=seed).load()}


async def test_the_classic_tasks_are_the_published_ones() -> None:
    loaded = await tasks()
    classic = {k: (t.path, t.expected) for k, t in loaded.items() if t.metadata["split"] == "train"}
    assert classic == {
        "greeting": ("~/greeting.txt", "Hello from Hermes Agent"),
        "count": ("~/count.txt", "1\n2\n3\n4\n5"),
        "answer": ("~/answer.txt", str(123 + 456)),
    }
    held_out = [t for t in loaded.values() if t.metadata["split"] == "held_out"]
    assert [(t.id, t.path, t.expected) for t in held_out] == [("result", "~/result.txt", "42")]


@pytest.mark.parametrize(
    ("content", "expected"),
    [("579", 1.0), (" 579\n", 1.0), ("123 + 456 = 579", 0.5), ("580", 0.0), ("", 0.0), (None, 0.0)],
)
async def test_rewards_are_exact_contained_or_nothing(content: str | None, expected: float) -> None:
    assert await reward((await tasks())["answer"], content) == expected


async def test_there_are_forty_variants_of_the_same_kinds_with_distinct_ids_and_paths() -> None:
    loaded = await TerminalTest().load()
    variants = [task for task in loaded if task.metadata["split"] == "variants"]
    assert len(variants) >= 40
    assert len({task.id for task in loaded}) == len(loaded)
    assert len({task.path for task in loaded}) == len(loaded)
    assert set(Counter(task.metadata["category"] for task in variants)) == {
        task.metadata["category"] for task in loaded if task.metadata["split"] != "variants"
    }


async def test_the_seed_alone_decides_the_variants() -> None:
    first, again, other = await tasks(1), await tasks(1), await tasks(2)
    assert first == again
    variants = [k for k, task in first.items() if task.metadata["split"] == "variants"]
    assert sum(first[k].prompt != other[k].prompt for k in variants) > len(variants) * 0.9
    assert first["greeting"] == other["greeting"]


async def test_expected_texts_follow_from_the_prompts() -> None:
    for task in (await tasks(3)).values():
        if match := re.search(r"(\d+) ([+*]) (\d+)", task.prompt):
            left, right = int(match[1]), int(match[3])
            assert task.expected == str(left + right if match[2] == "+" else left * right)
        elif match := re.search(r"numbers (\d+) to (\d+)", task.prompt):
            assert task.expected.split("\n") == [
                str(n) for n in range(int(match[1]), int(match[2]) + 1)
            ]
        else:
            assert task.prompt.endswith(f"exactly: {task.expected}")
        assert task.path in task.prompt


async def test_every_task_describes_itself_and_has_a_solution() -> None:
    for task in await TerminalTest().load():
        description = describe(task)
        assert description.solution is not None
        assert task.path in description.solution.command

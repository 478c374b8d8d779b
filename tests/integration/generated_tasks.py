"""Generated tasks in Terminal-Bench layout, for tests of many at once.

Several tasks share an environment, so images can be built once for all of them; some ask for a
file, some for a server that is left running.
"""

from __future__ import annotations

from pathlib import Path

from hermes_rl.backends.docker_context import BuildContext
from hermes_rl.testing.model_server import Answer, SeenRequest, call_tool, say
from hermes_rl.types import JSONObject

from .docker_boxes import docker

ENVIRONMENTS = 6
CATEGORIES = ("text", "numbers", "servers")

_TOML = """\
[metadata]
category = "{category}"
difficulty = "{difficulty}"
[agent]
timeout_sec = 300.0
[verifier]
timeout_sec = 120.0
[environment]
cpus = 1
memory_mb = 256
allow_internet = false
build_timeout_sec = 600.0
"""
_CHECKS = {
    "text": '[ "$(cat out)" = "{answer}" ]',
    "numbers": '[ "$(cat out)" = "$(seq {number} | paste -sd+ | tr + "\\n" | wc -l)" ]',
    "servers": '[ "$(curl -s http://127.0.0.1:9000/out)" = "{answer}" ]',
}
_PROMPTS = {
    "text": "Write the line '{answer}' to the file out.",
    "numbers": "Write the number {number} to the file out.",
    "servers": "Write the line '{answer}' to the file out and serve it by HTTP on port 9000.",
}


def category_of(number: int) -> str:
    """Return what task ``number`` is about."""
    return CATEGORIES[number % len(CATEGORIES)]


def is_solved(number: int) -> bool:
    """Say whether the scripted agent gets task ``number`` right: all but every seventh."""
    return number % 7 != 0


def write_tasks(folder: Path, count: int, salt: str) -> list[str]:
    """Write tasks; returns their ids.

    Args:
        folder: Where to.
        count: How many.
        salt: Makes the environments, and so the images, this test's own.
    """
    for number in range(count):
        values = {"number": number + 1, "answer": f"answer {number}"}
        category = category_of(number)
        check = _CHECKS[category].format(**values)
        difficulty = ("easy", "medium", "hard")[number % 5 % 3]
        environment = number % ENVIRONMENTS
        files = {
            "task.toml": _TOML.format(category=category, difficulty=difficulty),
            "instruction.md": f"{number}: {_PROMPTS[category].format(**values)}\n",
            "environment/Dockerfile": (
                f"FROM hermes-test:latest\nWORKDIR /app\nRUN echo {salt} {environment} > /version\n"
            ),
            "tests/test.sh": f"#!/bin/bash\nif {check}; then r=1; else r=0; fi\n"
            "echo $r > /logs/verifier/reward.txt\n",
        }
        for name, content in files.items():
            path = folder / f"task-{number:02d}" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
    return [f"task-{number:02d}" for number in range(count)]


def image_tags(folder: Path) -> set[str]:
    """Return the tags of the images that the tasks are built to."""
    digests = {BuildContext.scan(path).digest() for path in folder.glob("*/environment")}
    return {f"hermes-build:{digest[:24]}" for digest in digests}


def built(tags: set[str]) -> set[str]:
    """Return those of the tags that are there."""
    return tags & set(docker("images", "--format", "{{.Repository}}:{{.Tag}}").splitlines())


def remove_images(tags: set[str]) -> None:
    """Remove what a test built."""
    if present := built(tags):
        docker("rmi", "-f", *sorted(present))


def _calls(number: int) -> list[tuple[str, JSONObject]]:
    category = category_of(number)
    answer = f"answer {number}" if is_solved(number) else "wrong"
    if category == "numbers":
        answer = str(number + 1) if is_solved(number) else "0"
    calls: list[tuple[str, JSONObject]] = [
        ("terminal", {"command": "pwd; ls -la; cat /version"}),
        ("write_file", {"path": "out", "content": f"{answer}\n"}),
        ("read_file", {"path": "out"}),
    ]
    if category == "servers":
        serve = {"command": "exec python3 -m http.server 9000", "background": True}
        wait = {"command": "until curl -s http://127.0.0.1:9000/out; do sleep 0.2; done"}
        calls += [("terminal", serve), ("terminal", wait)]
    return calls


def work(request: SeenRequest) -> Answer:
    """Answer as the agent that works on generated tasks; the prompt begins with the number."""
    messages = request.messages
    prompt = next(m["content"] for m in messages if m["role"] == "user")
    calls = _calls(int(prompt.partition(":")[0]))
    spoken = sum(message["role"] == "assistant" for message in messages)
    return call_tool(*calls[spoken]) if spoken < len(calls) else say("Done.")

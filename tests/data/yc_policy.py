"""Plays yc-bench by a fixed rule: one task at a time, all hands on it, the best pay per hour first.

Decides on contents only, never on ids, which differ from run to run.
"""

import json
import subprocess
import sys


def yc(*arguments):
    done = subprocess.run(["yc-bench", *arguments], stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def value(task):
    work = sum(float(need["required_qty"]) for need in task["requirements"])
    return (task["reward_funds_cents"] / work, task["title"], task["reward_funds_cents"])


def play(limit):
    for _ in range(limit):
        status = yc("company", "status")
        prestige = int(min(status["prestige"].values()))
        tasks = yc("market", "browse", "--required-prestige-lte", str(prestige), "--limit", "500")
        if tasks["tasks"]:
            task = max(tasks["tasks"], key=value)
            yc("task", "accept", "--task-id", task["task_id"])
            for person in yc("employee", "list")["employees"]:
                yc(
                    "task",
                    "assign",
                    "--task-id",
                    task["task_id"],
                    "--employee-id",
                    person["employee_id"],
                )
            yc("task", "dispatch", "--task-id", task["task_id"])
        while True:
            step = yc("sim", "resume")
            if step["bankrupt"] or step["horizon_reached"]:
                return step["terminal_reason"]
            if any(event["type"] == "task_completed" for event in step["wake_events"]):
                break
    return "limit"


print(play(int(sys.argv[1]) if len(sys.argv) > 1 else 1000))

"""The system prompt, made from the installed package: its domains, commands and preset."""

from __future__ import annotations

from hermes_rl.benchmarks.yc_bench.package import YCPackage

__all__ = ["OPENING", "system_prompt"]

_OPTIONS = {
    "market browse": "[--domain D] [--required-prestige-lte N] [--reward-min-cents N] [--limit N] "
    "[--offset N]",
    "task list": "[--status STATUS]",
    "task inspect": "--task-id ID",
    "task accept": "--task-id ID",
    "task assign": "--task-id ID --employee-id ID",
    "task dispatch": "--task-id ID",
    "finance ledger": "[--from MM/DD/YYYY] [--to MM/DD/YYYY] [--category C]",
    "report monthly": "[--from-month YYYY-MM] [--to-month YYYY-MM]",
    "scratchpad write": "--content TEXT",
    "scratchpad append": "--content TEXT",
}
_NOT_OFFERED = ("run", "start", "sim init", "task cancel")
"""Agents of its own, a second world, and a command that crashes in this version."""

OPENING = "The company is yours. Look at its status, then act until the horizon is reached."

_PROMPT = """\
You run a small company in a simulation. Everything happens through one command line program, \
yc-bench, which you call with the terminal tool; every answer is JSON.

Goal: reach the horizon ({years} simulated year{plural}) without going bankrupt, and end with as \
much money as you can. You start with {funds} and {employees} employees. Salaries are paid at the \
start of each month; if money falls below zero the game is over. Time stands still until you call \
`yc-bench sim resume`, which goes on to the next event.

How money is made: accept a task from the market, assign employees to it, dispatch it, resume. A \
task asks for work in some of these domains: {domains}. Finished before its deadline it pays and \
raises your prestige in its domains; late, it pays nothing and costs {fail:g} times the prestige \
it would have brought. Better paid tasks ask for more prestige. An employee who works on several \
tasks at once divides their time. Work is done on weekdays from {opens}:00 to {closes}:00.

Commands:
{commands}

Your conversation may be cut to its latest part when it grows long. The scratchpad stays: write \
down what you must not forget. Once a resume reports horizon_reached or bankrupt, stop.
"""


def system_prompt(package: YCPackage, preset: str) -> str:
    """Return the system prompt of one preset."""
    facts = package.presets[preset]
    offered = [name for name in package.commands if name not in _NOT_OFFERED]
    years = facts["horizon_years"]
    opens, closes = facts["workday"]
    return _PROMPT.format(
        years=years,
        plural="" if years == 1 else "s",
        funds=f"${facts['initial_funds_cents'] / 100:,.0f}",
        employees=facts["employees"],
        domains=", ".join(package.domains),
        fail=facts["fail_multiplier"],
        opens=opens,
        closes=closes,
        commands="\n".join(
            f"  yc-bench {name} {_OPTIONS.get(name, '')}".rstrip() for name in offered
        ),
    )

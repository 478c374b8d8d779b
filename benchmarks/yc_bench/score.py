"""The score of one company, read from its database outside the sandbox.

``0.5 * survival + 0.5 * min(ln(1 + funds / initial) / ln(101), 1)``, 0 if funds <= 0 or the company
ever went bankrupt: the program lets a bankrupt one play on, the rules do not. Survival is 1 only if
the horizon was reached. Only *consumed* events count: the horizon event stands in the table from
the start. A run that stopped before its horizon is ``incomplete``, with survival 0, so doing
nothing is not survival.
"""

from __future__ import annotations

import math
import sqlite3
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

from hermes_rl.errors import RewardUnreadable

__all__ = ["Books", "composite_score", "doubts_about", "outcome_of", "read_books"]

LONGEST_VALUE_BYTES = 64 << 10
"""Of one row: a view could make up gigabytes."""
MOST_ROWS = 100
"""Of one question; a real game has five task states."""
READING_S = 5.0
"""Reading a real game's books takes milliseconds; a view could go on for ever."""
STEPS_BETWEEN_LOOKS = 10_000
"""Of sqlite's machine, before it looks at the clock: well below a millisecond."""
MONTHS_WITHOUT_SALARIES = 2
"""The first month has none, and the program skips one whose first hour is an event's."""

Outcome = Literal["survived", "bankrupt", "incomplete"]


@dataclass(slots=True, frozen=True, kw_only=True)
class Books:
    """What the database says at the end.

    Attributes:
        funds_cents: Money left.
        booked_cents: Sum of all ledger entries; funds are the initial ones plus this.
        sim_time: Simulated time; UTC without saying so, as it is stored.
        horizon_end: End of the game, likewise.
        consumed: Types of the events that happened.
        paydays: On how many occasions salaries were paid.
        tasks: Number of tasks by status.
    """

    funds_cents: int
    booked_cents: int
    sim_time: datetime
    horizon_end: datetime
    consumed: frozenset[str]
    paydays: int
    tasks: dict[str, int]


def read_books(path: Path) -> Books:
    """Read a database that comes out of a sandbox.

    Raises:
        RewardUnreadable: It is missing a table, damaged, or holds what no game writes.
    """
    try:
        # Immutable: nothing is written beside it.
        connection = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
        try:
            _distrust(connection)
            return _read(connection)
        finally:
            connection.close()
    except (sqlite3.Error, ValueError) as error:
        raise RewardUnreadable(f"The company's database cannot be read: {error}") from error


def _distrust(connection: sqlite3.Connection) -> None:
    """Bound what the schema, which is the agent's to change, can make us do."""
    ends_s = time.monotonic() + READING_S
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST_VALUE_BYTES)
    connection.set_progress_handler(lambda: time.monotonic() > ends_s, STEPS_BETWEEN_LOOKS)
    connection.execute("PRAGMA trusted_schema = OFF")


def _read(connection: sqlite3.Connection) -> Books:
    def rows(query: str) -> list[tuple[object, ...]]:
        return connection.execute(query).fetchmany(MOST_ROWS)

    ((funds,),) = rows("SELECT funds_cents FROM companies")
    ((booked,),) = rows("SELECT COALESCE(SUM(amount_cents), 0) FROM ledger_entries")
    ((now, horizon),) = rows("SELECT sim_time, horizon_end FROM sim_state")
    ((paydays,),) = rows(
        "SELECT COUNT(DISTINCT occurred_at) FROM ledger_entries WHERE category = 'monthly_payroll'"
    )
    events = rows(
        # A bankruptcy is entered when it happens, and consumed only if the game goes on.
        "SELECT DISTINCT event_type FROM sim_events WHERE consumed = 1 OR event_type = 'bankruptcy'"
    )
    counts = rows("SELECT status, COUNT(*) FROM tasks GROUP BY status")
    return Books(
        funds_cents=_integer(funds),
        booked_cents=_integer(booked),
        sim_time=_moment(now),
        horizon_end=_moment(horizon),
        consumed=frozenset(str(kind) for (kind,) in events),
        paydays=_integer(paydays),
        tasks={str(status): _integer(count) for status, count in counts},
    )


def _integer(value: object) -> int:
    if not isinstance(value, int):
        raise ValueError(f"{str(value)[:40]!r} is no whole number")
    return value


def _moment(value: object) -> datetime:
    return datetime.fromisoformat(str(value)).replace(tzinfo=None)


def outcome_of(books: Books) -> Outcome:
    """Return how the game ended."""
    if "bankruptcy" in books.consumed or books.funds_cents < 0:
        return "bankrupt"
    reached = "horizon_end" in books.consumed or books.sim_time >= books.horizon_end
    return "survived" if reached else "incomplete"


def composite_score(books: Books, initial_funds_cents: int) -> float:
    """Return the score in [0, 1]; see the module."""
    outcome = outcome_of(books)
    if books.funds_cents <= 0 or outcome == "bankrupt":
        return 0.0
    survival = 1.0 if outcome == "survived" else 0.0
    growth = math.log1p(books.funds_cents / initial_funds_cents) / math.log(101)
    return 0.5 * survival + 0.5 * min(growth, 1.0)


def doubts_about(
    books: Books, *, initial_funds_cents: int, start_date: str, horizon_years: int
) -> list[str]:
    """Return what the game itself would never have written.

    Args:
        books: The company's books.
        initial_funds_cents: What the preset starts with.
        start_date: First day of the preset, ISO 8601.
        horizon_years: Its length.
    """
    doubts = []
    if books.funds_cents != initial_funds_cents + books.booked_cents:
        doubts.append("the ledger does not add up to the funds")
    start = datetime.fromisoformat(start_date)
    now, horizon = books.sim_time, books.horizon_end
    if horizon.date() != start.replace(year=start.year + horizon_years).date():
        doubts.append("the horizon is not the one the game began with")
    if "horizon_end" in books.consumed and now < horizon:
        doubts.append("the horizon has come before its time")
    months = (now.year - start.year) * 12 + now.month - start.month
    if books.paydays < months - MONTHS_WITHOUT_SALARIES:
        doubts.append(f"salaries were paid {books.paydays} times in {months} months")
    return doubts

"""The score of one company, read from its database outside the sandbox.

``0.5 * survival + 0.5 * min(ln(1 + funds / initial) / ln(101), 1)``, 0 if funds <= 0. Survival is 1
only if the horizon was reached without bankruptcy. Only *consumed* events count: the horizon event
stands in the table from the start. A run that stopped before its horizon is ``incomplete``, with
survival 0, so doing nothing is not survival.
"""

from __future__ import annotations

import math
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hermes_rl.errors import RewardError

__all__ = ["Books", "composite_score", "outcome_of", "read_books"]

Outcome = Literal["survived", "bankrupt", "incomplete"]


@dataclass(slots=True, frozen=True, kw_only=True)
class Books:
    """What the database says at the end.

    Attributes:
        funds_cents: Money left.
        booked_cents: Sum of all ledger entries; funds are the initial ones plus this.
        sim_time: Simulated time, ISO 8601.
        horizon_end: End of the game, ISO 8601.
        consumed: Types of the events that happened.
        tasks: Number of tasks by status.
    """

    funds_cents: int
    booked_cents: int
    sim_time: str
    horizon_end: str
    consumed: frozenset[str]
    tasks: dict[str, int]


def read_books(path: Path) -> Books:
    """Read a database that comes out of a sandbox.

    Raises:
        RewardError: It is missing a table or damaged.
    """
    try:
        # Immutable: nothing is written beside it. The schema is the agent's, so not trusted.
        connection = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
        try:
            connection.execute("PRAGMA trusted_schema = OFF")
            return _read(connection)
        finally:
            connection.close()
    except (sqlite3.Error, TypeError, ValueError) as error:
        raise RewardError(f"The company's database cannot be read: {error}") from error


def _read(connection: sqlite3.Connection) -> Books:
    def rows(query: str) -> list[tuple[object, ...]]:
        return connection.execute(query).fetchmany(10_000)

    ((funds,),) = rows("SELECT funds_cents FROM companies")
    ((booked,),) = rows("SELECT COALESCE(SUM(amount_cents), 0) FROM ledger_entries")
    ((now, horizon),) = rows("SELECT sim_time, horizon_end FROM sim_state")
    events = rows("SELECT DISTINCT event_type FROM sim_events WHERE consumed = 1")
    counts = rows("SELECT status, COUNT(*) FROM tasks GROUP BY status")
    return Books(
        funds_cents=int(str(funds)),
        booked_cents=int(str(booked)),
        sim_time=str(now),
        horizon_end=str(horizon),
        consumed=frozenset(str(kind) for (kind,) in events),
        tasks={str(status): int(str(count)) for status, count in counts},
    )


def outcome_of(books: Books) -> Outcome:
    """Return how the game ended."""
    if "bankruptcy" in books.consumed or books.funds_cents < 0:
        return "bankrupt"
    reached = "horizon_end" in books.consumed or books.sim_time >= books.horizon_end
    return "survived" if reached else "incomplete"


def composite_score(books: Books, initial_funds_cents: int) -> float:
    """Return the score in [0, 1]; see the module."""
    if books.funds_cents <= 0:
        return 0.0
    survival = 1.0 if outcome_of(books) == "survived" else 0.0
    growth = math.log1p(books.funds_cents / initial_funds_cents) / math.log(101)
    return 0.5 * survival + 0.5 * min(growth, 1.0)

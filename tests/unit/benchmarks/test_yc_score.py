import math
import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from hermes_rl.benchmarks.yc_bench import in_sandbox
from hermes_rl.benchmarks.yc_bench.score import (
    Books,
    composite_score,
    doubts_about,
    outcome_of,
    read_books,
)
from hermes_rl.benchmarks.yc_bench.task_set import KEPT_TURNS, SHOWN_TURNS, drop_old_turns
from hermes_rl.errors import RewardUnreadable

INITIAL = 25_000_000


def books(
    funds: int,
    *consumed: str,
    now: str = "2025-06-01 09:00:00",
    end: str = "2026-01-01 09:00:00",
    paydays: int = 5,
    booked: int | None = None,
) -> Books:
    return Books(
        funds_cents=funds,
        booked_cents=funds - INITIAL if booked is None else booked,
        sim_time=datetime.fromisoformat(now),
        horizon_end=datetime.fromisoformat(end),
        consumed=frozenset(consumed),
        paydays=paydays,
        tasks={},
    )


@pytest.mark.parametrize(
    ("state", "outcome", "score"),
    [
        (books(INITIAL, "horizon_end"), "survived", 0.5 + 0.5 * math.log(2) / math.log(101)),
        (books(10 * INITIAL, "horizon_end"), "survived", 0.760),
        (books(100 * INITIAL, "horizon_end"), "survived", 1.0),
        (books(1000 * INITIAL, "horizon_end"), "survived", 1.0),
        (books(INITIAL, now="2026-01-01 09:00:00"), "survived", 0.575),
        (books(INITIAL), "incomplete", 0.075),
        (books(-1, "bankruptcy"), "bankrupt", 0.0),
        (books(-1), "bankrupt", 0.0),
        (books(50 * INITIAL, "bankruptcy", "horizon_end"), "bankrupt", 0.0),
        (books(0, "horizon_end"), "survived", 0.0),
    ],
)
def test_score_table(state: Books, outcome: str, score: float) -> None:
    assert outcome_of(state) == outcome
    assert composite_score(state, INITIAL) == pytest.approx(score, abs=1e-3)


END = "2026-01-01 09:00:00"


@pytest.mark.parametrize(
    ("state", "doubt"),
    [
        (books(INITIAL), None),
        (books(INITIAL, "horizon_end", now=END, paydays=11), None),
        (books(INITIAL, "horizon_end", now=END, paydays=10), None),
        (books(INITIAL, now="2025-01-15 09:00:00", paydays=0), None),
        (books(2 * INITIAL, booked=0), "ledger"),
        (books(INITIAL, now=END, paydays=0), "salaries were paid 0 times in 12 months"),
        (books(INITIAL, "horizon_end"), "before its time"),
        (books(INITIAL, end="2025-02-01 09:00:00"), "not the one the game began with"),
    ],
)
def test_books_that_the_game_did_not_write_are_doubted(state: Books, doubt: str | None) -> None:
    doubts = doubts_about(
        state, initial_funds_cents=INITIAL, start_date="2025-01-01", horizon_years=1
    )
    assert len(doubts) == (doubt is not None)
    assert (doubt or "") in "".join(doubts)


def close_books(database: Path, copy: Path, wait_s: int = 30) -> int:
    program = Path(in_sandbox.__file__).with_name("close_books.py")
    return subprocess.run(
        [sys.executable, program, database, copy, str(wait_s)],
        stderr=subprocess.DEVNULL,
        check=False,
        timeout=100,
    ).returncode


def funds_in(database: Path) -> int:
    with closing(sqlite3.connect(f"file:{database}?immutable=1", uri=True)) as connection:
        return int(connection.execute("SELECT funds_cents FROM companies").fetchone()[0])


def company(database: Path, *, journal: str = "delete") -> sqlite3.Connection:
    connection = sqlite3.connect(database, isolation_level=None)
    connection.execute(f"PRAGMA journal_mode={journal}")
    connection.execute("CREATE TABLE companies (funds_cents INTEGER)")
    connection.execute("INSERT INTO companies VALUES (1)")
    return connection


def test_closed_books_hold_what_stands_in_a_log_beside_the_file(tmp_path: Path) -> None:
    with closing(company(tmp_path / "a b%.db", journal="wal")) as connection:
        connection.execute("UPDATE companies SET funds_cents = 2")
        assert close_books(tmp_path / "a b%.db", tmp_path / "closed.db") == 0
    assert funds_in(tmp_path / "closed.db") == 2


def test_closed_books_wait_for_a_command_in_flight(tmp_path: Path) -> None:
    company(tmp_path / "company.db").close()
    slow = (
        "import sqlite3, sys, time\n"
        "db = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "db.execute('BEGIN EXCLUSIVE'); print('in', flush=True); time.sleep(0.7)\n"
        "db.execute('UPDATE companies SET funds_cents = 3'); db.execute('COMMIT')\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", slow, tmp_path / "company.db"], stdout=subprocess.PIPE
    ) as command:
        assert command.stdout is not None
        command.stdout.readline()
        assert close_books(tmp_path / "company.db", tmp_path / "closed.db") == 0
    assert funds_in(tmp_path / "closed.db") == 3


def test_books_that_stay_locked_are_given_up(tmp_path: Path) -> None:
    with closing(company(tmp_path / "company.db")) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        assert close_books(tmp_path / "company.db", tmp_path / "closed.db", wait_s=1) != 0


def test_books_that_are_gone_or_no_database_cannot_be_closed(tmp_path: Path) -> None:
    assert close_books(tmp_path / "company.db", tmp_path / "closed.db") != 0
    assert not (tmp_path / "company.db").exists()
    (tmp_path / "company.db").write_bytes(b"no database" * 1000)
    assert close_books(tmp_path / "company.db", tmp_path / "closed.db") != 0


GAME = f"""
    CREATE TABLE companies (funds_cents INTEGER);
    INSERT INTO companies VALUES ({INITIAL - 5});
    CREATE TABLE ledger_entries (amount_cents INTEGER, category TEXT, occurred_at TEXT);
    INSERT INTO ledger_entries VALUES
        (-2, 'monthly_payroll', '2025-02-03'), (-3, 'monthly_payroll', '2025-02-03');
    CREATE TABLE sim_state (sim_time TEXT, horizon_end TEXT);
    INSERT INTO sim_state VALUES ('2025-02-03 09:00:00.000000', '2026-01-01 09:00:00.000000');
    CREATE TABLE sim_events (event_type TEXT, consumed INTEGER);
    INSERT INTO sim_events VALUES ('horizon_end', 0), ('task_completed', 1);
    CREATE TABLE tasks (status TEXT);
    INSERT INTO tasks VALUES ('market'), ('market'), ('planned');
"""


def written(path: Path, *changes: str) -> Path:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(GAME + "".join(changes))
    return path


def test_books_are_read_from_the_database(tmp_path: Path) -> None:
    read = read_books(written(tmp_path / "company.db"))
    assert read.funds_cents == INITIAL + read.booked_cents == INITIAL - 5
    assert read.sim_time == datetime(2025, 2, 3, 9)
    assert read.horizon_end == datetime(2026, 1, 1, 9)
    assert read.consumed == {"task_completed"}
    assert read.paydays == 1
    assert read.tasks == {"market": 2, "planned": 1}


def test_a_bankruptcy_counts_before_the_game_has_gone_on(tmp_path: Path) -> None:
    event = "INSERT INTO sim_events VALUES ('bankruptcy', 0);"
    assert outcome_of(read_books(written(tmp_path / "company.db", event))) == "bankrupt"


FOR_EVER = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("DROP TABLE tasks;", "no such table"),
        ("DELETE FROM companies;", "not enough values"),
        ("INSERT INTO companies VALUES (1);", "too many values"),
        ("UPDATE companies SET funds_cents = 1e300;", "no whole number"),
        ("UPDATE companies SET funds_cents = 'plenty';", "no whole number"),
        ("UPDATE ledger_entries SET amount_cents = 9223372036854775807;", "overflow"),
        ("UPDATE sim_state SET sim_time = 'soon';", "isoformat"),
        ("UPDATE sim_state SET horizon_end = NULL;", "isoformat"),
        (
            f"DROP TABLE tasks; CREATE VIEW tasks AS {FOR_EVER} 'a' AS status FROM n;",
            "interrupted",
        ),
        (
            "DROP TABLE companies; "
            "CREATE VIEW companies AS SELECT hex(zeroblob(500000000)) AS funds_cents;",
            "too big",
        ),
    ],
)
def test_books_that_no_game_writes_are_unreadable(
    change: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hermes_rl.benchmarks.yc_bench.score.READING_S", 0.5)
    database = written(tmp_path / "company.db", change)
    with pytest.raises(RewardUnreadable, match=problem):
        read_books(database)


def test_a_time_with_an_offset_is_compared_like_any_other(tmp_path: Path) -> None:
    change = "UPDATE sim_state SET sim_time = '2025-02-03T09:00:00+00:00';"
    read = read_books(written(tmp_path / "company.db", change))
    doubts = doubts_about(
        read, initial_funds_cents=INITIAL, start_date="2025-01-01", horizon_years=1
    )
    assert doubts == []
    assert outcome_of(read) == "incomplete"


def conversation(turns: int) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "rules"},
        {"role": "user", "content": "go"},
    ]
    for number in range(turns):
        messages += [
            {"role": "assistant", "content": None, "tool_calls": [{"id": str(number)}]},
            {"role": "tool", "tool_call_id": str(number), "content": "ok"},
        ]
    return messages


def test_a_short_game_keeps_its_whole_history() -> None:
    messages = conversation(SHOWN_TURNS)
    assert drop_old_turns(messages) is messages


def test_a_long_game_keeps_its_opening_and_latest_turns_and_says_what_is_missing() -> None:
    shown = drop_old_turns(conversation(SHOWN_TURNS + 1))
    assert [m["content"] for m in shown[:2]] == ["rules", "go"]
    assert f"{SHOWN_TURNS + 1 - KEPT_TURNS} earlier turns" in shown[2]["content"]
    assert sum(m["role"] == "assistant" for m in shown) == KEPT_TURNS
    assert shown[3]["role"] == "assistant"


def test_dropping_again_leaves_one_note_and_no_orphan_tool_result() -> None:
    shown = drop_old_turns(conversation(SHOWN_TURNS + 1))
    longer = drop_old_turns(shown + conversation(SHOWN_TURNS)[2:])
    notes = [m for m in longer if "earlier turns" in str(m.get("content"))]
    assert len(notes) == 1
    shown_turns = sum(m["role"] == "assistant" for m in longer)
    assert notes[0]["content"].startswith(f"({2 * SHOWN_TURNS + 1 - shown_turns} earlier turns")
    called = {c["id"] for m in longer for c in m.get("tool_calls") or []}
    assert {m["tool_call_id"] for m in longer if m["role"] == "tool"} <= called

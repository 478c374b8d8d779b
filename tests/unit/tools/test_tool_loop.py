"""No tool holds the event loop, whatever it works on."""

from functools import partial

from hermes_rl.testing.loop_monitor import run_without_long_callbacks

LIMIT_S = 0.02
"""CPU of one callback; the rule is 10 ms, twice that is room for a busy test machine."""


async def test_large_files_and_floods_do_not_hold_the_loop(call) -> None:
    await call(
        "terminal",
        command="seq 1 300000 > n; yes 'some \u201codd\u201d words' | head -10000 > quotes; "
        "yes 'a b c' | head -100000 > same",
    )
    session = await call("terminal", command="seq 1 60000; sleep 60", background=True)
    calls = [
        ("read_file", {"path": "n", "offset": 299_000}),
        ("search_files", {"pattern": "9", "file_glob": "./**/n", "context": 2}),
        ("search_files", {"pattern": "*", "target": "files"}),
        ("patch", {"path": "quotes", "old_string": "nothing\nlike it", "new_string": "x"}),
        ("patch", {"path": "same", "old_string": "b", "new_string": "B", "replace_all": True}),
        ("patch", {"mode": "patch", "patch": "*** Update File: n\n 149999\n-150000\n+x"}),
        ("write_file", {"path": "big.txt", "content": "é\n" * 300_000}),
        ("terminal", {"command": "cat n n n"}),
        ("process", {"action": "log", "session_id": session["session_id"], "limit": 60_000}),
    ]
    for name, arguments in calls:
        await run_without_long_callbacks(partial(call, name, **arguments), limit_s=LIMIT_S)

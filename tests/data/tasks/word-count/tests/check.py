import json
import os
import sys
from pathlib import Path

WANTED = ["apple 3", "fig 2", "pear 1", "quince 1", "über 1"]

path = Path(sys.argv[1])
lines = path.read_text().splitlines() if path.exists() else []
checks = {
    "test_every_word_is_counted": len(lines) == int(os.environ["EXPECTED_WORDS"]),
    "test_counts": sorted(lines) == sorted(WANTED),
    "test_order": lines == WANTED,
}
tests = [{"name": n, "status": "passed" if ok else "failed"} for n, ok in checks.items()]
passed = sum(checks.values())
summary = {"tests": len(tests), "passed": passed, "failed": len(tests) - passed}
logs = Path("/logs/verifier")
(logs / "ctrf.json").write_text(json.dumps({"results": {"summary": summary, "tests": tests}}))
(logs / "reward.json").write_text(json.dumps({"reward": float(passed == len(tests))}))

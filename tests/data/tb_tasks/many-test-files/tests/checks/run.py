"""Runs the checks and writes reward and report."""

import json
import sys
from pathlib import Path

from checks import cases


def outcome(check, path):
    try:
        check(path)
    except Exception:
        return "failed"
    return "passed"


path, logs = Path(sys.argv[1]), Path("/logs/verifier")
checks = [value for name, value in vars(cases).items() if name.startswith("test_")]
tests = [{"name": check.__name__, "status": outcome(check, path)} for check in checks]
passed = sum(test["status"] == "passed" for test in tests)
summary = {"tests": len(tests), "passed": passed, "failed": len(tests) - passed}
(logs / "ctrf.json").write_text(json.dumps({"results": {"summary": summary, "tests": tests}}))
(logs / "reward.txt").write_text("1" if passed == len(tests) else "0")

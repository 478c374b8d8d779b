"""Rows in the shape of ``bigcode/humanevalpack``, of a small function of our own, per language."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A row, and files that an agent may write.

    Attributes:
        row: The row; its canonical solution is right.
        wrong: A file that compiles and fails the tests.
        quits: A file that ends the process with success before the tests have come far.
        broken: A file that is no program.
    """

    row: Row
    wrong: str
    quits: str
    broken: str


def _row(task_id: str, name: str, prompt: str, body: str, test: str, **more: str) -> Row:
    return {
        "task_id": task_id,
        "prompt": prompt,
        "declaration": more.pop("declaration", prompt),
        "canonical_solution": body,
        "buggy_solution": body,
        "bug_type": "none",
        "failure_symptoms": "none",
        "entry_point": name,
        "import": more.pop("imports", ""),
        "test_setup": more.pop("test_setup", ""),
        "test": test,
        "example_test": "",
        "signature": name,
        "docstring": "The text backwards, so many times.",
        "instruction": f"Write `{name}`.",
    }


PYTHON = Sample(
    row=_row(
        "Python/1",
        "turned",
        'def turned(text: str, times: int) -> str:\n    """The text backwards, so many times."""\n',
        "    return text[::-1] * times\n",
        "\n\ndef check(turned):\n    assert turned('abc', 2) == 'cbacba'\n"
        "    assert turned('', 3) == ''\n\ncheck(turned)",
        declaration="def turned(text: str, times: int) -> str:\n",
    ),
    wrong="def turned(text, times):\n    return text * times\n",
    quits="import sys\ndef turned(text, times):\n    sys.exit(0)\n",
    broken="def turned(text, times) return text\n",
)
JS = Sample(
    row=_row(
        "JavaScript/1",
        "turned",
        "/* The text backwards, so many times. */\nconst turned = (text, times) => {\n",
        "  return [...text].reverse().join('').repeat(times)\n}\n",
        "const testTurned = () => {\n  console.assert(turned('abc', 2) === 'cbacba')\n"
        "  console.assert(turned('', 3) === '')\n}\n\ntestTurned()\n",
    ),
    wrong="const turned = (text, times) => text.repeat(times)\n",
    quits="const turned = (text, times) => process.exit(0)\n",
    broken="const turned = (text, times => text\n",
)
JAVA = Sample(
    row=_row(
        "Java/1",
        "turned",
        "import java.util.*;\nimport java.lang.*;\n\nclass Solution {\n"
        "    /** The text backwards, so many times. */\n"
        "    public String turned(String text, int times) {\n",
        "        return new StringBuilder(text).reverse().toString().repeat(times);\n    }\n}",
        "public class Main {\n    public static void main(String[] args) {\n"
        "        Solution s = new Solution();\n        List<Boolean> correct = Arrays.asList(\n"
        '                s.turned("abc", 2).equals("cbacba"),\n'
        '                s.turned("", 3).isEmpty()\n        );\n'
        "        if (correct.contains(false)) {\n            throw new AssertionError();\n"
        "        }\n    }\n}\n",
    ),
    wrong="class Solution { public String turned(String t, int n) { return t.repeat(n); } }\n",
    quits="class Solution { public String turned(String t, int n) {\n"
    "  System.exit(0); return t; } }\n",
    broken="class Solution { public String turned(String t, int n) { return t } }\n",
)
GO = Sample(
    row=_row(
        "Go/1",
        "Turned",
        'import (\n    "strings"\n)\n\n// The text backwards, so many times.\n'
        "func Turned(text string, times int) string {\n",
        '    back := ""\n    for _, letter := range text {\n        back = string(letter) + back\n'
        "    }\n    return strings.Repeat(back, times)\n}\n\n",
        "func TestTurned(t *testing.T) {\n    assert := assert.New(t)\n"
        '    assert.Equal("cbacba", Turned("abc", 2))\n    assert.Equal("", Turned("", 3))\n}\n',
        imports='import (\n    "strings"\n)\n',
        declaration="func Turned(text string, times int) string {\n",
        test_setup='package main\n\nimport (\n    "testing"\n    "strings"\n'
        '    "github.com/stretchr/testify/assert"\n)\n',
    ),
    wrong="package turned\n\nfunc Turned(text string, times int) string { return text }\n",
    quits='package main\n\nimport "os"\n\nfunc Turned(text string, times int) string {\n'
    "\tos.Exit(0)\n\treturn text\n}\n",
    broken="package main\n\nfunc Turned(text string, times int) string { return times }\n",
)
CPP = Sample(
    row=_row(
        "CPP/1",
        "turned",
        "/*\nThe text backwards, so many times.\n*/\n#include<string>\nusing namespace std;\n"
        "string turned(string text, int times){\n",
        "    string all;\n    for (int i=0;i<times;i++) all.append(text.rbegin(), text.rend());\n"
        "    return all;\n}\n",
        '#undef NDEBUG\n#include<assert.h>\nint main(){\n    vector<string> given={"abc"};\n'
        '    assert (turned(given[0], 2)=="cbacba");\n    assert (turned("", 3)=="");\n}\n',
        declaration="#include<string>\n#include<vector>\nusing namespace std;\n"
        "string turned(string text, int times){\n",
    ),
    wrong="#include <string>\nstd::string turned(std::string t, int n) { return t; }\n"
    'int main() { return turned("", 1).size(); }\n',
    quits="#include <cstdlib>\n#include <string>\n"
    "std::string turned(std::string t, int n) { std::exit(0); }\n",
    broken="std::string turned(std::string t, int n) { return t; }\n",
)
RUST = Sample(
    row=_row(
        "Rust/1",
        "turned",
        "fn main(){}\n\nuse std::{slice::Iter, cmp::{max, self}};\nuse rand::Rng;\n"
        "use regex::Regex;\nuse md5;\n\n/*\n The text backwards, so many times.\n*/\n"
        "fn turned(text:String, times:usize) -> String{\n",
        "    let back: String = text.chars().rev().collect();\n    return back.repeat(times);\n}\n",
        "\n#[cfg(test)]\nmod tests {\n    use super::*;\n\n    #[test]\n    fn test_turned() {\n"
        '        assert_eq!(turned("abc".to_string(), 2), "cbacba");\n'
        '        assert_eq!(turned("".to_string(), 3), "");\n    }\n\n}\n',
        declaration="\nuse std::{slice::Iter, cmp::{max, self}};\nuse rand::Rng;\n"
        "use regex::Regex;\nuse md5;\n\nfn turned(text:String, times:usize) -> String{\n",
    ),
    wrong="fn turned(text: String, times: usize) -> String { text.repeat(times) }\n"
    "#[cfg(test)]\nmod tests {\n    #[test]\n    fn own() {}\n}\n",
    quits="fn turned(text: String, _: usize) -> String { std::process::exit(0) }\n",
    broken="fn turned(text: String, times: usize) -> String { times }\n",
)
SAMPLES: Mapping[str, Sample] = {
    "python": PYTHON,
    "js": JS,
    "java": JAVA,
    "go": GO,
    "cpp": CPP,
    "rust": RUST,
}

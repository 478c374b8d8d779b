"""The languages of ``hermes-swe``: what the agent writes, and how hidden tests are run on it.

The tests are in the form of ``bigcode/humanevalpack``: Python ``assert``, ``console.assert``, a
class ``Main`` that throws, Go's ``testing`` with testify's ``assert``, a C++ ``main`` with
``assert``, a Rust ``mod tests``. They have passed if the command exits with 0 *and* a word that
was made for this one run is shown by the last thing that runs: a solution that ends the process
passes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files

__all__ = ["LANGUAGES", "HiddenTest", "Language", "TestSource", "language_of"]


@dataclass(slots=True, frozen=True, kw_only=True)
class TestSource:
    """The hidden tests of a task, as the data set has them.

    Attributes:
        code: The tests.
        setup: What stands before them (Go: package and imports).
        declaration: The function's head, with what it imports.
        entry_point: The function's name.
    """

    __test__ = False

    code: str
    setup: str = ""
    declaration: str = ""
    entry_point: str | None = None


@dataclass(slots=True, frozen=True, kw_only=True)
class HiddenTest:
    """Files to put beside a copy of the agent's, and the commands to run there.

    Attributes:
        files: Contents by name.
        build: Compiles; None where nothing is compiled.
        run: Runs the tests.
    """

    files: Mapping[str, str]
    build: str | None = None
    run: str


@dataclass(slots=True, frozen=True)
class Need:
    """What hidden tests need beside the language.

    Attributes:
        what: In words.
        check: A command that fails without it; None = no sandbox has it.
    """

    what: str
    check: str | None = None


@dataclass(slots=True, frozen=True, kw_only=True)
class Language:
    """A language that tasks can be in.

    Attributes:
        name: As the data set's configuration is called.
        title: As people write it.
        task_id: What the ids of its rows begin with.
        file: What the agent writes, in its home directory.
        tools: Commands that the sandbox must have, with what each must answer without a fault:
            one that is there need not work (rustup's without a toolchain).
        advice: What the file must be, for the agent.
        hidden_test: Makes the files of a test, given the agent's file and the word.
        shown: Makes a prompt one for the standard library alone.
        solution: Makes a file of a row's declaration, prompt and solution.
        needs: Says what a test needs that no compiler brings.
    """

    name: str
    title: str
    task_id: str
    file: str
    tools: Mapping[str, str]
    advice: str
    hidden_test: Callable[[TestSource, str, str], HiddenTest]
    shown: Callable[[str], str] = str
    solution: Callable[[str, str, str], str] = lambda declaration, prompt, body: declaration + body
    needs: Callable[[TestSource], Need | None] = lambda test: None

    @property
    def suffix(self) -> str:
        """Ending of its source files, with the dot."""
        return f".{self.file.rpartition('.')[2]}"


def _header(test: TestSource) -> Need | None:
    library = re.search(r"\bboost/[\w/]+\.hpp", test.declaration + test.code)
    if library is None:
        return None
    line = f"printf '#include <{library[0]}>\\n' | g++ -E -x c++ - > /dev/null"
    return Need(f"the header {library[0]}", line)


def _crate(test: TestSource) -> Need | None:
    crate = re.search(r"\b(rand|regex|md5)::", test.code)
    return None if crate is None else Need(f"the crate {crate[1]}")


def _python(test: TestSource, solution: str, word: str) -> HiddenTest:
    names = f"from solution import {test.entry_point}\n" if test.entry_point else ""
    code = f"from solution import *\n{names}\n{test.setup}\n{test.code}\nprint({word!r})\n"
    return HiddenTest(files={"hidden_test.py": code}, run="python3 hidden_test.py")


def _javascript(test: TestSource, solution: str, word: str) -> HiddenTest:
    # A const is seen only in its own file, and a console.assert that fails only prints.
    strict = (
        "console.assert = (claim, ...words) => {\n"
        "  if (!claim) throw new Error(['assertion failed', ...words].join(' '))\n}\n"
    )
    code = f"\n;{strict}{test.setup}\n{test.code}\n;console.log('{word}')\n"
    return HiddenTest(
        files={"hidden_test.js": code},
        run="cat solution.js hidden_test.js > both.js && node both.js",
    )


def _java(test: TestSource, solution: str, word: str) -> HiddenTest:
    imports = re.findall(r"^import .*;$", test.declaration, re.MULTILINE)
    main = "\n".join(["import java.util.*;", *imports, test.setup, test.code])
    last = (
        "public class HiddenTest {\n"
        "    public static void main(String[] args) throws Throwable {\n"
        f'        Main.main(args);\n        System.out.println("{word}");\n    }}\n}}\n'
    )
    return HiddenTest(
        files={"Main.java": main, "HiddenTest.java": last},
        build="javac -nowarn -d classes Solution.java Main.java HiddenTest.java",
        run="java -ea -cp classes HiddenTest",
    )


_GO_PACKAGES = (
    *("bytes", "crypto/md5", "encoding/hex", "errors", "fmt", "math", "math/rand", "reflect"),
    *("regexp", "sort", "strconv", "strings", "testing", "time", "unicode"),
    "github.com/stretchr/testify/assert",
)
"""What the data set's code uses; its own lists lack some and have others for nothing."""
_GO_IMPORTS = re.compile(r"^import\s*(?:\(.*?^\)|\"[^\"]*\")\s*$", re.MULTILINE | re.DOTALL)
_GO_PACKAGE = re.compile(r"^\s*package\s+(\w+)", re.MULTILINE)


def _go_file(package: str, code: str) -> str:
    """Return ``code`` as a whole file that imports what it uses, which is what Go insists on."""
    named = [path for block in _GO_IMPORTS.findall(code) for path in re.findall(r'"(.+?)"', block)]
    body = _GO_PACKAGE.sub("", _GO_IMPORTS.sub("", code), count=1).strip()
    paths = sorted({*named, *_GO_PACKAGES})
    used = [path for path in paths if re.search(rf"\b{path.rpartition('/')[2]}\.[A-Z]", body)]
    imports = "".join(f'\t"{path}"\n' for path in used)
    return f"package {package}\n\nimport (\n{imports})\n\n{body}\n"


def _go(test: TestSource, solution: str, word: str) -> HiddenTest:
    package = _GO_PACKAGE.search(solution)
    last = f'func TestZZZ(t *testing.T) {{ println("{word}") }}\n'
    code = f"{test.setup}\n{test.code}\n{last}"
    return HiddenTest(
        files={
            "hidden_test.go": _go_file(package[1] if package else "main", code),
            "go.mod": (
                "module solution\n\ngo 1.18\n\nrequire github.com/stretchr/testify v0.0.0\n\n"
                "replace github.com/stretchr/testify => ./testify\n"
            ),
            "testify/go.mod": "module github.com/stretchr/testify\n\ngo 1.18\n",
            "testify/assert/assert.go": files(__package__).joinpath("assert.go.txt").read_text(),
        },
        build="GOFLAGS=-mod=mod GOPROXY=off GOTOOLCHAIN=local go test -vet=off -c -o tests .",
        run="./tests",
    )


def _go_solution(declaration: str, prompt: str, body: str) -> str:
    # The prompt: it has the helpers that some tests use.
    return _go_file("main", prompt + body)


def _cpp(test: TestSource, solution: str, word: str) -> HiddenTest:
    # What the tests use and the solution need not: after it, so that it must do without.
    used = re.findall(r"^(?:#include|using namespace) ?.*$", test.declaration, re.MULTILINE)
    # The end of main is reached by returning from it, not by exit().
    last = f'{{ struct Last {{ ~Last() {{ puts("{word}"); }} }} last;'
    code = re.sub(r"(int\s+main\s*\([^)]*\)\s*)\{", lambda m: m[1] + last, test.code, count=1)
    lines = [
        "#define main main_of_solution",
        '#include "solution.cpp"',
        "#undef main",
        "#include <stdio.h>",
        *used,
        test.setup,
        code,
    ]
    library = " -lcrypto" if "openssl/" in solution else ""
    return HiddenTest(
        files={"hidden_test.cpp": "\n".join(lines) + "\n"},
        build=f"g++ -std=c++17 -w -o tests hidden_test.cpp{library}",
        run="./tests",
    )


def _cpp_solution(declaration: str, prompt: str, body: str) -> str:
    # The prompt, as for Go; its head lacks what only some solutions include.
    included = re.findall(r"^#include.*$", declaration, re.MULTILINE)
    return "\n".join([*included, prompt + body])


_CRATES = re.compile(r"^use (rand::Rng|regex::Regex|md5);\n", re.MULTILINE)


def _std_only(text: str) -> str:
    """Leave out crates that the data set's heads name without using them."""
    for line in _CRATES.finditer(text):
        crate = {"rand::Rng": "rand::", "regex::Regex": "Regex::", "md5": "md5::"}[line[1]]
        if crate not in text.replace(line[0], ""):
            text = text.replace(line[0], "")
    return re.sub(r"^fn main\(\)\s*\{\s*\}\s*\n", "", text.lstrip(), count=1)


def _rust_solution(declaration: str, prompt: str, body: str) -> str:
    return _std_only(declaration + body)


def _rust(test: TestSource, solution: str, word: str) -> HiddenTest:
    # The agent's file may have a module of the same name; only ours is run.
    code = re.sub(r"\bmod\s+tests\b", "mod hidden", test.code, count=1)
    last = (
        f'#[cfg(test)]\nmod hidden_zzz {{\n    #[test]\n    fn last() {{ println!("{word}"); }}\n}}'
    )
    return HiddenTest(
        files={"hidden_test.rs": f"\n{test.setup}\n{code}\n{last}\n"},
        build=(
            "cat solution.rs hidden_test.rs > both.rs && "
            "rustc --edition 2021 --test -A warnings -o tests both.rs"
        ),
        run="./tests --test-threads 1 --nocapture hidden",
    )


_ALL = (
    Language(
        name="python",
        title="Python",
        task_id="Python",
        file="solution.py",
        tools={"python3": "python3 --version"},
        advice="It must do nothing else when it is imported.",
        hidden_test=_python,
    ),
    Language(
        name="js",
        title="JavaScript",
        task_id="JavaScript",
        file="solution.js",
        tools={"node": "node --version"},
        advice="It is run by Node.js as a plain script: no import or export, and nothing printed.",
        hidden_test=_javascript,
    ),
    Language(
        name="java",
        title="Java",
        task_id="Java",
        file="Solution.java",
        tools={"javac": "command -v javac", "java": "command -v java"},
        advice="It holds the class Solution with the method and no class Main.",
        hidden_test=_java,
    ),
    Language(
        name="go",
        title="Go",
        task_id="Go",
        file="solution.go",
        tools={"go": "go version"},
        advice="It is a whole file: a package clause, the imports it needs, the function.",
        hidden_test=_go,
        solution=_go_solution,
    ),
    Language(
        name="cpp",
        title="C++",
        task_id="CPP",
        file="solution.cpp",
        tools={"g++": "g++ --version"},
        advice="It is compiled as C++17, and includes all that it needs.",
        hidden_test=_cpp,
        solution=_cpp_solution,
        needs=_header,
    ),
    Language(
        name="rust",
        title="Rust",
        task_id="Rust",
        file="solution.rs",
        tools={"rustc": "rustc --version"},
        advice="It is compiled by rustc in the edition 2021, without crates.",
        hidden_test=_rust,
        shown=_std_only,
        solution=_rust_solution,
        needs=_crate,
    ),
)
LANGUAGES: Mapping[str, Language] = {language.name: language for language in _ALL}


def language_of(task_id: str) -> Language | None:
    """Return the language that a row's id names (``Java/12``), None if it names none."""
    front = task_id.partition("/")[0]
    return next((language for language in _ALL if language.task_id == front), None)

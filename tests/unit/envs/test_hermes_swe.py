"""``hermes-swe``: rows in the published shape as tasks, and the files that test them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from hermes_rl.cli.task_sets import find_tasks
from hermes_rl.config import EnvConfig
from hermes_rl.envs.hermes_swe_env.languages import LANGUAGES
from hermes_rl.envs.hermes_swe_env.task_set import HermesSwe, SweConfig, SweTask, swe_task
from hermes_rl.errors import TaskError
from hermes_rl.task_selection import load_wanted
from hermes_rl.tasks import MalformedTasks
from tests.integration.swe_rows import SAMPLES


def write_rows(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_bytes(b"\n".join(orjson.dumps(row) for row in rows))
    return str(path)


async def load(dataset: str, **options: Any) -> dict[str, SweTask]:
    return {task.id: task for task in await HermesSwe(dataset, **options).load()}


async def test_rows_of_one_file_may_be_in_every_language(tmp_path: Path) -> None:
    rows = [sample.row for sample in SAMPLES.values()]
    tasks = await load(write_rows(tmp_path / "rows.jsonl", rows))
    assert {id: task.language.name for id, task in tasks.items()} == {
        "Python-1": "python",
        "JavaScript-1": "js",
        "Java-1": "java",
        "Go-1": "go",
        "CPP-1": "cpp",
        "Rust-1": "rust",
    }
    for task in tasks.values():
        assert task.metadata["language"] == task.language.name
        assert task.language.file in task.prompt
        assert task.language.title in task.prompt
        assert "The text backwards, so many times." in task.prompt
        assert task.test.code.strip() not in task.prompt


async def test_rows_that_name_no_language_are_in_the_configured_one(tmp_path: Path) -> None:
    row = SAMPLES["js"].row | {"task_id": None}
    path = write_rows(tmp_path / "rows.jsonl", [row])
    (task,) = (await load(path, language="js")).values()
    assert (task.id, task.language.name) == ("swe-0000", "js")


def test_the_language_is_an_option_of_the_command() -> None:
    source = find_tasks("hermes-swe")
    assert source.env_cls is SweConfig
    made = source.make(SweConfig(language="rust", dataset_name="x.jsonl"))
    assert isinstance(made, HermesSwe)
    assert made._language is LANGUAGES["rust"]
    with pytest.raises(ValueError, match="'python', 'js', 'java', 'go', 'cpp' or 'rust'"):
        SweConfig(language="cobol")
    assert "language" not in EnvConfig.model_fields


async def test_a_malformed_row_keeps_back_only_itself(tmp_path: Path) -> None:
    good = SAMPLES["python"].row
    rows = [good | {"task_id": "Python/0", "test": " "}, good, good | {"task_id": "", "test": None}]
    path = write_rows(tmp_path / "rows.jsonl", rows)
    with pytest.raises(MalformedTasks) as caught:
        await load_wanted(HermesSwe(path))
    assert str(caught.value).splitlines() == [
        "Python-0, test: it must be text that is not empty.",
        "swe-0002, test: it must be text that is not empty.",
    ]
    (task,) = await load_wanted(HermesSwe(path), skip_tasks=["Python-0", "swe-0002"])
    assert task.id == "Python-1"


async def test_a_data_set_without_tests_is_a_clear_error(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", [{"prompt": "x"}])
    with pytest.raises(TaskError, match="lacks the columns test; it has prompt"):
        await HermesSwe(path).load()


def test_the_digest_follows_prompt_and_tests() -> None:
    row = SAMPLES["go"].row
    digest = swe_task(row, 0).metadata["digest"]
    assert swe_task(row | {"buggy_solution": "x"}, 5).metadata["digest"] == digest
    for column in ("prompt", "test", "test_setup", "entry_point"):
        assert swe_task(row | {column: f"{row[column]} x"}, 0).metadata["digest"] != digest


def test_rust_prompts_and_solutions_name_no_crate_that_they_do_not_use() -> None:
    row = SAMPLES["rust"].row
    task = swe_task(row, 0)
    for text in (task.prompt, str(task.reference)):
        assert "use std::" in text
        assert "rand" not in text
        assert "md5" not in text
        assert "fn main" not in text
    used = row["canonical_solution"].replace("back.repeat", "md5::compute(back).repeat")
    needy = swe_task(row | {"canonical_solution": used}, 0)
    assert "use md5;" in str(needy.reference)


def test_go_files_import_what_they_use_whatever_the_row_lists() -> None:
    row = SAMPLES["go"].row
    # The row's setup lists strings, which its test does not use; it may lack what the test uses.
    code = row["test"] + "\nfunc half(x float64) float64 { return math.Floor(x / 2) }\n"
    test = swe_task(row | {"test": code}, 0).test
    made = LANGUAGES["go"].hidden_test(test, "// mine\npackage turned\n", "word")
    text = made.files["hidden_test.go"]
    assert text.startswith("package turned\n")
    imports = text[text.index("import (") : text.index(")\n")]
    assert [line.strip(' \t"') for line in imports.splitlines()[1:]] == [
        "github.com/stretchr/testify/assert",
        "math",
        "testing",
    ]


@pytest.mark.parametrize("name", LANGUAGES)
def test_the_word_that_proves_success_is_new_to_each_test_and_in_no_prompt(name: str) -> None:
    task = swe_task(SAMPLES[name].row, 0)
    made = task.language.hidden_test(task.test, "", "passed-1234")
    assert sum("passed-1234" in text for text in made.files.values()) == 1
    assert "passed-" not in task.prompt

"""``--env.backend_options`` of commands that only look at a backend."""

from __future__ import annotations

import argparse

import pytest

from hermes_rl.cli import doctor, sandboxes
from hermes_rl.cli.backend_flags import backend_options
from hermes_rl.config_sources import split_flags
from hermes_rl.errors import ConfigError


def options_of(*words: str) -> dict[str, object]:
    return backend_options(split_flags(words)[1], command="doctor")


def test_options_are_read_as_every_command_reads_them() -> None:
    assert options_of() == {}
    assert options_of("--env.backend_options", '{"hosts": ["a"]}') == {"hosts": ["a"]}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--env.backend_options", "{}x"], "JSON"),
        (["--env.backend_options", '["a"]'], "JSON object"),
        (["--env.backend_options"], "needs a value"),
        (["--env.seed", "1"], "doctor takes no settings but --env.backend_options"),
        (["--openai.backend_options", "{}"], "takes no settings but"),
    ],
)
def test_anything_else_is_told(words: list[str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        options_of(*words)


def test_options_are_one_backends() -> None:
    flags = split_flags(["--env.backend_options", '{"hosts": "a"}'])[1]
    for names in ([], ["ssh", "docker"]):
        with pytest.raises(ConfigError, match="name it"):
            doctor.run(argparse.Namespace(name=names), flags)


def test_a_wrong_option_is_the_backends_error() -> None:
    flags = split_flags(["--env.backend_options", '{"hots": "a"}'])[1]
    with pytest.raises(ConfigError, match="hosts"):
        sandboxes.run(argparse.Namespace(action="list", backend="ssh"), flags)

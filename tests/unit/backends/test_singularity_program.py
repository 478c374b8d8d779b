"""Command lines for Apptainer, which of its versions will do, and what images are called."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hermes_rl.backends.singularity import create_backend
from hermes_rl.backends.singularity_images import Image, reference_for
from hermes_rl.backends.singularity_program import (
    Confinement,
    Program,
    find_program,
    limits_for,
    program_environment,
    without_the_hosts_rights,
)
from hermes_rl.errors import BackendUnavailable, ConfigError
from hermes_rl.sandbox import BackendSettings

PROGRAM = Program("/usr/bin/apptainer", "apptainer", (1, 4))


def test_a_sandbox_is_one_contained_exec() -> None:
    argv = Confinement(PROGRAM, ("--userns",), "overlay").argv(
        "/images/x.sif",
        ["/.hermes/python", "outpost"],
        overlay=Path("/box/overlay"),
        workdir=Path("/box/tmp"),
        runtime=Path("/cache/runtime"),
        interfaces=Path("/box/net"),
        limits=limits_for(cpus=1.5, memory_mb=256, pids=100),
    )
    assert argv == [
        *("/usr/bin/apptainer", "exec", "--containall", "--no-init", "--no-umask", "--userns"),
        *("--no-home", "--workdir", "/box/tmp", "--overlay", "/box/overlay"),
        *(without_the_hosts_rights() if os.geteuid() == 0 else ()),
        *("--bind", "/dev/full", "--bind", "/cache/runtime:/.hermes:ro"),
        *("--net", "--network", "none", "--bind", "/box/net:/sys/class/net:ro", "--pwd", "/"),
        *("--cpus", "1.5", "--memory", "268435456", "--pids-limit", "100"),
        *("/images/x.sif", "/.hermes/python", "outpost"),
    ]


def test_the_hosts_root_starts_none_that_could_set_the_hosts_kernel() -> None:
    option, dropped, *binds = without_the_hosts_rights()
    assert option == "--drop-caps"
    assert {"CAP_SYS_ADMIN", "CAP_SYS_MODULE", "CAP_MKNOD"} <= set(dropped.split(","))
    assert "CAP_CHOWN" not in dropped
    assert "/proc/sys:/proc/sys:ro" in binds


def test_a_user_who_is_nobody_inside_gets_a_home() -> None:
    argv = Confinement(PROGRAM, (), "tmpfs").argv(
        "/image",
        ["x"],
        overlay=Path("/box/overlay"),
        workdir=Path("/box/tmp"),
        runtime=Path("/cache/runtime"),
        home=Path("/box/home"),
    )
    assert argv[argv.index("--home") + 1] == "/box/home:/home/agent"
    assert "--no-home" not in argv
    assert "--writable-tmpfs" in argv
    assert "--overlay" not in argv


@pytest.mark.parametrize(
    ("text", "name", "version"),
    [
        ("apptainer version 1.4.5-2\n", "apptainer", (1, 4)),
        ("apptainer version 1.1.0\n", "apptainer", (1, 1)),
        ("singularity-ce version 4.1.1\n", "singularity", (4, 1)),
        ("singularity version 3.8.7-1.el8\n", "singularity", (3, 8)),
    ],
)
def test_versions_that_will_do(text: str, name: str, version: tuple[int, int]) -> None:
    program = Program.parse("/usr/bin/x", text)
    assert (program.name, program.version) == (name, version)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("apptainer version 1.0.3", "apptainer 1.1 or newer is needed"),
        ("singularity version 3.5.2", "singularity 3.8 or newer is needed"),
        ("usage: singularity [game]", "neither Apptainer nor Singularity"),
    ],
)
def test_versions_that_will_not_do_name_the_fix(text: str, told: str) -> None:
    with pytest.raises(BackendUnavailable, match=told) as caught:
        Program.parse("/usr/bin/x", text)
    assert "Install Apptainer" in str(caught.value)


def test_a_missing_program_names_the_fix(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BackendUnavailable, match=r"is on PATH\. Install Apptainer"):
        find_program()


def test_singularity_is_taken_where_there_is_no_apptainer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for name, said in (("singularity", "singularity-ce version 4.1.1"),):
        (tmp_path / name).write_text(f"#!/bin/sh\necho {said}\n")
        (tmp_path / name).chmod(0o755)
    assert find_program().path == str(tmp_path / "singularity")


def test_nothing_of_the_engines_environment_gets_in(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "APPTAINERENV_KEY", "SINGULARITYENV_KEY", "SINGULARITY_ENVX"):
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("APPTAINER_CACHEDIR", "/scratch")
    environment = program_environment()
    assert "secret" not in environment.values()
    assert environment["APPTAINER_CACHEDIR"] == "/scratch"
    assert environment["PATH"] == os.environ["PATH"]


def test_options_of_containers_do_not_come_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = ("BIND", "BINDPATH", "MOUNT", "OVERLAY", "HOME", "NV", "PWD", "SCRATCH", "UNKNOWN")
    refused = [f"{each}_{name}" for each in ("APPTAINER", "SINGULARITY") for name in options]
    kept = ("CACHEDIR", "TMPDIR", "CONFIGDIR", "DISABLE_CACHE", "DOCKER_USERNAME", "NOHTTPS")
    wanted = [f"{each}_{name}" for each in ("APPTAINER", "SINGULARITY") for name in kept]
    for name in (*refused, *wanted):
        monkeypatch.setenv(name, "/etc:/mnt")
    environment = program_environment()
    assert not environment.keys() & set(refused)
    assert environment.keys() >= set(wanted)


@pytest.mark.parametrize(
    ("name", "source", "reference"),
    [
        ("debian:12", "docker", "docker://debian:12"),
        ("ghcr.io/a/b@sha256:00", "docker", "docker://ghcr.io/a/b@sha256:00"),
        ("docker:5000/x", "docker", "docker://docker:5000/x"),
        ("docker://debian:12", "docker-daemon", "docker://debian:12"),
        ("debian", "docker-daemon", "docker-daemon:debian:latest"),
        ("debian:12", "docker-daemon", "docker-daemon:debian:12"),
        ("oras://a/b", "docker", "oras://a/b"),
        ("/images/x.sif", "docker", "/images/x.sif"),
        ("x.sif", "docker", str(Path("x.sif").absolute())),
        ("./directory", "docker", str(Path("directory").absolute())),
    ],
)
def test_images_are_found_by_what_people_call_them(name: str, source: str, reference: str) -> None:
    assert reference_for(name, source=source) == reference


def test_an_image_configuration_is_read() -> None:
    config = {"WorkingDir": "/app", "User": 1000, "Entrypoint": ["tini"], "Cmd": ["run", "me"]}
    assert Image.of(Path("/x.sif"), "x", config) == Image(
        path="/x.sif", name="x", user="1000", workdir="/app", entrypoint=("tini", "run", "me")
    )
    assert Image.of(Path("/x.sif"), "x", {"Cmd": None}).entrypoint == ()


def test_an_unknown_option_names_those_that_are_known() -> None:
    with pytest.raises(ConfigError, match=r"'imgae'.*Known options: image, image_source"):
        create_backend(BackendSettings(run_id="test", options={"imgae": "x"}))

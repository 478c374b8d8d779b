"""What the engine is told to make of a spec."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hermes_rl.backends.docker_container import ContainerPlan, container_config
from hermes_rl.backends.docker_images import Image
from hermes_rl.backends.docker_options import DockerOptions, parse_options
from hermes_rl.backends.runtime import Runtime
from hermes_rl.errors import ConfigError
from hermes_rl.sandbox import Capability, SandboxSpec

ALL = frozenset(Capability)
RUNTIME = Runtime(Path("/cache/runtime-abc"), "lib/ld-linux-x86-64.so.2")


def _plan(**changes: Any) -> ContainerPlan:
    defaults: dict[str, Any] = {
        "spec": SandboxSpec(),
        "image": Image("sha256:1", "image"),
        "runtime": RUNTIME,
        "options": DockerOptions(),
        "labels": {"hermes.run": "r"},
        "network": "public",
        "cores": 4,
        "capabilities": ALL,
    }
    return ContainerPlan(**{**defaults, **changes})


def _config(**changes: Any) -> dict[str, Any]:
    return container_config(_plan(**changes))


def _command(config: dict[str, Any]) -> list[str]:
    return [*config["Entrypoint"], *config["Cmd"]]


def test_the_outpost_is_the_main_process_and_its_stream_the_sandboxs_life() -> None:
    config = _config()
    assert _command(config)[:4] == [
        "/.hermes/lib/ld-linux-x86-64.so.2",
        "--library-path",
        "/.hermes/lib",
        "/.hermes/bin/python3",
    ]
    assert "/.hermes/outpost.pyc" in config["Cmd"]
    assert (config["OpenStdin"], config["StdinOnce"], config["Tty"]) == (True, True, False)
    host = config["HostConfig"]
    assert (host["AutoRemove"], host["Init"]) == (True, False)
    assert host["LogConfig"] == {"Type": "none"}


def test_the_supervisor_is_root_whoever_commands_run_as() -> None:
    config = _config(image=Image("sha256:1", "i", user="app"))
    assert config["User"] == "0:0"
    assert "--user=app" in config["Cmd"]
    assert "--user=1000" in _config(spec=SandboxSpec(user="1000"))["Cmd"]


def test_the_interpreter_is_mounted_read_only() -> None:
    (mount,) = _config()["HostConfig"]["Mounts"]
    assert mount == {
        "Type": "bind",
        "Source": "/cache/runtime-abc",
        "Target": "/.hermes",
        "ReadOnly": True,
    }
    (mount,) = _config(volume="hermes-abc")["HostConfig"]["Mounts"]
    assert (mount["Type"], mount["Source"], mount["ReadOnly"]) == ("volume", "hermes-abc", True)


def test_limits_have_defaults() -> None:
    host = _config()["HostConfig"]
    assert (host["Memory"], host["MemorySwap"], host["PidsLimit"]) == (4 << 30, 4 << 30, 4096)
    assert "NanoCpus" not in host


def test_limits_are_the_specs() -> None:
    host = _config(spec=SandboxSpec(memory_mb=96, pids=50, cpus=1.5))["HostConfig"]
    assert (host["Memory"], host["PidsLimit"], host["NanoCpus"]) == (96 << 20, 50, 1_500_000_000)


def test_more_cores_than_the_machine_has_are_as_many_as_it_has() -> None:
    assert _config(spec=SandboxSpec(cpus=16))["HostConfig"]["NanoCpus"] == 4_000_000_000


def test_a_limit_the_daemon_cannot_enforce_is_not_set() -> None:
    without = ALL - {Capability.MEMORY_LIMIT, Capability.PIDS_LIMIT, Capability.CPU_LIMIT}
    host = _config(capabilities=without)["HostConfig"]
    assert host.keys().isdisjoint({"Memory", "MemorySwap", "PidsLimit", "NanoCpus"})


@pytest.mark.parametrize(("network", "mode"), [("public", "bridge"), ("none", "none")])
def test_the_network_is_bridge_or_none(network: str, mode: str) -> None:
    assert _config(network=network)["HostConfig"]["NetworkMode"] == mode


def test_the_images_working_directory_is_the_default() -> None:
    image = Image("sha256:1", "i", workdir="/app")
    assert _config(image=image)["WorkingDir"] == "/app"
    assert _config(image=image, spec=SandboxSpec(workdir="/w"))["WorkingDir"] == "/w"
    assert _config()["WorkingDir"] == "/"


def test_the_specs_environment_is_added_to_the_images() -> None:
    image = Image("sha256:1", "i", env={"A": "1", "B": "2"})
    config = _config(image=image, spec=SandboxSpec(env={"B": "3", "C": "4"}))
    assert config["Env"] == ["B=3", "C=4"]


def test_what_an_image_preloads_reaches_commands_but_not_the_supervisor() -> None:
    image = Image("sha256:1", "i", env={"LD_PRELOAD": "/lib/jemalloc.so", "A": "1"})
    config = _config(image=image, spec=SandboxSpec(env={"LD_LIBRARY_PATH": "/opt/lib"}))
    assert sorted(config["Env"]) == ["LD_LIBRARY_PATH", "LD_PRELOAD"]
    assert "--env=LD_PRELOAD=/lib/jemalloc.so" in config["Cmd"]
    assert "--env=LD_LIBRARY_PATH=/opt/lib" in config["Cmd"]


def test_the_default_takes_dockers_own_capabilities() -> None:
    host = _config()["HostConfig"]
    assert host.keys().isdisjoint({"CapDrop", "CapAdd", "SecurityOpt", "ReadonlyRootfs"})


def test_strict_hardening_leaves_the_supervisors_capabilities_only() -> None:
    host = _config(options=DockerOptions(hardening="strict"))["HostConfig"]
    assert host["CapDrop"] == ["ALL"]
    assert host["CapAdd"] == ["KILL", "SETGID", "SETUID"]
    assert host["SecurityOpt"] == ["no-new-privileges"]


def test_a_read_only_sandbox_has_memory_to_write_to() -> None:
    host = _config(options=DockerOptions(read_only=True))["HostConfig"]
    assert host["ReadonlyRootfs"] is True
    assert set(host["Tmpfs"]) == {"/tmp", "/var/tmp", "/run"}


def test_the_images_own_health_check_is_off() -> None:
    assert _config()["Healthcheck"] == {"Test": ["NONE"]}


def test_the_lease_reaches_the_supervisor() -> None:
    assert "--lease-s=90" in _config(spec=SandboxSpec(lease_s=90))["Cmd"]
    assert "--lease-s=100000" in _config(spec=SandboxSpec(lease_s=100_000))["Cmd"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"imgae": "x"}, ["imgae", "image, hardening, read_only, runtime"]),
        ({"hardening": "max"}, ["hardening", "strict"]),
        ({"read_only": "perhaps"}, ["read_only"]),
    ],
)
def test_a_wrong_option_is_named_with_what_is_known(
    options: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_options(options)
    assert all(word in str(caught.value) for word in words)

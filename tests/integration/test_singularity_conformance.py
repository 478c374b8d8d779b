"""The singularity backend against the conformance suite, over the stub of Apptainer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hermes_rl.backends.singularity import create_backend
from hermes_rl.sandbox import Backend, BackendSettings
from hermes_rl.testing.sandbox_conformance import SandboxConformance

from .apptainer_world import World, apptainer_world
from .bubblewrap_here import require_bubblewrap


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    require_bubblewrap()
    with apptainer_world(tmp_path_factory.mktemp("world")) as world:
        yield world


class TestSingularitySandbox(SandboxConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def unopened_backend(cls, world: World) -> Backend:
        options = {"image": str(world.image)}
        return create_backend(BackendSettings(run_id="conformance", options=options))

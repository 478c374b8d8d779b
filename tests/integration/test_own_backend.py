"""The backend of the documentation: what it declares holds, and leaving it leaves nothing."""

import importlib.util
import sys
from pathlib import Path

import pytest

from hermes_rl.errors import ConfigError, CreateError
from hermes_rl.sandbox import Backend, BackendSettings, SandboxSpec
from hermes_rl.testing.leaks import leak_census
from hermes_rl.testing.sandbox_conformance import (
    ArgvConformance,
    BackendConformance,
    LifeConformance,
)

PATH = Path(__file__).parents[2] / "docs" / "own_backend.py"


def _open(**options: object) -> Backend:
    spec = importlib.util.spec_from_file_location("own_backend", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["own_backend"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    backend: Backend = module.create_backend(BackendSettings(run_id="docs", options=options))
    return backend


class TestOwnBackend(LifeConformance, BackendConformance, ArgvConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def unopened_backend(cls) -> Backend:
        return _open()


async def test_it_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    async with leak_census():
        async with _open(prefix=["nice"]) as backend:
            sandbox = await backend.create(SandboxSpec())
            await backend.create(SandboxSpec())
            assert (await sandbox.exec("nice", timeout_s=60)).text == "10\n"
            assert len(list(tmp_path.iterdir())) == 2
        assert list(tmp_path.iterdir()) == []


async def test_a_prefix_that_is_missing_is_named() -> None:
    async with _open(prefix=["no-such-program"]) as backend:
        with pytest.raises(CreateError, match="no-such-program"):
            await backend.create(SandboxSpec())


def test_a_prefix_that_is_no_list_is_refused() -> None:
    with pytest.raises(ConfigError, match="prefix must be a list"):
        _open(prefix="nice")

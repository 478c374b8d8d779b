import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Build the sdist and the wheel from a copy of the tracked files."""
    work = tmp_path_factory.mktemp("dist")
    source = work / "source"
    files = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout.split(b"\0")
    archive = work / "source.tar"
    with tarfile.open(archive, "w") as tar:
        for name in filter(None, files):
            path = ROOT / name.decode()
            if path.is_symlink() or path.exists():
                tar.add(path, arcname=name.decode(), recursive=False)
    with tarfile.open(archive) as tar:
        tar.extractall(source, filter="data")
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", work / "dist", source],
        check=True,
        capture_output=True,
    )
    (wheel,) = (work / "dist").glob("*.whl")
    (sdist,) = (work / "dist").glob("*.tar.gz")
    return wheel, sdist


def test_the_wheel_has_one_top_level_package(distributions: tuple[Path, Path]) -> None:
    names = zipfile.ZipFile(distributions[0]).namelist()
    tops = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert tops == {"hermes_rl"}


def test_the_wheel_holds_every_module_and_data_file(distributions: tuple[Path, Path]) -> None:
    names = set(zipfile.ZipFile(distributions[0]).namelist())
    packages = {"hermes_rl": "", "backends": "hermes_rl/", "parsers": "hermes_rl/"}
    packages["benchmarks"] = "hermes_rl/"
    wanted = {
        prefix + path.relative_to(ROOT).as_posix()
        for folder, prefix in packages.items()
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".yaml", ".sh", ".jinja", ".typed"} and path.is_file()
        if "__pycache__" not in path.parts
    }
    assert wanted - names == set()


def test_the_sdist_builds_the_same_packages(distributions: tuple[Path, Path]) -> None:
    with tarfile.open(distributions[1]) as tar:
        names = [name.split("/", 1)[-1] for name in tar.getnames()]
    assert "hermes_rl/backends/__init__.py" in names or "backends/__init__.py" in names
    assert "LICENSE" in names


def test_importing_the_package_is_light_and_silent() -> None:
    code = (
        "import sys, hermes_rl\n"
        "heavy = {'atroposlib', 'transformers', 'wandb', 'datasets', 'modal', 'torch', 'numpy',"
        " 'aiodocker', 'xllamacpp'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert result.stdout.strip() == "[]"
    assert result.stderr == ""

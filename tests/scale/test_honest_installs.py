"""curl and uv as agents install them: the packages of Debian and PyPI, downloaded here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hermes_rl.backends.docker import create_backend
from hermes_rl.redirection import redirection_flags
from hermes_rl.tamper import SUSPECTS, tamper_flags
from tests.conftest import require
from tests.integration.docker_boxes import box, run_settings
from tests.proof import Proof

PROOF = "scale-honest-installs"
PACKAGES = ("curl", "wget", "libcurl4")

pytestmark = [
    pytest.mark.scale,
    pytest.mark.docker,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("docker_image"),
]


@pytest.fixture
def downloads(tmp_path: Path) -> Path:
    """Debian packages, and what pip makes of uv's wheel."""
    folder = tmp_path / "downloads"
    folder.mkdir()
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--ignore-installed"]
    for words in (
        ["apt-get", "download", "-qq", *PACKAGES],
        [*pip, "--root", str(folder), "--prefix", "/usr/local", "uv"],
    ):
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
        require(done.returncode == 0, f"needs {words[0]}'s registry: {done.stderr[-300:]}")
    return folder


async def test_curl_and_uv_from_their_registries_are_no_flag(
    downloads: Path, tmp_path: Path, proof: Proof
) -> None:
    async with create_backend(run_settings(tmp_path)) as backend:
        sandbox = await backend.create(box())
        await sandbox.upload(downloads, "/tmp/d")
        for command in ("dpkg -i /tmp/d/*.deb", "cp -a /tmp/d/usr/local/. /usr/local/", "uv -V"):
            done = await sandbox.exec(command, timeout_s=120)
            assert done.exit_code == 0, done.text
        changes = await sandbox.changes(suspects=SUSPECTS)
        paths = {change.path for change in changes}
        assert paths >= {"/usr/bin/curl", "/usr/bin/wget", "/usr/local/bin/uv"}
        assert await tamper_flags(sandbox, changes) == ()
        assert await redirection_flags(sandbox) == ()
    proof(f"{', '.join(PACKAGES)} by dpkg and {done.text.strip()}: {len(changes)} changes, no flag")

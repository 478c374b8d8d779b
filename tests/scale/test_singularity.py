"""The singularity backend over the installed Apptainer or Singularity: ``make test-singularity``.

The image is the Docker tests' one, converted once and kept in the cache.
"""

from __future__ import annotations

import pytest

from hermes_rl.backends.singularity import create_backend
from hermes_rl.backends.singularity_program import find_program
from hermes_rl.errors import BackendUnavailable
from hermes_rl.sandbox import Backend, BackendSettings, SandboxSpec
from hermes_rl.testing.sandbox_conformance import SandboxConformance
from tests.integration.docker_boxes import TEST_IMAGE

pytestmark = [pytest.mark.singularity, pytest.mark.docker, pytest.mark.timeout(900)]

OPTIONS = {"image": TEST_IMAGE, "image_source": "docker-daemon"}


@pytest.fixture(scope="module", autouse=True)
def program(docker_image: str) -> str:
    try:
        return str(find_program())
    except BackendUnavailable as error:
        pytest.skip(str(error))


class TestSingularityContainer(SandboxConformance):
    spec = SandboxSpec(image=TEST_IMAGE)
    longest_name_bytes = 251  # of fuse-overlayfs, which writes over SIF files without privileges

    @pytest.fixture(scope="class")
    @classmethod
    def unopened_backend(cls) -> Backend:
        return create_backend(BackendSettings(run_id="conformance", options=OPTIONS))

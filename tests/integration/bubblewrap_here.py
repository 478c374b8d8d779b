"""Whether bubblewrap can isolate on this machine."""

from __future__ import annotations

import functools

from hermes_rl.backends.bubblewrap import check_bubblewrap
from hermes_rl.backends.runtime import build_runtime
from hermes_rl.errors import BackendUnavailable
from hermes_rl.sandbox import BackendSettings
from tests.conftest import require


@functools.cache
def _complaint() -> str:
    """Return why it cannot, "" if it can."""
    try:
        check_bubblewrap(build_runtime(BackendSettings(run_id="x").cache_dir))
    except BackendUnavailable as error:
        return str(error)
    return ""


def require_bubblewrap() -> None:
    """Skip the calling test where it cannot; fail in CI."""
    require(not _complaint(), _complaint())

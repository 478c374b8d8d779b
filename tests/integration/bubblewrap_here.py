"""Whether bubblewrap can isolate on this machine."""

from __future__ import annotations

import functools

from hermes_rl.backends.bubblewrap import check_bubblewrap
from hermes_rl.backends.runtime import build_runtime
from hermes_rl.errors import BackendUnavailable
from hermes_rl.sandbox import BackendSettings


@functools.cache
def complaint_of_bubblewrap() -> str:
    """Return why it cannot, "" if it can."""
    try:
        check_bubblewrap(build_runtime(BackendSettings(run_id="x").cache_dir))
    except BackendUnavailable as error:
        return str(error)
    return ""

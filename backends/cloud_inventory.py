"""Looking at an account without changing anything: its sandboxes, and the doctor's checks."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import anyio

from hermes_rl.backends.cloud_vendor import BoxRecord, CloudVendor
from hermes_rl.backends.ownership import DEADLINE_LABEL, OWNER_LABEL, RUN_LABEL, Owner, judge
from hermes_rl.errors import ConfigError, HermesRLError, SandboxError
from hermes_rl.sandbox import Check, SandboxRecord

__all__ = ["examine_account", "list_records"]


async def list_records(vendor: CloudVendor) -> list[SandboxRecord]:
    """Return the sandboxes of all runs.

    Raises:
        ConfigError: A token is missing or refused.
        BackendUnavailable: The vendor cannot be reached.
    """
    owner = Owner.current()
    found: Sequence[BoxRecord] = ()
    failure: HermesRLError | None = None
    async with anyio.create_task_group() as tasks:
        try:
            await vendor.open(tasks)
            found = await vendor.leftovers(())
        except HermesRLError as error:
            failure = error  # raised in the group it would leave inside another error
        finally:
            await vendor.close()
            tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
    now_s = time.time()
    return [_record(each, owner, now_s) for each in found]


def _record(box: BoxRecord, owner: Owner, now_s: float) -> SandboxRecord:
    deadline = box.labels.get(DEADLINE_LABEL, "")
    return SandboxRecord(
        id=box.id,
        image=box.image,
        state=box.state,
        run=box.labels.get(RUN_LABEL, ""),
        owner=box.labels.get(OWNER_LABEL, ""),
        deadline_s=float(deadline) if deadline.isdecimal() else None,
        verdict=judge(box.labels, seen_from=owner, now_s=now_s),
    )


async def examine_account(vendor: CloudVendor, *, tokens: Check) -> Sequence[Check]:
    """Return the checks that need the vendor; none of them where a token is missing."""
    if not tokens.ok:
        return [replace(tokens, optional=True)]
    try:
        records = await list_records(vendor)
    except (ConfigError, SandboxError) as error:
        return [tokens, Check(f"{vendor.name} account", False, str(error), str(error))]
    stale = [record.id for record in records if record.verdict != "keep"]
    detail = f"{len(records)} of all runs, {len(stale)} without an owner or past their deadline"
    fix = f"hermes_rl sandboxes clean --backend {vendor.name}"
    return [
        tokens,
        Check(f"{vendor.name} account", True, "reached"),
        Check(f"{vendor.name} sandboxes", not stale, detail, fix),
    ]

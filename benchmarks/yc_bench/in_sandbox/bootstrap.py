"""Create one company: tables, world by the preset's own configuration, horizon.

Usage: bootstrap.py PRESET SEED. The wheel's own ``sim init`` needs tables that nobody makes and
ignores the preset's distributions; the package's API does neither.
"""

import json
import sys
from datetime import UTC, datetime, time

from yc_bench.config import load_config
from yc_bench.core.events import insert_event
from yc_bench.db.models.event import EventType
from yc_bench.db.models.sim_state import SimState
from yc_bench.db.session import build_engine, build_session_factory, init_db, session_scope
from yc_bench.services.seed_world import SeedWorldRequest, seed_world_transactional


def main(preset: str, seed: int) -> None:
    """Make the company and print what it starts with."""
    config = load_config(preset)
    first_day = datetime.fromisoformat(str(config.sim.start_date)).date()
    start = datetime.combine(first_day, time(config.world.workday_start_hour), UTC)
    horizon = start.replace(year=start.year + config.sim.horizon_years)
    request = SeedWorldRequest(
        run_seed=seed,
        company_name=config.sim.company_name,
        horizon_years=config.sim.horizon_years,
        employee_count=config.world.num_employees,
        market_task_count=config.world.num_market_tasks,
        start_date=start,
        cfg=config.world,
    )
    engine = build_engine()
    init_db(engine)
    with session_scope(build_session_factory(engine)) as db:
        company_id = seed_world_transactional(db, request).company_id
        insert_event(
            db=db,
            company_id=company_id,
            event_type=EventType.HORIZON_END,
            scheduled_at=horizon,
            payload={"reason": "horizon_end"},
            dedupe_key="horizon_end",
        )
        state = SimState(
            company_id=company_id,
            sim_time=start,
            run_seed=seed,
            horizon_end=horizon,
            replenish_counter=0,
        )
        db.add(state)
    print(json.dumps({"ok": True, "horizon_end": horizon.isoformat()}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

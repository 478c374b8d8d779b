"""The retry layer with an injected clock: nothing here sleeps."""

import anyio
import pytest

from hermes_rl.errors import (
    ModelError,
    ModelNotFound,
    ModelProtocolError,
    ModelRateLimited,
    ModelRejected,
    ModelTransient,
    ModelUnauthorized,
)
from hermes_rl.model.limiter import AdaptiveLimiter
from hermes_rl.model.retry import Retrier, RetryPolicy, Spent


class FakeTime:
    """A clock that only sleeping and working move."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.slept: list[float] = []

    def clock(self) -> float:
        return self.now_s

    async def sleep(self, delay_s: float) -> None:
        self.slept.append(delay_s)
        self.now_s += delay_s

    def attempts(self, *outcomes: Exception | str, each_s: float = 0.0) -> "Attempts":
        return Attempts(self, list(outcomes), each_s)

    def retrier(self, policy: RetryPolicy | None = None, *, rng: float = 0.0) -> Retrier:
        return Retrier(
            AdaptiveLimiter(8),
            policy=policy,
            clock=self.clock,
            sleep=self.sleep,
            rng=lambda: rng,
        )


class Attempts:
    """Plays outcomes in turn, the last one for ever."""

    def __init__(self, time: FakeTime, outcomes: list[Exception | str], each_s: float) -> None:
        self._time = time
        self._outcomes = outcomes
        self._each_s = each_s
        self.remaining: list[float] = []

    async def __call__(self, remaining_s: float) -> str:
        self.remaining.append(remaining_s)
        self._time.now_s += self._each_s
        outcome = self._outcomes[min(len(self.remaining), len(self._outcomes)) - 1]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


@pytest.fixture
def time() -> FakeTime:
    return FakeTime()


async def test_a_success_is_returned_at_once(time: FakeTime) -> None:
    spent = Spent()
    attempt = time.attempts("ok", each_s=2.0)
    assert await time.retrier().run(attempt, spent) == "ok"
    assert (spent.requests, spent.model_s, spent.waiting_s) == (1, 2.0, 0.0)
    assert time.slept == []


async def test_delays_double_and_are_half_random(time: FakeTime) -> None:
    policy = RetryPolicy(max_attempts=6, max_delay_s=5.0)
    attempt = time.attempts(ModelTransient("down"))
    with pytest.raises(ModelTransient):
        await time.retrier(policy, rng=0.0).run(attempt, Spent())
    assert time.slept == [0.25, 0.5, 1.0, 2.0, 2.5]
    time.slept.clear()
    with pytest.raises(ModelTransient):
        await time.retrier(policy, rng=1.0).run(attempt, Spent())
    assert time.slept == [0.5, 1.0, 2.0, 4.0, 5.0]


async def test_default_delays_ride_out_half_a_minute(time: FakeTime) -> None:
    with pytest.raises(ModelTransient):
        await time.retrier(rng=0.0).run(time.attempts(ModelTransient("down")), Spent())
    assert sum(time.slept) > 30


async def test_the_last_error_says_how_often_it_was_tried(time: FakeTime) -> None:
    attempt = time.attempts(ModelTransient("boom.", status=502))
    with pytest.raises(ModelTransient, match=r"boom\. Gave up after 3 requests\.") as caught:
        await time.retrier(RetryPolicy(max_attempts=3)).run(attempt, Spent())
    assert caught.value.status == 502
    assert len(attempt.remaining) == 3


async def test_a_server_that_is_not_there_is_told_once_a_minute(
    time: FakeTime, caplog: pytest.LogCaptureFixture
) -> None:
    retrier, busy, down = time.retrier(), ModelRateLimited("busy."), ModelTransient("down.")
    for outcomes in ([down, "ok"], [busy, busy, busy, "ok"]):
        await retrier.run(time.attempts(*outcomes), Spent())
    assert caplog.messages == []
    for _ in range(3):
        await retrier.run(time.attempts(down, down, "ok"), Spent())
    assert caplog.messages == ["down. Trying again, 8 times in all."]
    time.now_s += 60
    with pytest.raises(ModelTransient):
        await retrier.run(time.attempts(ModelTransient("gone."), each_s=20.0), Spent())
    assert caplog.messages[1:] == ["gone. Trying again, 8 times in all."] * 2


async def test_retry_after_is_the_least_delay(time: FakeTime) -> None:
    attempt = time.attempts(ModelRateLimited("slow down", retry_after_s=7.0), "ok")
    await time.retrier(rng=0.0).run(attempt, Spent())
    assert time.slept == [7.0]
    time.slept.clear()
    await time.retrier(rng=1.0).run(
        time.attempts(ModelRateLimited("slow down", retry_after_s=7.0), "ok"), Spent()
    )
    assert 7.0 < time.slept[0] <= 8.0


async def test_repeated_retry_after_zero_still_spreads_out(time: FakeTime) -> None:
    attempt = time.attempts(ModelRateLimited("no", retry_after_s=0.0))
    with pytest.raises(ModelRateLimited):
        await time.retrier(rng=1.0).run(attempt, Spent())
    assert time.slept == sorted(time.slept)
    assert time.slept[-1] > 10


async def test_a_retry_after_beyond_the_wall_gives_up_at_once(time: FakeTime) -> None:
    attempt = time.attempts(ModelRateLimited("tomorrow.", retry_after_s=86400.0))
    with pytest.raises(ModelRateLimited, match="the server asks to wait 86400 s") as caught:
        await time.retrier().run(attempt, Spent())
    assert time.slept == []
    assert caught.value.retry_after_s == 86400.0


async def test_the_wall_bounds_attempts_and_delays_together(time: FakeTime) -> None:
    attempt = time.attempts(ModelTransient("no answer"), each_s=40.0)
    policy = RetryPolicy(max_attempts=1000, max_wall_s=100.0)
    began_at = time.now_s
    with pytest.raises(ModelTransient):
        await time.retrier(policy).run(attempt, Spent())
    assert attempt.remaining[0] == 100.0
    assert attempt.remaining[1] == pytest.approx(59.75)
    assert time.now_s - began_at <= 100.0 + 40.0


async def test_nonsense_answers_are_retried_less_often(time: FakeTime) -> None:
    attempt = time.attempts(ModelProtocolError("garbage"))
    with pytest.raises(ModelProtocolError):
        await time.retrier().run(attempt, Spent())
    assert len(attempt.remaining) == RetryPolicy().max_protocol_attempts


@pytest.mark.parametrize(
    "error", [ModelRejected("x"), ModelUnauthorized("x"), ModelNotFound("x"), ModelError("x")]
)
async def test_permanent_errors_are_not_retried(time: FakeTime, error: ModelError) -> None:
    attempt = time.attempts(error)
    retrier = time.retrier()
    with pytest.raises(type(error)) as caught:
        await retrier.run(attempt, Spent())
    assert caught.value is error
    assert len(attempt.remaining) == 1
    assert retrier.limiter.in_flight == 0


async def test_failed_attempts_and_delays_are_waiting_not_model_time(time: FakeTime) -> None:
    spent = Spent()
    attempt = time.attempts(ModelTransient("a"), ModelRateLimited("b"), "ok", each_s=3.0)
    await time.retrier(rng=0.0).run(attempt, spent)
    assert spent.requests == 3
    assert spent.model_s == 3.0
    assert spent.waiting_s == pytest.approx(6.0 + sum(time.slept))


async def test_waiting_for_a_permit_is_waiting_and_does_not_use_up_the_wall(
    time: FakeTime,
) -> None:
    limiter = AdaptiveLimiter(1, start=1)
    retrier = Retrier(limiter, clock=time.clock, sleep=time.sleep)
    held = await limiter.acquire()
    spent = Spent()

    async def call() -> None:
        assert await retrier.run(time.attempts("ok", each_s=1.0), spent) == "ok"

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call)
        await anyio.wait_all_tasks_blocked()
        time.now_s += 5000.0
        held.release()
    assert spent.waiting_s == 5000.0
    assert spent.model_s == 1.0
    assert spent.retry_wall_s == 0.0


async def test_no_permit_is_held_while_a_retry_waits(time: FakeTime) -> None:
    limiter = AdaptiveLimiter(1, start=1)
    in_flight_while_asleep = []

    async def sleep(delay_s: float) -> None:
        in_flight_while_asleep.append(limiter.in_flight)

    retrier = Retrier(limiter, clock=time.clock, sleep=sleep)
    await retrier.run(time.attempts(ModelRateLimited("no", retry_after_s=30.0), "ok"), Spent())
    assert in_flight_while_asleep == [0]


async def test_a_long_retry_after_delays_one_request_and_freezes_nothing(time: FakeTime) -> None:
    limiter = AdaptiveLimiter(64, start=8)
    asleep = anyio.Event()
    wake = anyio.Event()

    async def sleep(delay_s: float) -> None:
        asleep.set()
        await wake.wait()

    refused = Retrier(limiter, clock=time.clock, sleep=sleep)
    others = Retrier(limiter, clock=time.clock, sleep=time.sleep)
    attempt = time.attempts(ModelRateLimited("no", retry_after_s=1700.0), "ok")

    async def other() -> None:
        async def answer(remaining_s: float) -> str:
            await anyio.lowlevel.checkpoint()
            return "ok"

        await others.run(answer, Spent())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(refused.run, attempt, Spent())
        await asleep.wait()
        after_cut = limiter.limit
        for _ in range(40):
            async with anyio.create_task_group() as round_:
                for _ in range(64):
                    round_.start_soon(other)
        assert limiter.limit > after_cut + 8
        wake.set()
    assert limiter.in_flight == 0


async def test_cancelling_gives_the_permit_back(time: FakeTime) -> None:
    retrier = time.retrier()
    started = anyio.Event()

    async def never(remaining_s: float) -> str:
        started.set()
        await anyio.sleep_forever()
        return ""

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(retrier.run, never, Spent())
        await started.wait()
        assert retrier.limiter.in_flight == 1
        tasks.cancel_scope.cancel()
    assert retrier.limiter.in_flight == 0


async def test_only_refusals_for_rate_cut_the_limit(time: FakeTime) -> None:
    retrier = time.retrier()
    before = retrier.limiter.limit
    await retrier.run(time.attempts(ModelTransient("x"), ModelProtocolError("y"), "ok"), Spent())
    assert (retrier.limiter.limit, retrier.limiter.episodes) == (before, 0)
    await retrier.run(time.attempts(ModelRateLimited("x"), "ok"), Spent())
    assert retrier.limiter.episodes == 1

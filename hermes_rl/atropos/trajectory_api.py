"""Client of Atropos' trajectory API (``run-api``), the queue between environments and trainers.

The API keeps everything in memory, knows no authentication and no de-duplication. So a send that
got no answer is repeated and counted as a possible duplicate, a group of the wrong size (which
the API would hold back for ever) is an error here, and a restarted API is met by registering
again. Wire format: ``atroposlib`` 0.4.0, ``atroposlib/api/server.py``.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import random
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio
import httpx
import orjson
from httpx_aiohttp import AiohttpTransport

from hermes_rl.atropos.encoding import COMPRESS_FROM_BYTES, compress, encode_parts
from hermes_rl.errors import ConfigError, HermesRLError

__all__ = [
    "APIRefused",
    "APIRestarted",
    "APIStatus",
    "APIUnavailable",
    "EnvRegistration",
    "SendCounters",
    "TrajectoryAPI",
    "open_trajectory_api",
]

REQUEST_TIMEOUT_S = 60.0
"""Seconds one request may take; a group of 20 MB needs a few."""
FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 10.0
"""Waits between attempts double from the first to the longest, with jitter."""
RESEND_WINDOW_GROUPS = 64
"""Acknowledged groups kept for a resend after a restart of the API; bounds memory."""
_log = logging.getLogger("hermes_rl.atropos")


class APIUnavailable(HermesRLError):
    """The trajectory API gave no answer within the wait that was allowed."""

    retryable = True


class APIRefused(HermesRLError):
    """The trajectory API answered that the request is wrong; sending it again cannot help."""


class APIRestarted(HermesRLError):
    """The trajectory API does not know this environment any more: register again."""

    retryable = True


@dataclass(slots=True, frozen=True)
class EnvRegistration:
    """Answer to ``/register-env`` once the trainer has started."""

    env_id: int
    wandb_name: str
    checkpoint_dir: str
    starting_step: int
    checkpoint_interval: int
    num_steps: int


@dataclass(slots=True, frozen=True)
class APIStatus:
    """Answer to ``/status-env``; sizes in groups, ``current_step`` in batches handed out."""

    current_step: int
    queue_size: int
    self_queue_size: int
    unallocated_fraction: float
    env_weight: float
    max_group_size: int


@dataclass(slots=True)
class SendCounters:
    """What happened to the groups of this environment."""

    sent: int = 0
    possible_duplicates: int = 0
    """Sends repeated after an attempt that got no answer."""
    resent_after_restart: int = 0
    retries: int = 0


@dataclass(slots=True)
class _Sent:
    step: int
    group: Mapping[str, Any] = field(repr=False)


def _reason(response: httpx.Response) -> str:
    return f"HTTP {response.status_code}: {response.text[:500]}"


class TrajectoryAPI:
    """One environment's connection to the trajectory API.

    Attributes:
        counters: Sends, retries and possible duplicates so far.
        env_id: Given by the API at registration, None before.
    """

    def __init__(self, client: httpx.AsyncClient, *, max_wait_s: float = 300.0) -> None:
        self.counters = SendCounters()
        self.env_id: int | None = None
        self._client = client
        self._max_wait_s = max_wait_s
        self._window: deque[_Sent] = deque(maxlen=RESEND_WINDOW_GROUPS)
        self._lost: deque[_Sent] = deque(maxlen=RESEND_WINDOW_GROUPS)
        self._random = random.Random()

    async def wandb_info(self) -> tuple[str | None, str | None]:
        """Return the trainer's wandb ``(group, project)``, Nones before it registered."""
        answer = await self._call("GET", "/wandb_info")
        return answer.get("group"), answer.get("project")

    async def info(self) -> tuple[int, int]:
        """Return the trainer's ``(batch_size, max_token_len)``, -1 before it registered."""
        answer = await self._call("GET", "/info")
        return answer["batch_size"], answer["max_token_len"]

    async def register(
        self,
        *,
        name: str,
        group_size: int,
        max_token_length: int,
        weight: float = 1.0,
        min_batch_allocation: float | None = None,
        poll_s: float = 1.0,
    ) -> EnvRegistration:
        """Register this environment; waits until the trainer pulls its first batch.

        Raises:
            APIRefused: A field is wrong.
            APIUnavailable: No answer for ``max_wait_s``.
        """
        if weight < 0:
            raise ConfigError("inference_weight must not be negative: the API divides by its sum.")
        body = {
            "desired_name": name,
            "group_size": group_size,
            "max_token_length": max_token_length,
            "weight": weight,
            "min_batch_allocation": min_batch_allocation,
        }
        for attempt in itertools.count():
            answer = await self._call("POST", "/register-env", body)
            if answer.get("status") == "success":
                break
            if attempt == 0:
                _log.warning("Waiting for a trainer to register and to pull its first batch.")
            await anyio.sleep(poll_s)
        self.env_id = answer["env_id"]
        keys = ("wandb_name", "checkpoint_dir", "starting_step", "checkpoint_interval", "num_steps")
        return EnvRegistration(answer["env_id"], *(answer[key] for key in keys))

    async def status(self) -> APIStatus:
        """Return the queue's state.

        Raises:
            APIRestarted: The API does not know this environment (it answers 500 to that).
        """
        response = await self._request(
            "GET", "/status-env", {"env_id": self.env_id}, retry_5xx=False
        )
        if response.status_code >= 500:
            self._lost.extend(self._window)
            self._window.clear()
            raise APIRestarted(f"The trajectory API forgot this environment ({_reason(response)}).")
        answer = self._json(response)
        keys = ("self_queue_size", "unallocated_fraction", "env_weight", "max_group_size")
        status = APIStatus(
            answer["current_step"], answer["queue_size"], *(answer[key] for key in keys)
        )
        self._forget_pulled(status)
        return status

    async def send(self, group: Mapping[str, Any], *, step: int = 0) -> None:
        """Send one scored group; at least once. Run it shielded: a cancelled send is ambiguous.

        Raises:
            APIRefused: 4xx, or the API buffered the group because its size is wrong.
            APIRestarted: The API does not know this environment; nothing was sent.
            APIUnavailable: No answer for ``max_wait_s``.
        """
        await self._post_group(group)
        self.counters.sent += 1
        self._window.append(_Sent(step, group))

    async def resend(self) -> int:
        """Send again what a restarted API had acknowledged but never handed out."""
        count = 0
        while self._lost:
            sent = self._lost[0]
            await self._post_group(sent.group)
            self._lost.popleft()
            self._window.append(sent)
            self.counters.resent_after_restart += 1
            count += 1
        return count

    async def disconnect(self) -> None:
        """Tell the API that this environment is leaving; a dead API is no error."""
        if self.env_id is None:
            return
        with contextlib.suppress(httpx.HTTPError), anyio.move_on_after(5):
            await self._client.post("/disconnect-env", json={"env_id": self.env_id})

    def _forget_pulled(self, status: APIStatus) -> None:
        while len(self._window) > status.self_queue_size:
            self._window.popleft()

    async def _post_group(self, group: Mapping[str, Any]) -> None:
        parts = await encode_parts({**group, "env_id": self.env_id})
        headers = {"Content-Type": "application/json"}
        if sum(map(len, parts)) >= COMPRESS_FROM_BYTES:
            body = await compress(parts)
            headers["Content-Encoding"] = "gzip"
        else:
            body = b"".join(parts)
        started = anyio.current_time()
        for wait in self._waits():
            await anyio.sleep(wait)
            # A group that reaches a restarted API before its trainer does would keep the trainer
            # from registering; so each attempt first asks whether the API still knows us.
            await self.status()
            response = await self._attempt("POST", "/scored_data", body, headers)
            if isinstance(response, httpx.Response) and response.status_code < 500:
                self._check_taken(self._json(response), len(group["tokens"]))
                return
            # An answer of 5xx, a broken connection: the API may have taken the group.
            self.counters.possible_duplicates += not isinstance(response, httpx.ConnectError)
            self.counters.retries += 1
            if anyio.current_time() - started > self._max_wait_s:
                break
        raise self._unavailable("/scored_data", response)

    def _check_taken(self, answer: Mapping[str, Any], size: int) -> None:
        if answer.get("status") == "buffered":
            raise APIRefused(
                f"The trajectory API holds back a group of {size} sequences: "
                "it was registered with another group_size."
            )

    async def _call(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        return self._json(await self._request(method, path, body))

    def _json(self, response: httpx.Response) -> dict[str, Any]:
        if response.status_code >= 400:
            raise APIRefused(f"The trajectory API refused {response.url.path}: {_reason(response)}")
        answer: dict[str, Any] = orjson.loads(response.content)
        return answer

    async def _request(
        self, method: str, path: str, body: Any = None, *, retry_5xx: bool = True
    ) -> httpx.Response:
        content = None if body is None else orjson.dumps(body)
        headers = {"Content-Type": "application/json"}
        started = anyio.current_time()
        for wait in self._waits():
            await anyio.sleep(wait)
            response = await self._attempt(method, path, content, headers)
            if isinstance(response, httpx.Response) and (
                response.status_code < 500 or not retry_5xx
            ):
                return response
            self.counters.retries += 1
            if anyio.current_time() - started > self._max_wait_s:
                break
            if wait == 0.0:
                _log.warning(
                    "The trajectory API at %s does not answer; trying for %.0f s.",
                    self._client.base_url,
                    self._max_wait_s,
                )
        raise self._unavailable(path, response)

    async def _attempt(
        self, method: str, path: str, content: bytes | None, headers: Mapping[str, str]
    ) -> httpx.Response | httpx.HTTPError:
        try:
            return await self._client.request(method, path, content=content, headers=dict(headers))
        except httpx.HTTPError as error:
            return error

    def _unavailable(self, path: str, last: httpx.Response | httpx.HTTPError) -> APIUnavailable:
        said = _reason(last) if isinstance(last, httpx.Response) else f"{last!r}"
        return APIUnavailable(
            f"The trajectory API at {self._client.base_url} gave no answer to {path} within "
            f"{self._max_wait_s:.0f} s ({said}). Is run-api running?"
        )

    def _waits(self) -> Sequence[float]:
        """Return the waits before each attempt in seconds, none longer than the longest."""
        doublings = [FIRST_WAIT_S * 2**n for n in range(5)]
        rest = [LONGEST_WAIT_S] * (int(self._max_wait_s / LONGEST_WAIT_S) + 1)
        jitter = self._random.uniform
        return [0.0, *(min(wait, LONGEST_WAIT_S) * jitter(0.5, 1.0) for wait in doublings + rest)]


@contextlib.asynccontextmanager
async def open_trajectory_api(
    base_url: str, *, max_wait_s: float = 300.0
) -> AsyncIterator[TrajectoryAPI]:
    """Connect to ``base_url`` over one kept-alive session.

    Args:
        base_url: Address of ``run-api``, e.g. ``http://localhost:8000``.
        max_wait_s: How long a request is repeated while the API is away.
    """
    async with httpx.AsyncClient(
        base_url=base_url,
        transport=AiohttpTransport(),
        timeout=httpx.Timeout(REQUEST_TIMEOUT_S),
    ) as client:
        yield TrajectoryAPI(client, max_wait_s=max_wait_s)

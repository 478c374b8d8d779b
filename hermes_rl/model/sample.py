"""What token servers give, and the sequences made of it.

Nothing here can hold ids without their log-probabilities, or a prompt that is not what came before
plus what is new.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from hermes_rl.errors import ModelProtocolError
from hermes_rl.packed import Packed, packed_floats, packed_ints
from hermes_rl.types import JSONObject, TokenSequence

__all__ = ["ExactTokens", "Finish", "Sample", "TokenServer"]

IGNORED = -100
"""Mask of ids that the policy did not sample, as PyTorch's losses and Atropos have it."""
NOT_SAMPLED_LOGPROB = 1.0
"""Logprob of ids that the policy did not sample, as Atropos has it."""
MAX_LOGPROB = 1e-3
"""Rounding may lift a probability of one this far above it."""

Finish = Literal["stop", "length"]


@dataclass(slots=True, frozen=True, kw_only=True)
class Sample:
    """What a server sampled after one prompt.

    Attributes:
        ids: Sampled ids; the end-of-turn token is one of them if it was sampled.
        logprobs: Of each id, in nats.
        finish: ``stop`` = the model ended its turn.
        prompt_ids: The prompt as the server says it saw it, None if it does not say.
        weight_version: Of the policy, None if the server does not say.
        cached_tokens: Leading prompt ids that the server had in its cache.

    Raises:
        ModelProtocolError: There is not exactly one log-probability per id, an id has more
            than 31 bits, or something is no number.
    """

    ids: Sequence[int]
    logprobs: Sequence[float]
    finish: Finish
    prompt_ids: Sequence[int] | None = None
    weight_version: str | None = None
    cached_tokens: int = 0

    def __post_init__(self) -> None:
        """Pack the numbers; check that ids and log-probabilities belong together."""
        self._pack()
        if len(self.ids) != len(self.logprobs):
            raise ModelProtocolError(
                f"The server sampled {len(self.ids)} tokens and gave {len(self.logprobs)} "
                "log-probabilities; they must be one for each."
            )
        wrong = next((x for x in self.logprobs if not -math.inf < x <= MAX_LOGPROB), None)
        if wrong is not None:
            raise ModelProtocolError(f"The server gave {wrong!r} as a log-probability.")

    def _pack(self) -> None:
        try:
            object.__setattr__(self, "ids", packed_ints(self.ids))
            object.__setattr__(self, "logprobs", packed_floats(self.logprobs))
            if self.prompt_ids is not None:
                object.__setattr__(self, "prompt_ids", packed_ints(self.prompt_ids))
        except OverflowError:
            raise ModelProtocolError("The server gave a token id of more than 31 bits.") from None
        except TypeError as error:
            raise ModelProtocolError(
                f"The server gave something that is no token id or log-probability: {error}."
            ) from None

    def first(self, count: int) -> Sample:
        """Return the sample cut after ``count`` ids, as a turn that ended there."""
        return replace(self, ids=self.ids[:count], logprobs=self.logprobs[:count], finish="stop")

    def then(self, more: Sample) -> Sample:
        """Return this sample continued by one whose prompt was this prompt and these ids."""
        return replace(
            self,
            ids=packed_ints(self.ids) + more.ids,
            logprobs=packed_floats(self.logprobs) + more.logprobs,
            finish=more.finish,
        )


class TokenServer(Protocol):
    """A model server that takes ids and gives ids."""

    @property
    def name(self) -> str:
        """Model name for reports."""
        ...

    @property
    def context_tokens(self) -> int | None:
        """Context window, None if unknown."""
        ...

    @property
    def logprob_mode(self) -> str:
        """What its log-probabilities are of, e.g. ``raw`` (before temperature and top-p)."""
        ...

    async def generate(
        self,
        prompt_ids: Sequence[int],
        *,
        max_tokens: int | None,
        temperature: float,
        top_p: float | None,
        seed: int | None,
        timeout_s: float,
    ) -> Sample:
        """Sample one continuation by one request, without retries and without stop strings.

        Raises:
            PromptTooLong: The prompt does not fit into the context.
            ModelTransient: The server broke off: half a turn is not a turn.
            ModelError: By class, see :mod:`hermes_rl.errors`.
        """
        ...


class ExactTokens:
    """The tokens of one unforked conversation. Grows by whole turns only."""

    def __init__(self) -> None:
        self._tokens = packed_ints(())
        self._masked = packed_ints(())
        self._logprobs = packed_floats(())
        self._turns: list[Sample] = []

    @property
    def tokens(self) -> Packed[int]:
        """Ids so far, prompts and samples, in the order in which the server saw them."""
        return self._tokens

    @property
    def last_turn(self) -> Sequence[int]:
        """Ids sampled in the last turn, empty if there was none."""
        return self._turns[-1].ids if self._turns else ()

    @property
    def last_finish(self) -> Finish | None:
        """How the last turn ended, None if there was none."""
        return self._turns[-1].finish if self._turns else None

    def add_turn(self, new_ids: Sequence[int], sample: Sample) -> None:
        """Append what was shown since the last turn, and the turn sampled after it."""
        shown = len(new_ids)
        self._tokens += packed_ints(new_ids) + sample.ids
        self._masked += packed_ints([IGNORED] * shown) + sample.ids
        self._logprobs += packed_floats([NOT_SAMPLED_LOGPROB] * shown) + sample.logprobs
        self._turns.append(sample)

    def to_sequence(self, metadata: JSONObject) -> TokenSequence:
        """Return the form that trainers get, with the turns' metadata added."""
        versions = [turn.weight_version for turn in self._turns]
        own: JSONObject = {
            "finish_reason": self._turns[-1].finish if self._turns else None,
            "finish_reasons": [turn.finish for turn in self._turns],
        }
        if any(versions):
            own["weight_versions"] = versions
        return TokenSequence(self._tokens, self._masked, self._logprobs, {**metadata, **own})

"""The token bounds of one completion: arithmetic only."""

from hermes_rl.model.budget import Allowance, TokenBudget
from hermes_rl.model.protocol import Sampling
from hermes_rl.types import StopReason, Usage


def budget(prompt_bytes: int = 0, **limits: int) -> TokenBudget:
    made = TokenBudget(Sampling(**limits))  # type: ignore[arg-type]
    made.prompt_bytes = prompt_bytes
    return made


def test_without_limits_nothing_is_sent() -> None:
    assert budget(10_000).allowance(None) == Allowance()
    assert budget(10_000).allowance(4096) == Allowance()


def test_the_tightest_bound_wins_and_says_what_being_cut_means() -> None:
    assert budget(max_tokens_per_turn=50, max_token_length=1000).allowance(None) == Allowance(50)
    assert budget(max_tokens_per_turn=5000, max_token_length=1000).allowance(None) == Allowance(
        1000, StopReason.TOKEN_LIMIT
    )
    assert budget(max_tokens_per_turn=5000).allowance(1000) == Allowance(
        990, StopReason.CONTEXT_LENGTH
    )


def test_the_estimate_follows_what_the_server_counted() -> None:
    sizes = budget(4000, max_token_length=10_000)
    sizes.record(Usage(prompt_tokens=1000, completion_tokens=100))
    sizes.prompt_bytes = 4000 + 800
    assert sizes.estimate() == 1000 + 200
    # A completion is at least as long as it was counted, however few bytes it has.
    sizes.prompt_bytes = 4000 + 40
    assert sizes.estimate() == 1000 + 100


def test_reasoning_tokens_are_not_expected_in_the_next_prompt() -> None:
    sizes = budget(4000)
    sizes.record(Usage(prompt_tokens=1000, completion_tokens=500, reasoning_tokens=480))
    sizes.prompt_bytes = 4000
    assert sizes.estimate() == 1020


def test_the_first_call_is_not_refused_because_of_an_estimate() -> None:
    # 7,000 bytes are rarely fewer than 1,400 and rarely more than 2,300 tokens.
    assert budget(7000, max_token_length=2048).allowance(None) is not None


def test_the_sequence_is_exhausted_when_no_useful_completion_fits() -> None:
    sizes = budget(4000, max_token_length=1020)
    sizes.record(Usage(prompt_tokens=1000, completion_tokens=4))
    assert sizes.allowance(None) == Allowance(16, StopReason.TOKEN_LIMIT)
    sizes.record(Usage(prompt_tokens=1000, completion_tokens=5))
    assert sizes.allowance(None) is None


def test_a_server_that_counts_nothing_leaves_the_estimate() -> None:
    sizes = budget(1000)
    sizes.record(Usage())
    assert sizes.estimate() == 200


def test_a_full_context_is_left_to_the_server() -> None:
    sizes = budget(40_000, max_tokens_per_turn=500)
    sizes.record(Usage(prompt_tokens=10_000))
    assert sizes.allowance(4096) == Allowance(16, StopReason.CONTEXT_LENGTH)


def test_a_refused_bound_shrinks_to_the_room_that_is_left() -> None:
    sizes = budget(400)
    sizes.record(Usage(prompt_tokens=100))
    shrunk = sizes.shrunk(context_tokens=1000, prompt_tokens=300)
    assert shrunk == Allowance(690, StopReason.CONTEXT_LENGTH)
    # A server may report a prompt as shorter than it is; then our estimate counts.
    assert sizes.shrunk(context_tokens=1000, prompt_tokens=None) == Allowance(
        890, StopReason.CONTEXT_LENGTH
    )
    assert sizes.shrunk(context_tokens=1000, prompt_tokens=985) is None
    assert sizes.shrunk(context_tokens=None, prompt_tokens=10) is None

import pickle

import pytest

from hermes_rl import errors
from hermes_rl.errors import HermesRLError, UnknownName
from hermes_rl.sandbox import Capability, SandboxSpec
from hermes_rl.tasks import describe, normalise_reward
from hermes_rl.types import ParseResult, TokenSequence, ToolCall, Usage

LEAVES = [
    cls
    for name in errors.__all__
    if isinstance(cls := getattr(errors, name), type) and issubclass(cls, HermesRLError)
]


@pytest.mark.parametrize("cls", LEAVES, ids=lambda cls: cls.__name__)
def test_every_error_survives_pickling_with_its_attributes(cls: type[HermesRLError]) -> None:
    error = cls("what happened")
    error.retryable = True
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is cls
    assert str(copy) == "what happened"
    assert vars(copy) == vars(error)


@pytest.mark.parametrize("cls", LEAVES, ids=lambda cls: cls.__name__)
def test_every_error_is_drawn_in_the_tree(cls: type[HermesRLError]) -> None:
    assert errors.__doc__ is not None
    assert cls.__name__ in errors.__doc__


def test_unknown_name_lists_the_nearest_first() -> None:
    error = UnknownName.of("parser", "hermse", ["hermes", "mistral"])
    assert str(error) == "Unknown parser 'hermse'. Did you mean 'hermes'? Known: hermes, mistral."


def test_parse_result_unpacks_as_content_and_calls() -> None:
    call = ToolCall("1", "terminal", "{}")
    content, calls = ParseResult("hi", [call])
    assert (content, calls) == ("hi", [call])
    assert call.function.name == "terminal"


def test_token_sequence_refuses_unequal_lengths() -> None:
    with pytest.raises(ValueError, match="equal length"):
        TokenSequence([1, 2], [-100, 2], [1.0])


def test_usage_adds_field_by_field() -> None:
    assert Usage(1, 2, requests=1) + Usage(3, 4, cost_usd=0.5) == Usage(
        4, 6, cost_usd=0.5, requests=1
    )


def test_spec_fields_imply_the_capabilities_they_need() -> None:
    spec = SandboxSpec(memory_mb=512, network="none", needs=frozenset({Capability.PAUSE}))
    assert spec.required_capabilities() == {
        Capability.PAUSE,
        Capability.MEMORY_LIMIT,
        Capability.NETWORK_NONE,
    }


class _Task:
    id = "t"
    prompt = "do it"

    def reward(self, *_: object) -> float:
        return 1.0


def test_describe_fills_defaults_of_optional_attributes() -> None:
    description = describe(_Task())  # type: ignore[arg-type]
    assert description.messages == ({"role": "user", "content": "do it"},)
    assert description.solution is None


def test_a_task_without_a_reward_is_refused_before_anything_is_spent() -> None:
    class NoReward:
        id = "t"
        prompt = "do it"

    with pytest.raises(errors.TaskError, match="'t' has no reward: 'async def reward"):
        describe(NoReward())  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [float("nan"), "1", None, True])
def test_a_reward_that_is_no_finite_number_is_refused(value: object) -> None:
    with pytest.raises(errors.TaskError, match="finite number"):
        normalise_reward(value, "t")  # type: ignore[arg-type]

"""Exactness proved: multi-turn tool trajectories of our engine on llama.cpp's real server.

Every log-probability is recomputed from the token ids alone, and every id is looked up in what went
over the wire. The same two checks must catch every known mistake (the negative controls).
Figures are printed: ``pytest -s``.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import anyio
import numpy as np
import pytest

from tests.conftest import require

pytest.importorskip("gguf", reason="needs hermes_rl[dev]")

from tests.tiny_llama import BOS, CHATML, END, START, TinyLlama, make_tiny_llama

from . import exactness
from .exactness import (
    MASKED,
    Mistake,
    Play,
    Trajectory,
    account,
    differences,
    masking_faults,
    mean_and_max,
    own_exchanges,
    play,
    schemas,
    served,
    wire_faults,
)

BOUND = 1e-4
"""Between two float32 computations: a hundred times what is measured (1e-6)."""
SHIPPED_BOUND = 0.05
"""With our server's own settings: keys and values in float16, flash attention."""
ROLLOUTS = 12


@pytest.fixture(scope="module")
def llama() -> TinyLlama:
    require(importlib.util.find_spec("xllamacpp") is not None, "needs hermes_rl[local]")
    return make_tiny_llama()


@pytest.fixture(scope="module")
def chat_model(llama: TinyLlama, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return llama.write(tmp_path_factory.mktemp("chat") / "chat.gguf", chat_template=CHATML)


@pytest.fixture(scope="module")
def chats(llama: TinyLlama, chat_model: Path) -> Iterator[Play]:
    """In the model's own chat template: turns end with a token."""
    with served(chat_model, float32=True) as url:
        yield anyio.run(partial(play, llama, url, rollouts=ROLLOUTS, temperature=1.0))


@pytest.fixture(scope="module")
def warm_chats(llama: TinyLlama, chat_model: Path) -> Iterator[Play]:
    with served(chat_model, float32=True) as url:
        yield anyio.run(partial(play, llama, url, rollouts=3, temperature=1.5))


def report(what: str, played: Play, values: list[np.ndarray]) -> None:
    mean, largest = mean_and_max(values)
    stretches = [len(one.stretches) for one in played.trajectories]
    print(
        f"\n{what}: {len(stretches)} trajectories, {sum(stretches)} turns (up to "
        f"{max(stretches)}), {sum(map(len, values))} sampled of "
        f"{sum(len(one.tokens) for one in played.trajectories)} tokens; "
        f"|recorded - recomputed| max {largest:.1e}, mean {mean:.1e} nats"
    )


def recomputed(llama: TinyLlama, played: Play) -> list[np.ndarray]:
    return [differences(llama, account(one)) for one in played.trajectories]


def test_the_trajectories_are_worth_the_proof(chats: Play) -> None:
    """Many turns, tools that ran and failed, malformed calls, cut turns, broken characters."""
    trajectories = chats.trajectories
    counters = [one.agent.counters for one in trajectories]
    finishes = [finish for one in trajectories for finish in one.metadata["finish_reasons"]]
    assert sum(len(one.stretches) > 1 for one in trajectories) >= ROLLOUTS // 2
    assert sum(count.get("tool_calls", 0) for count in counters) >= ROLLOUTS
    assert any(one.agent.tool_errors for one in trajectories)
    assert {"stop", "length"} == set(finishes)
    assert not all(exchange.had_all_logprobs for exchange in chats.exchanges)
    assert any(exchange.had_all_logprobs for exchange in chats.exchanges)
    assert all("forks" not in count for count in counters)
    print(
        f"\ntool calls {sum(count.get('tool_calls', 0) for count in counters)}, of them failed or "
        f"malformed {sum(len(one.agent.tool_errors) for one in trajectories)}; turns cut by length "
        f"{finishes.count('length')}; completions with bytes that are no character "
        f"{sum(not exchange.had_all_logprobs for exchange in chats.exchanges)}"
    )


def test_every_logprob_is_that_of_the_model_after_exactly_this_prefix(
    llama: TinyLlama, chats: Play
) -> None:
    values = recomputed(llama, chats)
    report("chat template, float32", chats, values)
    assert max(part.max() for part in values) < BOUND


def test_every_id_was_sent_or_sampled_and_only_sampled_ids_count(chats: Play) -> None:
    for one in chats.trajectories:
        exchanges = own_exchanges(one, chats.exchanges)
        assert len(exchanges) == len(one.stretches)
        assert wire_faults(account(one), exchanges) == []
        assert masking_faults(account(one), exchanges) == []
        for position, mask in enumerate(one.masks):
            assert (one.logprobs[position] == 1.0) == (mask == MASKED)
    asked = [exchange.asked for exchange in chats.exchanges]
    assert all(fields["temperature"] == 1.0 and fields["stop"] == [] for fields in asked)


def test_the_text_of_a_sequence_is_the_conversation_in_the_models_template(chats: Play) -> None:
    """Written down here, not rendered: tools are in, ends are neither doubled nor dropped."""
    listed = "\n".join(map(json.dumps, schemas()))
    for one in chats.trajectories:
        user, *rest = one.agent.messages
        turns = [n for n, message in enumerate(rest) if message["role"] == "assistant"]
        text = f"{BOS}{START}system\n<tools>\n{listed}\n</tools>{END}\n"
        text += f"{START}user\n{user['content']}{END}\n"
        for index, (number, said) in enumerate(zip(turns, one.texts, strict=True)):
            text += f"{START}assistant\n{said}"
            if index + 1 == len(turns):
                break
            text += "\n" if said.endswith(END) else f"{END}\n"
            for message in rest[number + 1 : turns[index + 1]]:
                text += f"{START}{message['role']}\n{message['content']}{END}\n"
        assert one.text == text


def test_names_of_control_tokens_that_tools_print_stay_text(llama: TinyLlama, chats: Play) -> None:
    printed = 0
    for one in chats.trajectories:
        masked = [
            token for token, mask in zip(one.tokens, one.masks, strict=True) if mask == MASKED
        ]
        turns = len(one.stretches)
        shown = one.agent.messages[: _last_turn(one)]
        printed += sum(END in m["content"] for m in shown if m["role"] == "tool")
        cut = one.metadata["finish_reasons"][:-1].count("length")
        others = sum(message["role"] != "assistant" for message in shown)
        # One for the tools; a start for every message; an end for all but sampled ends.
        assert masked.count(llama.id_of(START)) == 1 + others + turns
        assert masked.count(llama.id_of(END)) == 1 + others + cut
    assert printed


def _last_turn(one: Trajectory) -> int:
    roles = [message["role"] for message in one.agent.messages]
    return len(roles) - 1 - roles[::-1].index("assistant")


@pytest.mark.parametrize(
    ("mistake", "seen_by_logprobs", "seen_on_wire"),
    [
        (exactness.doubled_end, True, True),
        (exactness.dropped_end, True, True),
        (exactness.dropped_newline, True, True),
        (exactness.shifted, True, False),
        (exactness.retokenised, True, True),
        (exactness.tools_missing, True, True),
        (exactness.dropped_token, True, True),
        (exactness.doubled_bos, True, True),
        (exactness.prompt_unmasked, True, True),
        (exactness.sample_masked, False, True),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_known_mistake_is_caught_in_every_trajectory(
    llama: TinyLlama, chats: Play, mistake: Mistake, seen_by_logprobs: bool, seen_on_wire: bool
) -> None:
    largest = []
    for one in _with_turns_that_show_it(chats, mistake)[:4]:
        told = mistake(one, llama)
        exchanges = own_exchanges(one, chats.exchanges)
        faults = wire_faults(told, exchanges) + masking_faults(told, exchanges)
        assert bool(faults) is seen_on_wire
        largest.append(differences(llama, told).max())
        assert bool(largest[-1] > BOUND) is seen_by_logprobs
    assert len(largest) >= 2
    print(f"\n{mistake.__name__}: max difference {min(largest):.1e} to {max(largest):.1e} nats")


def _with_turns_that_show_it(played: Play, mistake: Mistake) -> list[Trajectory]:
    """Return trajectories with a later turn, and a first one of more than its end."""
    return [
        one
        for one in played.trajectories
        if len(one.stretches) > 1
        and one.texts[0].endswith(END)
        and one.stretches[0][1] - one.stretches[0][0] > 2
        # By chance the ids that are sampled may be those that the text would be read as.
        and (
            mistake is not exactness.retokenised
            or one.retokenised[0] != one.tokens[slice(*one.stretches[0])]
        )
    ]


def test_logprobs_are_of_the_models_own_distribution_at_every_temperature(
    llama: TinyLlama, warm_chats: Play
) -> None:
    values = recomputed(llama, warm_chats)
    report("chat template, float32, temperature 1.5", warm_chats, values)
    assert max(part.max() for part in values) < BOUND
    for one in warm_chats.trajectories:
        assert one.metadata["logprob_mode"] == "raw"
        assert one.metadata["temperature"] == 1.5
        # The negative control: recorded at another temperature than the one it is checked at.
        assert differences(llama, account(one), temperature=1.5).max() > BOUND


def test_other_weights_are_caught(chats: Play) -> None:
    other = make_tiny_llama(seed=1)
    for one in chats.trajectories[:3]:
        assert differences(other, account(one)).max() > 1.0


def test_the_servers_own_settings_cost_a_known_rounding_error(
    llama: TinyLlama, chat_model: Path
) -> None:
    with served(chat_model, float32=False) as url:
        played = anyio.run(partial(play, llama, url, rollouts=4, temperature=1.0))
    values = recomputed(llama, played)
    report("chat template, settings as shipped", played, values)
    assert max(part.max() for part in values) < SHIPPED_BOUND
    for one in played.trajectories:
        assert wire_faults(account(one), own_exchanges(one, played.exchanges)) == []


def test_turns_that_are_cut_where_their_text_ends_are_exact_as_well(
    llama: TinyLlama, tmp_path: Path
) -> None:
    """A model without a chat template: the transcript, sampled in pieces."""
    model = llama.write(tmp_path / "base.gguf", chat_template=None)
    tools = ("read_file", "write_file")
    with served(model, float32=True) as url:
        played = anyio.run(partial(play, llama, url, rollouts=12, temperature=1.0, tools=tools))
    values = recomputed(llama, played)
    report("transcript, float32", played, values)
    assert max(part.max() for part in values) < BOUND
    for one in played.trajectories:
        assert wire_faults(account(one), own_exchanges(one, played.exchanges)) == []
        said = [m["content"] or "" for m in one.agent.messages if m["role"] == "assistant"]
        assert not any(content.endswith(END) for content in said)
    texts = [text for one in played.trajectories for text in one.texts]
    assert any(text.endswith("</tool_call>") for text in texts)

"""Token sequences that a foreign server tracks itself: Atropos' ``ManagedServer`` and its kind.

Such an object has ``get_state()``, which returns ``{"nodes": [...]}`` or, in its tree mode,
``{"sequences": {text: node}}``; a node has ``tokens``, ``masked_tokens``, ``logprobs`` and
``metadata``. Source: ``atroposlib`` 0.4.0, ``managed_server.py``. What it tracked is taken as it
is and checked:

* Log-probabilities that the server left out are padded with 1.0 there: an error here.
* ``DummyManagedServer`` invents tokens that look trainable (``dummy_tokens`` in the metadata):
  they are left out, and the rollout has no exact tokens.
* Tools are left out of the prompt silently unless it was made with a ``tool_parser``: an error.

How it renders a conversation is its own: where a chat template does not repeat a turn as it was
sampled it begins a new node (a fork), and turns of the node before are in that node only.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from hermes_rl.errors import ConfigError, ModelProtocolError
from hermes_rl.types import JSONObject, TokenSequence

__all__ = ["SupportsState", "TrackedSequences"]

_NOT_SAMPLED = -100
_NO_LOGPROB = 1.0
_log = logging.getLogger("hermes_rl.model")


@runtime_checkable
class SupportsState(Protocol):
    """Tracks the token sequences of the calls that went through it."""

    def get_state(self) -> Mapping[str, Any]:
        """Return ``{"nodes": [...]}`` or ``{"sequences": {text: node}}``."""
        ...


class TrackedSequences:
    """What one conversation added to such an object.

    Args:
        server: The object; it must serve this conversation only while that lasts.
    """

    def __init__(self, server: SupportsState) -> None:
        self._server = server
        self._name = type(server).__name__
        # Kept, not only their ids: an id may be given anew to another node.
        self._before = self._nodes()

    def sequences(self) -> list[TokenSequence]:
        """Return the conversation's sequences, oldest first; [] where the tokens are invented.

        Raises:
            ModelProtocolError: A node is damaged.
        """
        nodes = self._new_nodes()
        if any((node.metadata or {}).get("dummy_tokens") for node in nodes):
            _log.warning("%s invents its tokens: they are left out.", self._name)
            return []
        return [self._sequence(node, forks=len(nodes) - 1) for node in nodes]

    def check_tools_are_shown(self, tools: Sequence[JSONObject]) -> None:
        """Look for the tools in the prompts.

        Raises:
            ConfigError: None of them is there: the model cannot know them.
        """
        nodes = self._new_nodes()
        texts = [node.full_text for node in nodes if isinstance(node.full_text, str)]
        names = [tool["function"]["name"] for tool in tools]
        if texts and names and not any(name in texts[-1] for name in names):
            raise ConfigError(
                f"{self._name} does not show the tools to the model. Make it with tool_parser= "
                "and a tokenizer whose chat template has tools, or use server_type vllm, sglang "
                "or llamacpp, which do."
            )

    def _nodes(self) -> list[Any]:
        state = self._server.get_state()
        nodes = state.get("nodes")
        if nodes is None:
            nodes = (state.get("sequences") or {}).values()
        return list(nodes)

    def _new_nodes(self) -> list[Any]:
        earlier = set(map(id, self._before))
        return [node for node in self._nodes() if id(node) not in earlier]

    def _sequence(self, node: Any, *, forks: int) -> TokenSequence:
        masks, logprobs = list(node.masked_tokens), list(node.logprobs)
        if not len(node.tokens) == len(masks) == len(logprobs):
            raise ModelProtocolError(
                f"{self._name} tracked {len(node.tokens)} tokens with {len(masks)} masks and "
                f"{len(logprobs)} log-probabilities."
            )
        pairs = zip(masks, logprobs, strict=True)
        missing = sum(m != _NOT_SAMPLED and value == _NO_LOGPROB for m, value in pairs)
        if missing:
            raise ModelProtocolError(
                f"{self._name} has no log-probability for {missing} sampled tokens: its server "
                "left them out."
            )
        return TokenSequence(
            list(node.tokens), masks, logprobs, {**(node.metadata or {}), "forks": forks}
        )

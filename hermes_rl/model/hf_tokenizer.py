"""A Hugging Face tokenizer with its chat template, by which no text becomes a control token.

Rendering works on *marked* text: the template's own control tokens are written between two
characters that stand for nothing in Unicode (:data:`MARK`), and the tokenizer used for encoding
knows them under these marked names only. ``<|im_end|>`` in a file that the agent read is therefore
encoded as the ten characters that it is, while whole prompts are still encoded in one go, with the
tokenizer's own normaliser, pre-tokenizer and rules about space around special tokens.

To keep the two apart while a template runs, the names of control tokens in messages and tool
schemas are broken by another such character (:data:`BREAK`), which is taken out afterwards.

Control tokens are all that the tokenizer calls special, and the other added tokens that the
template names (``<tool_call>``, ``<think>`` of many families), with what closes or opens the same.
White space is none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import orjson

from hermes_rl.errors import ConfigError, MissingExtra, ModelRejected
from hermes_rl.types import JSONObject, Message

__all__ = ["BREAK", "MARK", "ChatTokenizer", "load_chat_tokenizer", "unmarked"]

MARK = "\ufdd0"
BREAK = "\ufdd1"
_STRAY = re.compile("[\ufdd0\ufdd1\ud800-\udfff]")
_ESCAPED_BREAK = "\\ufdd1"
"""What a template makes of :data:`BREAK` that writes JSON in ASCII."""


class _Fast(Protocol):
    """The part of ``transformers``' tokenizers that is used."""

    chat_template: Any
    eos_token_id: int | None

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any: ...


def unmarked(text: str) -> str:
    """Return marked text as the model's own tools would have written it."""
    return text.replace(MARK, "")


def load_chat_tokenizer(name: str) -> ChatTokenizer:
    """Load a tokenizer from a directory, the local cache or the hub. Blocks for seconds.

    Args:
        name: Directory or repository on the hub.

    Raises:
        MissingExtra: ``transformers`` is not installed.
        ConfigError: There is no such tokenizer, or it cannot be used for exact tokens.
    """
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise MissingExtra.of("server_type vllm or sglang", "tokens") from None
    try:
        fast = AutoTokenizer.from_pretrained(name)
    except Exception as error:  # whatever a hub, a file or a tokenizer's own code may raise
        raise ConfigError(
            f"The tokenizer {name!r} cannot be loaded ({type(error).__name__}: {error}). "
            "Set --openai.tokenizer_name to a directory or a repository with tokenizer.json."
        ) from None
    return ChatTokenizer(fast, name=name)


class ChatTokenizer:
    """See the module. Its methods block for as long as a text takes; use them in a thread.

    Args:
        fast: Tokenizer of ``transformers`` that is backed by ``tokenizers``.
        name: For messages.

    Raises:
        ConfigError: It has no fast backend or no chat template.
    """

    def __init__(self, fast: _Fast, *, name: str) -> None:
        backend = getattr(fast, "backend_tokenizer", None)
        if backend is None:
            raise ConfigError(
                f"The tokenizer {name!r} has no tokenizer.json, which exact tokens need. "
                "Set --openai.tokenizer_name to one that has."
            )
        if not fast.chat_template:
            raise ConfigError(
                f"The tokenizer {name!r} has no chat template. "
                "Set --openai.tokenizer_name to one that has."
            )
        self.name = name
        self._fast = fast
        self._plain = backend
        templates = fast.chat_template
        source = templates if isinstance(templates, str) else "".join(templates.values())
        self._thinking_key = _thinking_key(source)
        self._names = _control_names(backend.get_added_tokens_decoder(), source)
        self._pattern = _pattern(self._names.values())
        self._marked = _marked_copy(backend.to_str(), set(self._names.values()))
        for token_id, text in self._names.items():
            if self._marked.token_to_id(f"{MARK}{text}{MARK}") != token_id:
                raise ConfigError(f"The tokenizer {name!r} gives {text!r} no fixed id.")

    @property
    def eos_id(self) -> int | None:
        """The end token as the tokenizer names it."""
        return self._fast.eos_token_id

    def control_name(self, token_id: int) -> str | None:
        """Return what a control token is written as, marked; None for an ordinary token."""
        name = self._names.get(token_id)
        return None if name is None else f"{MARK}{name}{MARK}"

    def control_id(self, text: str) -> int | None:
        """Return the control token that marked ``text`` begins with, if it does."""
        _, _, rest = text.partition(MARK)
        name, closed, _ = rest.partition(MARK)
        is_first = text.startswith(MARK) and bool(closed)
        token_id: int | None = self._marked.token_to_id(f"{MARK}{name}{MARK}") if is_first else None
        return token_id

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[JSONObject],
        *,
        generation_prompt: bool,
    ) -> str:
        """Return a conversation as marked text.

        Args:
            messages: In OpenAI form.
            tools: Schemas in OpenAI form.
            generation_prompt: Whether the assistant speaks next.

        Raises:
            ModelRejected: The template has no form for this conversation.
        """
        shown = [self._guarded(self._for_template(message)) for message in messages]
        try:
            text = self._fast.apply_chat_template(
                shown,
                tools=[self._guarded(tool) for tool in tools] or None,
                add_generation_prompt=generation_prompt,
                tokenize=False,
            )
        except Exception as error:  # templates are programs of others and may raise anything
            raise ModelRejected(
                f"The chat template of {self.name} has no form for this conversation: "
                f"{type(error).__name__}: {error}"
            ) from None
        marked = self._pattern.sub(lambda found: f"{MARK}{found[0]}{MARK}", text)
        return marked.replace(BREAK, "").replace(_ESCAPED_BREAK, "")

    def encode(self, marked: str) -> list[int]:
        """Return the ids of marked text; only marked names become control tokens."""
        # encode() holds the interpreter lock: 120 ms for 65,000 tokens. So does decode().
        (encoded,) = self._marked.encode_batch([marked], add_special_tokens=False)
        ids: list[int] = encoded.ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ``ids``, control tokens included."""
        (text,) = self._plain.decode_batch([list(ids)], skip_special_tokens=False)
        return str(text)

    def _for_template(self, message: Message) -> JSONObject:
        """Return a message as templates expect it: content as text, arguments as an object."""
        shown = {key: value for key, value in message.items() if key != "reasoning_details"}
        shown["content"] = _text(message.get("content"), none_is_empty="tool_calls" not in message)
        if message.get("tool_calls"):
            shown["tool_calls"] = [_with_object(call) for call in message["tool_calls"]]
        reasoning = message.get("reasoning_content")
        if reasoning and self._thinking_key:
            shown[self._thinking_key] = reasoning
        return shown

    def _guarded(self, value: Any) -> Any:
        """Return ``value`` with the names of control tokens in all of its texts broken."""
        if isinstance(value, str):
            return self._broken(_STRAY.sub("\ufffd", value))
        if isinstance(value, Mapping):
            return {
                key if key in _KEYS else self._guarded(key): self._guarded(item)
                for key, item in value.items()
            }
        return [self._guarded(item) for item in value] if isinstance(value, list) else value

    def _broken(self, text: str) -> str:
        # Names may overlap: what is left of the second is found once the first is broken.
        while self._pattern.search(text):
            text = self._pattern.sub(lambda found: f"{found[0][0]}{BREAK}{found[0][1:]}", text)
        return text


_KEYS = frozenset({"role", "content", "tool_calls", "function", "name", "arguments"})


def _text(content: Any, *, none_is_empty: bool) -> str | None:
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, dict)]
        return "\n".join(text for text in texts if isinstance(text, str))
    if content is None:
        return "" if none_is_empty else None
    return content if isinstance(content, str) else orjson.dumps(content).decode()


def _with_object(call: JSONObject) -> JSONObject:
    """Return a call with its arguments decoded, as chat templates take them."""
    function = call.get("function") or {}
    arguments = function.get("arguments")
    try:
        decoded = orjson.loads(arguments) if isinstance(arguments, str) else arguments
    except orjson.JSONDecodeError:
        decoded = arguments
    return {**call, "function": {**function, "arguments": {} if decoded is None else decoded}}


def _thinking_key(source: str) -> str | None:
    """Return where a template looks for reasoning, if not in ``reasoning_content``."""
    if "reasoning_content" in source:
        return None
    found = re.search(r"""[.\["'](thinking|reasoning)\b""", source)
    return found[1] if found else None


def _control_names(added: Mapping[int, Any], source: str) -> dict[int, str]:
    return {
        token_id: token.content
        for token_id, token in added.items()
        if token.content.strip() and (token.special or _is_named(token.content, source))
    }


def _is_named(text: str, source: str) -> bool:
    """Say whether a template names a token, or the one that opens or closes what it does."""
    other = text.replace("</", "<", 1) if text.startswith("</") else text.replace("<", "</", 1)
    return text in source or other in source


def _pattern(names: Any) -> re.Pattern[str]:
    longest_first = sorted(map(re.escape, names), key=len, reverse=True)
    alternatives = "|".join(longest_first) or "(?!)"
    # A name of one character cannot be broken in its middle, so it is broken behind itself.
    return re.compile(f"(?:{alternatives})(?!{BREAK})")


def _marked_copy(serialized: str, names: set[str]) -> Any:
    """Return the tokenizer with its control tokens renamed, ids unchanged."""
    from tokenizers import Tokenizer

    spec = orjson.loads(serialized)
    for token in spec["added_tokens"]:
        token["content"] = _renamed(token["content"], names)
    model = spec["model"]
    if isinstance(model["vocab"], dict):
        model["vocab"] = {_renamed(text, names): n for text, n in model["vocab"].items()}
    else:
        model["vocab"] = [[_renamed(text, names), score] for text, score in model["vocab"]]
    if isinstance(model.get("unk_token"), str):
        model["unk_token"] = _renamed(model["unk_token"], names)
    spec.update(post_processor=None, truncation=None, padding=None)
    return Tokenizer.from_str(orjson.dumps(spec).decode())


def _renamed(text: str, names: set[str]) -> str:
    return f"{MARK}{text}{MARK}" if text in names else text

"""What a server's refusal means: from an HTTP answer to one class of :mod:`hermes_rl.errors`.

In this order; the first that holds:

===============================================  ==================================
a content filter refused                          :class:`ContentFiltered`
the prompt is longer than the context             :class:`PromptTooLong`
401, 402, 403; 429 for an empty account           ``ModelUnauthorized``  (ends the run)
3xx, 404, 405, 410                                ``ModelNotFound``      (ends the run)
429                                               ``ModelRateLimited``   (retried)
408, 409, 425, 5xx                                ``ModelTransient``     (retried)
a field the server does not know                  :class:`UnsupportedParameter`
any other 4xx                                     ``ModelRejected``
===============================================  ==================================

The first two are limits, not errors: sessions turn them into ``Completion.stop``. A request with
an unsupported field is corrected and sent again where that is possible.

Wordings and codes are those of OpenAI, Azure, OpenRouter, vLLM, SGLang, llama.cpp and, behind
OpenRouter, Anthropic, Google, Mistral, xAI, Groq, Together, Alibaba and Moonshot.
"""

from __future__ import annotations

import email.utils
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from hermes_rl.errors import (
    ModelError,
    ModelNotFound,
    ModelRateLimited,
    ModelRejected,
    ModelTransient,
    ModelUnauthorized,
)
from hermes_rl.model.http import Reply

__all__ = [
    "ContentFiltered",
    "PromptTooLong",
    "ServerError",
    "UnsupportedParameter",
    "classify",
    "error_in",
    "failure_of",
    "parse_retry_after",
    "read_error",
]

MAX_MESSAGE_CHARS = 600
"""Of a server's text in our errors; traces and echoed prompts can be megabytes."""
MAX_SCANNED_CHARS = 8_000
"""Of a server's text in which wordings are looked for."""


class PromptTooLong(ModelRejected):
    """The server refuses the prompt as longer than the model's context.

    Attributes:
        context_tokens: The context's size, if the server said it.
        prompt_tokens: The prompt's size, if the server said it.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        retry_after_s: float | None = None,
        context_tokens: int | None = None,
        prompt_tokens: int | None = None,
    ) -> None:
        super().__init__(message, status=status, retry_after_s=retry_after_s)
        self.context_tokens = context_tokens
        self.prompt_tokens = prompt_tokens


class ContentFiltered(ModelRejected):
    """The provider's content filter refused the request."""


class UnsupportedParameter(ModelRejected):
    """The server does not know one of the request's fields.

    Attributes:
        parameter: The field.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        retry_after_s: float | None = None,
        parameter: str = "",
    ) -> None:
        super().__init__(message, status=status, retry_after_s=retry_after_s)
        self.parameter = parameter


@dataclass(slots=True, frozen=True)
class ServerError:
    """What an error body says.

    Attributes:
        message: The text, with the text of the provider behind a router.
        codes: Its ``code``, ``type`` and nested codes, in lower case.
        param: The field it complains about, "" if it names none.
        fields: The JSON object itself.
    """

    message: str
    codes: frozenset[str]
    param: str
    fields: Mapping[str, Any]


_FILTER_CODES = {
    "content_filter",
    "content_policy_violation",
    "responsibleaipolicyviolation",
    "data_inspection_failed",
}
_FILTER_WORDS = re.compile(
    r"content management policy|content[ _]filter|content policy"
    r"|requires moderation|input was flagged|safety (?:system|filter)",
    re.IGNORECASE,
)
_TOO_LONG_CODES = {
    "context_length_exceeded",
    "context_window_exceeded",
    "exceed_context_size_error",
    "string_above_max_length",
    "request_too_large",
}
_TOO_LONG_WORDS = re.compile(
    r"maximum context length|model's context length|maximum model length|max_model_len\b"
    r"|available context size|context size has been exceeded|context window"
    r"|context limit|greater than the context length"
    r"|(?:prompt|input) is too long|prompt too long|maximum prompt length|too many tokens"
    r"|input tokens exceed the configured limit|exceeds the maximum number of tokens allowed"
    r"|`?inputs`? tokens \+ `?max_new_tokens`?|reduce the length of the (?:messages|input|prompt)"
    r"|exceeded model token limit|range of input length should be|request too large for",
    re.IGNORECASE,
)
_TOO_LONG_STATUSES = {400, 413, 422, 429, 500}
_NO_CREDIT_CODES = {"insufficient_quota", "billing_hard_limit_reached", "insufficient_credits"}
_TRANSIENT_STATUSES = {408, 409, 425}
_WRONG_PLACE_STATUSES = {404, 405, 410}

_CONTEXT_TOKENS = re.compile(
    r"(?:context (?:length|size|window|limit)|maximum model length)[^\d]{0,40}?(\d[\d,]*)",
    re.IGNORECASE,
)
_PROMPT_TOKENS = re.compile(
    r"(?:(\d[\d,]*) (?:in the messages|tokens from the input messages|of text input)"
    r"|has (?:at least )?(\d[\d,]*) input tokens|passed (?:at least )?(\d[\d,]*) input tokens"
    r"|(?:input|request) \((\d[\d,]*) tokens\)|prompt \(length (\d[\d,]*)\)"
    r"|prompt contains (?:at least )?(\d[\d,]*)|resulted in (\d[\d,]*) tokens)",
    re.IGNORECASE,
)
_REFUSES_MAX_TOKENS = re.compile(
    r"max_tokens\W.*(?:not supported|unsupported|use) .*max_completion_tokens"
    r"|use\W+max_completion_tokens",
    re.IGNORECASE | re.DOTALL,
)
_REFUSES_FIELD = re.compile(
    r"unsupported|not supported|unknown|unrecognized|unexpected|not permitted|extra_forbidden",
    re.IGNORECASE,
)
_DROPPABLE = ("seed",)
"""Fields a request can do without."""


def failure_of(
    reply: Reply, *, server: str, key_hint: str = "", now_s: Callable[[], float] = time.time
) -> ModelError:
    """Return the error that an unsuccessful answer means.

    Args:
        reply: Any answer with a status that is not 2xx.
        server: Base address, for the message.
        key_hint: What to do about a refused key.
        now_s: Seconds since the epoch, for ``Retry-After`` dates.
    """
    error = read_error(reply)
    retry_after_s = parse_retry_after(reply.headers, now_s())
    return classify(
        reply.status, error, server=server, key_hint=key_hint, retry_after_s=retry_after_s
    )


def classify(
    status: int,
    error: ServerError,
    *,
    server: str,
    key_hint: str = "",
    retry_after_s: float | None = None,
) -> ModelError:
    """Return the error for a status and an error body; the order is in the module's docstring."""
    said = f"{server} answered HTTP {status}: {_shorten(error.message) or 'no explanation'}"
    if _is_filtered(status, error):
        return ContentFiltered(said, status=status)
    if _is_too_long(status, error):
        context_tokens, prompt_tokens = _sizes(error)
        return PromptTooLong(
            said, status=status, context_tokens=context_tokens, prompt_tokens=prompt_tokens
        )
    if status in (401, 402, 403) or (status == 429 and error.codes & _NO_CREDIT_CODES):
        return ModelUnauthorized(f"{said} {key_hint}".rstrip(), status=status)
    if 300 <= status < 400 or status in _WRONG_PLACE_STATUSES:
        return ModelNotFound(f"{said} Check base_url and model_name.", status=status)
    if status == 429:
        return ModelRateLimited(said, status=status, retry_after_s=retry_after_s)
    if status >= 500 or status in _TRANSIENT_STATUSES:
        return ModelTransient(said, status=status, retry_after_s=retry_after_s)
    parameter = _unsupported_parameter(error)
    if parameter:
        return UnsupportedParameter(said, status=status, parameter=parameter)
    return ModelRejected(said, status=status)


def read_error(reply: Reply) -> ServerError:
    """Read an error body of any of the known shapes; text that is no JSON is the message."""
    try:
        return error_in(orjson.loads(reply.body))
    except orjson.JSONDecodeError:
        text = reply.body[: 4 * MAX_SCANNED_CHARS].decode("utf-8", "replace")
        location = reply.headers.get("location")
        where = f" (redirected to {location})" if location else ""
        return ServerError(text[:MAX_SCANNED_CHARS] + where, frozenset(), "", {})


def error_in(data: object) -> ServerError:
    """Read the error out of decoded JSON.

    Shapes: ``{"error": {...}}``, ``{"error": "text"}``, ``{"message": ...}`` (SGLang, older vLLM),
    ``{"detail": ...}`` (FastAPI), and each in a list of one (Google).
    """
    if isinstance(data, list) and data:
        data = data[0]
    if not isinstance(data, dict):
        return ServerError(_text(data), frozenset(), "", {})
    fields = data.get("error")
    if not isinstance(fields, dict):
        fields = data
    raw_metadata = fields.get("metadata")
    metadata = raw_metadata if isinstance(raw_metadata, dict) else {}
    message = _text(fields.get("message") or fields.get("detail") or fields.get("error") or data)
    behind = _text(metadata.get("raw") or "")
    inner = fields.get("innererror")
    raw_codes = [fields.get("code"), fields.get("type"), metadata.get("error_type")]
    raw_codes += [
        metadata.get("provider_code"),
        inner.get("code") if isinstance(inner, dict) else 0,
    ]
    return ServerError(
        message=f"{message} {behind}".strip()[:MAX_SCANNED_CHARS],
        codes=frozenset(code.lower() for code in raw_codes if isinstance(code, str)),
        param=_text(fields.get("param") or ""),
        fields=fields,
    )


def parse_retry_after(headers: Mapping[str, str], now_s: float) -> float | None:
    """Return the seconds that ``retry-after-ms`` or ``Retry-After`` (seconds or date) ask for."""
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return max(0.0, milliseconds / 1000)
    value = headers.get("retry-after")
    seconds = _number(value)
    if seconds is not None:
        return max(0.0, seconds)
    try:
        moment = email.utils.parsedate_to_datetime(value or "")
    except ValueError:
        return None
    return max(0.0, moment.timestamp() - now_s)


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if abs(value) < float("inf") else None


def _text(value: object) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _shorten(text: str) -> str:
    flat = " ".join(text[: 4 * MAX_MESSAGE_CHARS].split())
    return flat if len(flat) <= MAX_MESSAGE_CHARS else flat[:MAX_MESSAGE_CHARS] + " ..."


def _is_filtered(status: int, error: ServerError) -> bool:
    if status not in (400, 403, 422, 451):
        return False
    if error.codes & _FILTER_CODES or "flagged_input" in _text(error.fields.get("metadata") or ""):
        return True
    return status in (400, 403) and bool(_FILTER_WORDS.search(error.message))


def _is_too_long(status: int, error: ServerError) -> bool:
    if status not in _TOO_LONG_STATUSES:
        return False
    if status == 429:
        return "request too large for" in error.message.lower()
    if status == 413 or error.codes & _TOO_LONG_CODES:
        return True
    return bool(_TOO_LONG_WORDS.search(error.message))


def _sizes(error: ServerError) -> tuple[int | None, int | None]:
    """Return (context, prompt) in tokens as far as the error says them."""
    context, prompt = error.fields.get("n_ctx"), error.fields.get("n_prompt_tokens")
    if isinstance(context, int) and isinstance(prompt, int):
        return context, prompt
    found_context = _CONTEXT_TOKENS.search(error.message)
    found_prompt = _PROMPT_TOKENS.search(error.message)
    return (
        _int(found_context.group(1)) if found_context else None,
        _int(next(group for group in found_prompt.groups() if group)) if found_prompt else None,
    )


def _int(text: str) -> int:
    return int(text.replace(",", ""))


def _unsupported_parameter(error: ServerError) -> str:
    refused = bool(error.codes & {"unsupported_parameter", "unknown_parameter"})
    if (refused and error.param == "max_tokens") or _REFUSES_MAX_TOKENS.search(error.message):
        return "max_tokens"
    if not refused and not _REFUSES_FIELD.search(error.message):
        return ""
    for name in _DROPPABLE:
        if error.param == name or re.search(rf"['\"`]{name}['\"`]", error.message):
            return name
    return ""

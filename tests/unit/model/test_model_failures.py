"""What every known refusal means; bodies are in the shapes that servers really send."""

import orjson
import pytest

from hermes_rl.errors import (
    ModelError,
    ModelNotFound,
    ModelRateLimited,
    ModelRejected,
    ModelTransient,
    ModelUnauthorized,
)
from hermes_rl.model.failures import (
    ContentFiltered,
    PromptTooLong,
    UnsupportedParameter,
    failure_of,
    parse_retry_after,
)
from hermes_rl.model.http import Reply


def failure(status: int, body: object, headers: dict[str, str] | None = None) -> ModelError:
    raw = body if isinstance(body, bytes) else orjson.dumps(body)
    reply = Reply(status, headers or {}, raw)
    return failure_of(reply, server="http://s/v1", key_hint="Check the key.", now_s=lambda: 0.0)


def openai_error(message: str, **fields: object) -> dict[str, object]:
    return {"error": {"message": message, **fields}}


TOO_LONG = {
    "openai": (
        openai_error(
            "This model's maximum context length is 8192 tokens. However, your messages resulted "
            "in 9000 tokens. Please reduce the length of the messages.",
            code="context_length_exceeded",
            type="invalid_request_error",
            param="messages",
        ),
        (8192, 9000),
    ),
    "openai, code only": (
        openai_error("Too much.", code="context_length_exceeded"),
        (None, None),
    ),
    "openai, new": (
        openai_error("Your input exceeds the context window of this model."),
        (None, None),
    ),
    "vllm": (
        {
            "object": "error",
            "message": "This model's maximum context length is 2048 tokens. However, you requested "
            "3000 tokens (2900 in the messages, 100 in the completion). Please reduce the length "
            "of the messages or completion.",
            "type": "BadRequestError",
            "code": 400,
        },
        (2048, 2900),
    ),
    "vllm, prompt": (
        openai_error(
            "The decoder prompt (length 8357) is longer than the maximum model length of 8192. "
            "Make sure that `max_model_len` is no smaller than the number of text tokens."
        ),
        (8192, 8357),
    ),
    "vllm, max_tokens": (
        openai_error(
            "'max_tokens' or 'max_completion_tokens' is too large: 5000. This model's maximum "
            "context length is 4096 tokens and your request has 200 input tokens "
            "(5000 > 4096 - 200)."
        ),
        (4096, 200),
    ),
    "vllm, newer": (
        openai_error(
            "You passed 147421 input tokens and requested 16384 output tokens. However, the "
            "model's context length is only 163804 tokens, resulting in a maximum input length of "
            "147420 tokens. Please reduce the length of the input prompt.",
            code=400,
            param="input_tokens",
        ),
        (163804, 147421),
    ),
    "sglang": (
        {
            "object": "error",
            "message": "The input (5000 tokens) is longer than the model's context length "
            "(4096 tokens).",
            "code": 400,
        },
        (4096, 5000),
    ),
    "sglang, total": (
        openai_error(
            "Requested token count exceeds the model's maximum context length of 64000 tokens. "
            "You requested a total of 71897 tokens: 7897 tokens from the input messages and 64000 "
            "tokens for the completion."
        ),
        (64000, 7897),
    ),
    "openrouter": (
        openai_error(
            "This endpoint's maximum context length is 131072 tokens. However, you requested about "
            "140000 tokens (139000 of text input, 1000 of tool input).",
            code=400,
        ),
        (131072, 139000),
    ),
    "openrouter, provider": (
        openai_error(
            "Provider returned error",
            code=400,
            metadata={"raw": '{"error": "prompt is too long: 210000 tokens > 200000 maximum"}'},
        ),
        (None, None),
    ),
    "llama.cpp": (
        openai_error(
            "request (13392 tokens) exceeds the available context size (8192 tokens), try "
            "increasing it",
            code=400,
            type="exceed_context_size_error",
            n_prompt_tokens=13392,
            n_ctx=8192,
        ),
        (8192, 13392),
    ),
    "llama.cpp, older": (
        openai_error("the request exceeds the available context size, try increasing it"),
        (None, None),
    ),
    "google, in a list": (
        [
            openai_error(
                "The input token count (1200000) exceeds the maximum number of tokens allowed "
                "(1048576)."
            )
        ],
        (None, None),
    ),
    "together": (
        openai_error(
            "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 8193. Given: "
            "9000 `inputs` tokens and 100 `max_new_tokens`"
        ),
        (None, None),
    ),
}


@pytest.mark.parametrize("name", TOO_LONG)
def test_an_overlong_prompt_is_recognised_with_its_sizes(name: str) -> None:
    body, sizes = TOO_LONG[name]
    error = failure(400, body)
    assert isinstance(error, PromptTooLong)
    assert (error.context_tokens, error.prompt_tokens) == sizes


def test_llama_cpp_says_500_when_the_context_fills_up() -> None:
    body = openai_error("Context size has been exceeded.", code=500, type="server_error")
    assert isinstance(failure(500, body), PromptTooLong)


def test_a_request_that_is_too_large_for_a_quota_is_not_retried() -> None:
    body = openai_error("Request too large for gpt-x on tokens per min (TPM): Limit 30000")
    assert isinstance(failure(429, body), PromptTooLong)
    assert isinstance(failure(413, b"<html>Request Entity Too Large</html>"), PromptTooLong)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, openai_error("blocked", code="content_filter")),
        (
            400,
            openai_error(
                "The response was filtered due to the prompt triggering Azure OpenAI's content "
                "management policy.",
                innererror={"code": "ResponsibleAIPolicyViolation"},
            ),
        ),
        (403, openai_error("flagged", code=403, metadata={"flagged_input": "abc", "reasons": []})),
        (400, openai_error("bad", code="data_inspection_failed")),
    ],
)
def test_a_content_filter_is_recognised(status: int, body: object) -> None:
    assert type(failure(status, body)) is ContentFiltered


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (301, ModelNotFound),
        (400, ModelRejected),
        (401, ModelUnauthorized),
        (402, ModelUnauthorized),
        (403, ModelUnauthorized),
        (404, ModelNotFound),
        (405, ModelNotFound),
        (408, ModelTransient),
        (409, ModelTransient),
        (422, ModelRejected),
        (429, ModelRateLimited),
        (500, ModelTransient),
        (502, ModelTransient),
        (503, ModelTransient),
        (529, ModelTransient),
    ],
)
def test_each_status_has_its_class(status: int, expected: type[ModelError]) -> None:
    error = failure(status, openai_error("some reason"))
    assert type(error) is expected
    assert error.status == status
    assert "some reason" in str(error)


def test_an_empty_account_ends_the_run_although_it_is_a_429() -> None:
    body = openai_error("You exceeded your current quota", code="insufficient_quota")
    error = failure(429, body)
    assert type(error) is ModelUnauthorized
    assert error.stops_run


def test_errors_that_end_the_run_say_what_to_do() -> None:
    assert str(failure(401, openai_error("no"))).endswith("no Check the key.")
    assert "Check base_url and model_name." in str(failure(404, openai_error("no model x")))


def test_a_redirect_names_its_target() -> None:
    error = failure(308, b"", {"location": "https://elsewhere/v1"})
    assert "https://elsewhere/v1" in str(error)


@pytest.mark.parametrize(
    ("body", "parameter"),
    [
        (
            openai_error(
                "Unsupported parameter: 'max_tokens' is not supported with this model. Use "
                "'max_completion_tokens' instead.",
                param="max_tokens",
                code="unsupported_parameter",
            ),
            "max_tokens",
        ),
        ({"detail": [{"type": "extra_forbidden", "loc": ["body", "seed"], "input": 1}]}, "seed"),
        (openai_error("Unknown parameter: 'seed'.", param="seed"), "seed"),
    ],
)
def test_a_refused_field_is_named(body: object, parameter: str) -> None:
    error = failure(400, body)
    assert isinstance(error, UnsupportedParameter)
    assert error.parameter == parameter


@pytest.mark.parametrize(
    "message",
    [
        "max_tokens is too large: 100000. This model supports at most 16384 completion tokens.",
        "Unsupported value: 'temperature' does not support 0.3 with this model.",
        "Invalid 'messages[3].content': expected a string.",
    ],
)
def test_other_complaints_are_plain_rejections(message: str) -> None:
    assert type(failure(400, openai_error(message))) is ModelRejected


@pytest.mark.parametrize(
    "body",
    [b"", b"\xff\xfe", b"<html>nope</html>", b"null", b"[]", b'"text"', b'{"error": null}', b"3"],
)
def test_any_body_of_an_error_is_survived(body: bytes) -> None:
    assert type(failure(400, body)) is ModelRejected
    assert type(failure(503, body)) is ModelTransient


def test_a_huge_error_body_gives_a_short_message() -> None:
    assert len(str(failure(500, openai_error("word " * 500_000)))) < 800


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "12"}, 12.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after": "Thu, 01 Jan 1970 00:01:40 GMT"}, 40.0),
        ({"retry-after": "Thu, 01 Jan 1970 00:00:00 GMT"}, 0.0),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({}, None),
    ],
)
def test_retry_after_is_seconds_or_a_date(headers: dict[str, str], seconds: float | None) -> None:
    assert parse_retry_after(headers, 60.0) == seconds


def test_retry_after_travels_with_the_error() -> None:
    error = failure(429, openai_error("slow"), {"retry-after": "3"})
    assert isinstance(error, ModelRateLimited)
    assert error.retry_after_s == 3.0
    assert failure(503, b"", {"retry-after": "4"}).retry_after_s == 4.0

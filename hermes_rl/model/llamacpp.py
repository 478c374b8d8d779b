"""llama.cpp's own ``/completion``: ids in, ids and log-probabilities out.

Facts of the wire, measured against xllamacpp 2026.10.11549:

* Samplers are not neutral by default (temperature 0.8, top-k 40, top-p 0.95, min-p 0.05), so all
  are sent. ``logprob`` is of the raw distribution, whatever the samplers.
* The end token is one of the ids and has its log-probability.
* Prompts given as ids get no token added; the reply does not repeat them but counts them.
* A token that ends within a UTF-8 character has no entry in ``completion_probabilities``; the
  entry of the token that completes the character follows. The missing ones are asked for one by
  one (:meth:`LlamaCppServer.logprob`).
* ``/props`` shows a template of the server's own (:data:`FALLBACK_TEMPLATE`) for a model file that
  has none. A template's error is HTTP 500.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import PurePath

import orjson

from hermes_rl.config import ServerConfig
from hermes_rl.errors import (
    ConfigError,
    ModelError,
    ModelNotFound,
    ModelProtocolError,
    ModelRejected,
    ModelTransient,
)
from hermes_rl.model.address import Address, resolve_address
from hermes_rl.model.embedded_renderer import EmbeddedRenderer
from hermes_rl.model.failures import failure_of
from hermes_rl.model.http import Endpoint, open_endpoint
from hermes_rl.model.limiter import AdaptiveLimiter
from hermes_rl.model.llamacpp_wire import (
    FINISH,
    LONG_ARRAYS,
    REPLY,
    SAMPLERS,
    encoded,
    listed_logprob,
    read_ids,
    read_logprobs,
)
from hermes_rl.model.long_reply import read_reply
from hermes_rl.model.protocol import Renderer
from hermes_rl.model.retry import Retrier
from hermes_rl.model.sample import Sample
from hermes_rl.model.server_template import ServerTemplate, TemplateRefused
from hermes_rl.model.token_exact import TokenExactModel
from hermes_rl.model.wire import ReasoningInHistory
from hermes_rl.packed import packed_ints
from hermes_rl.parsers import get_parser
from hermes_rl.types import JSONObject, ToolCallParser

__all__ = ["LlamaCppServer", "connect", "open_llamacpp", "renderer_of", "token_exact_model"]

UNNAMED = "default"
"""``model_name`` where none was configured."""
SMALL_REQUEST_S = 60.0
"""For ``/props``, ``/tokenize`` and ``/detokenize``, which wait behind nothing."""
CANDIDATES = (1_000, 60_000)
"""How many of the likeliest tokens are listed to find one; the second is 6 MB."""
FORCED_BIAS = 1_000.0
FALLBACK_TEMPLATE = (
    "{%- for message in messages -%}\n"
    "  {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' -}}\n"
    "{%- endfor -%}\n{%- if add_generation_prompt -%}\n"
    "  {{- '<|im_start|>assistant\n' -}}\n{%- endif -%}"
)
"""What the server shows for a model without a template; it knows no tools."""
CHATML_START = "<|im_start|>"


class LlamaCppServer:
    """A :class:`~hermes_rl.model.sample.TokenServer`; also its model's tokenizer.

    Args:
        endpoint: Open connections; its base address is the server's root.
        name: Model name for reports.
        context_tokens: Context of one slot.
        slots: Completions that it computes at the same time.
        diagnose: Says why the server is gone for good, None if it is not; asked when it does not
            answer.
        template: The chat template that it renders with, None if it does not say.

    Attributes:
        end_ids: Tokens that have ended a turn so far.
    """

    logprob_mode = "raw"

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        name: str,
        context_tokens: int | None,
        slots: int,
        diagnose: Callable[[], ModelError | None] = lambda: None,
        template: str | None = None,
    ) -> None:
        self.end_ids: set[int] = set()
        self.name = name
        self.context_tokens = context_tokens
        self.slots = slots
        self._endpoint = endpoint
        self._diagnose = diagnose
        self._template = template
        self._opening: list[int] | None = None
        self._plain_id: int | None = None

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
        """Sample one continuation; see :class:`~hermes_rl.model.sample.TokenServer`."""
        fields = {
            **SAMPLERS,
            **REPLY,
            "prompt": packed_ints(prompt_ids),
            "n_predict": -1 if max_tokens is None else max_tokens,
            "temperature": temperature,
            "top_p": 1.0 if top_p is None else top_p,
            "seed": -1 if seed is None else seed,
        }
        reply = await self._ask("/completion", fields, timeout_s)
        ids = read_ids(reply)
        finish = FINISH.get(reply.get("stop_type"))
        if finish is None:
            raise ModelTransient(f"{self.name} broke off while answering.")
        if reply.get("truncated") or reply.get("tokens_evaluated") != len(prompt_ids):
            raise ModelProtocolError(
                f"{self.name} read {reply.get('tokens_evaluated')} prompt tokens of "
                f"{len(prompt_ids)}."
            )
        logprobs = read_logprobs(reply, ids)
        if logprobs is None:
            logprobs = [
                await self.logprob(
                    packed_ints(prompt_ids) + ids[:position], ids[position], timeout_s
                )
                for position in range(len(ids))
            ]
        if finish == "stop" and ids:
            self.end_ids.add(ids[-1])
        cached = reply.get("timings/cache_n")
        return Sample(
            ids=ids,
            logprobs=logprobs,
            finish=finish,
            cached_tokens=cached if isinstance(cached, int) else 0,
        )

    async def has_chat_template(self) -> bool:
        """Say whether the model has a chat template of its own, in tokens that it knows."""
        template = self._template
        if not template or template == FALLBACK_TEMPLATE:
            return False
        if CHATML_START not in template:
            return True
        return len(await self.tokenize(CHATML_START, control=True)) == 1

    async def render(
        self, messages: Sequence[JSONObject], tools: Sequence[JSONObject], *, prompt: bool = True
    ) -> str:
        """Return the conversation in the model's chat template, without BOS.

        Args:
            messages: As sent in a chat completion; the last is not the assistant's.
            tools: Schemas.
            prompt: Whether to go on to where the assistant speaks.

        Raises:
            TemplateRefused: The template raised an error.
        """
        fields: JSONObject = {"messages": list(messages), "add_generation_prompt": prompt}
        if tools:
            fields["tools"] = list(tools)
        try:
            reply = await self._ask("/apply-template", fields, SMALL_REQUEST_S)
        except (ModelRejected, ModelTransient) as error:
            if error.status not in (400, 500):
                raise
            raise TemplateRefused(
                f"The chat template of {self.name} has no form for these messages: {error}",
                status=error.status,
            ) from None
        rendered = reply.get("prompt")
        if not isinstance(rendered, str):
            raise ModelProtocolError(f"{self.name} rendered no prompt.")
        return rendered

    async def tokenize(self, text: str, *, control: bool = False) -> list[int]:
        """Return the ids of ``text``.

        Args:
            text: Any text.
            control: Whether names of control tokens in it become those; they stay text otherwise.
        """
        if not text:
            return []
        fields = {"content": text, "add_special": False, "parse_special": control}
        return list(read_ids(await self._ask("/tokenize", fields, SMALL_REQUEST_S)))

    async def opening(self) -> list[int]:
        """Return the ids that every prompt begins with: BOS, where the model has one."""
        if self._opening is None:
            fields = {"content": "", "add_special": True}
            reply = await self._ask("/tokenize", fields, SMALL_REQUEST_S)
            self._opening = list(read_ids(reply))
        return list(self._opening)

    async def detokenize(self, ids: Sequence[int]) -> str:
        """Return the text of ``ids``, special tokens included, bad UTF-8 replaced."""
        reply = await self._ask("/detokenize", {"tokens": list(ids)}, SMALL_REQUEST_S)
        text = reply.get("content")
        if not isinstance(text, str):
            raise ModelProtocolError(f"{self.name} gave no text for {len(ids)} tokens.")
        return text

    async def logprob(self, prompt_ids: Sequence[int], token_id: int, timeout_s: float) -> float:
        """Return the raw log-probability of one token after a prompt.

        Another token is forced by a bias, which the reported distribution does not show, so that
        the reply has an entry whatever bytes ``token_id`` stands for.

        Raises:
            ModelProtocolError: It is not among the 60,000 likeliest tokens.
        """
        if self._plain_id is None:
            self._plain_id = (await self.tokenize("a"))[0]
        for candidates in CANDIDATES:
            fields = {
                **SAMPLERS,
                **REPLY,
                "prompt": packed_ints(prompt_ids),
                "n_predict": 1,
                "n_probs": candidates,
                "temperature": 0.0,
                "logit_bias": [[self._plain_id, FORCED_BIAS]],
                "response_fields": ["completion_probabilities"],
            }
            logprob = listed_logprob(await self._post("/completion", fields, timeout_s), token_id)
            if logprob is not None:
                return logprob
        raise ModelProtocolError(f"{self.name} gives no log-probability for token {token_id}.")

    async def _ask(self, path: str, fields: JSONObject, timeout_s: float) -> JSONObject:
        body = await self._post(path, fields, timeout_s)
        server = f"{self._endpoint.base_url}{path}"
        return await read_reply(body, LONG_ARRAYS, lambda reply: reply, server=server)

    async def _post(self, path: str, fields: JSONObject, timeout_s: float) -> bytes:
        try:
            reply = await self._endpoint.post(path, encoded(fields), timeout_s=timeout_s)
        except ModelTransient as error:
            raise self._diagnose() or error from None
        if reply.status != 200:
            raise failure_of(reply, server=self._endpoint.base_url)
        return reply.body


@asynccontextmanager
async def connect(
    config: ServerConfig,
    *,
    environ: Mapping[str, str] = os.environ,
    diagnose: Callable[[], ModelError | None] = lambda: None,
) -> AsyncIterator[LlamaCppServer]:
    """Connect to a running server and ask what it serves.

    Args:
        config: ``base_url`` is the server's address; a ``/v1`` at its end is dropped.
        environ: Where keys are looked up.
        diagnose: See :class:`LlamaCppServer`.

    Raises:
        ConfigError: No address is configured, or what is there is no llama.cpp server.
        ModelError: The server cannot be reached.
    """
    if config.base_url is None:
        raise ConfigError(
            "server_type llamacpp needs --openai.base_url, for example http://127.0.0.1:8080; "
            "server_type local starts a server by itself."
        )
    address: Address = resolve_address(config, environ)
    root = address.base_url.rstrip("/").removesuffix("/v1")
    async with open_endpoint(root, api_key=address.api_key) as endpoint:
        props = await _props(endpoint)
        settings = props.get("default_generation_settings")
        context = settings.get("n_ctx") if isinstance(settings, dict) else None
        slots = props.get("total_slots")
        yield LlamaCppServer(
            endpoint,
            name=_name(config, props),
            context_tokens=context if isinstance(context, int) else None,
            slots=slots if isinstance(slots, int) and slots > 0 else 1,
            diagnose=diagnose,
            template=_text_or_none(props.get("chat_template")),
        )


def _text_or_none(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


async def _props(endpoint: Endpoint) -> JSONObject:
    reply = await endpoint.get("/props", timeout_s=SMALL_REQUEST_S)
    if reply.status != 200:
        failure = failure_of(reply, server=endpoint.base_url)
        if isinstance(failure, ModelNotFound):
            raise ConfigError(
                f"{endpoint.base_url} is no llama.cpp server: it has no /props. For another "
                "OpenAI-compatible server use --openai.server_type openai."
            )
        raise failure
    try:
        props = orjson.loads(reply.body)
    except orjson.JSONDecodeError:
        props = None
    if not isinstance(props, dict) or "total_slots" not in props:
        raise ConfigError(f"{endpoint.base_url} is no llama.cpp server: its /props is another's.")
    return props


def _name(config: ServerConfig, props: JSONObject) -> str:
    if config.model_name != UNNAMED:
        return config.model_name
    found = str(props.get("model_alias") or props.get("model_path") or "llama.cpp")
    return PurePath(found).stem if found.endswith(".gguf") else found


@asynccontextmanager
async def open_llamacpp(
    config: ServerConfig,
    *,
    parser: ToolCallParser | None = None,
    limiter: AdaptiveLimiter | None = None,
    reasoning_in_history: ReasoningInHistory = "auto",
) -> AsyncIterator[TokenExactModel]:
    """Open a running llama.cpp server; its connections close with the context.

    Args:
        config: ``base_url`` is the server's address.
        parser: Reads tool calls; None = the ``hermes`` parser.
        limiter: Plays no part: as many calls run as the server has slots.
        reasoning_in_history: See :func:`token_exact_model`.

    Raises:
        ConfigError: What is at the address is no llama.cpp server.
        ModelError: The server cannot be reached.
    """
    async with connect(config) as server:
        yield token_exact_model(
            server,
            config,
            parser=parser,
            reasoning_in_history=reasoning_in_history,
            renderer=await renderer_of(server),
        )


async def renderer_of(server: LlamaCppServer) -> Renderer:
    """Return the model's own chat template, or the embedded one if it has none."""
    if await server.has_chat_template():
        return ServerTemplate(server)
    return EmbeddedRenderer(server)


def token_exact_model(
    server: LlamaCppServer,
    config: ServerConfig,
    *,
    parser: ToolCallParser | None,
    reasoning_in_history: ReasoningInHistory,
    name: str | None = None,
    renderer: Renderer | None = None,
) -> TokenExactModel:
    """Return the model behind ``server``, with one call per slot.

    ``renderer`` None = the embedded template. More calls than slots would push each other's
    conversations out of the server's cache.

    Raises:
        ConfigError: ``reasoning_in_history`` is ``drop``: sampled ids are always shown again.
    """
    if reasoning_in_history == "drop":
        raise ConfigError(
            "reasoning_in_history drop would make every turn a fork: exact-token servers show the "
            "model what it sampled. Use auto or keep."
        )
    limiter = AdaptiveLimiter(server.slots, start=server.slots, name=server.name)
    return TokenExactModel(
        server,
        renderer or EmbeddedRenderer(server),
        parser=parser or get_parser("hermes"),
        retrier=Retrier(limiter),
        config=config,
        name=name,
    )

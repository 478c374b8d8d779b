"""A tiny Llama of random weights: its GGUF file for llama.cpp's server, and a forward pass of ours.

Nothing of llama.cpp is used for the forward pass: numpy in float64, whole sequences at once. It is
the independent opinion on what the server says. The tokenizer is trained here, by bytes.

Random weights say random things. So that the model calls tools and ends its turns, two components
are no chance: the first of every embedding is the same number and acts as a bias of the output; the
second is that of calls, and makes the end of the turn likely after one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import orjson
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from hermes_rl.tools.native import NATIVE_TOOLS

BOS, START, END, OTHER = "<|bos|>", "<|im_start|>", "<|im_end|>", "<|other|>"
CONTROL = (BOS, START, END, OTHER)
CALLS = tuple(
    f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'
    for name, arguments in (
        ("terminal", '{"command": "echo line >> log; wc -l log"}'),
        ("terminal", '{"command": "printf \'<|im_end|>\\\\n\' | tee marked"}'),
        ("write_file", '{"path": "note", "content": "caf\\u00e9 <|im_start|>"}'),
        ("read_file", '{"path": "missing"}'),
        ("terminal", '{"command": }'),
    )
)
"""One token each; the last is malformed."""

CHATML = (
    "{%- if tools %}<|im_start|>system\n"
    "{% if messages[0].role == 'system' %}{{ messages[0].content + '\n\n' }}{% endif %}"
    "<tools>{% for tool in tools %}{{ '\n' + (tool | tojson) }}{% endfor %}{{ '\n' }}</tools>"
    "{{ '<|im_end|>\n' }}{% endif %}"
    "{%- for message in messages %}"
    "{%- if message.role == 'system' and tools and loop.first %}"
    "{%- elif message.role == 'assistant' %}<|im_start|>assistant\n"
    "{% if message.reasoning_content %}"
    "{{ '<think>\n' + message.reasoning_content + '\n</think>\n' }}{% endif %}"
    "{{ message.content or '' }}"
    "{% for call in message.tool_calls or [] %}{{ '\n<tool_call>\n' }}"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}\n'
    "</tool_call>{% endfor %}{{ '<|im_end|>\n' }}"
    "{%- elif message.role == 'tool' %}<|im_start|>tool\n{{ message.content + '<|im_end|>\n' }}"
    "{%- else %}<|im_start|>{{ message.role + '\n' + message.content | trim + '<|im_end|>\n' }}"
    "{%- endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""A chat template with tools, an end-of-turn token and a newline after it."""

WIDTH, LAYERS, HEADS, KV_HEADS, HEAD_WIDTH, INNER = 64, 2, 4, 2, 16, 128
CONTEXT = 4096
EPSILON, ROPE_BASE = 1e-5, 10_000.0
CONSTANT = 3.0
"""First component of every embedding."""
AFTER_CALL = 9.0
"""Bias of the turn's end after a call."""
_TEXT = (
    "The user asks for a file with lines, and the assistant runs a command in the terminal.\n"
    "echo line >> log; wc -l log; printf the numbers into a note and read it again.\n"
    '{"output": "1 log", "exit_code": 0, "error": null}\n'
)


@dataclass(frozen=True)
class TinyLlama:
    """Weights and vocabulary.

    Attributes:
        tokens: By id; ordinary ones in the byte alphabet of GPT-2.
        merges: Of the byte-pair encoding.
        weights: By GGUF tensor name, float32.
    """

    tokens: Sequence[str]
    merges: Sequence[str]
    weights: Mapping[str, np.ndarray]

    def id_of(self, token: str) -> int:
        return self.tokens.index(token)

    def write(self, path: Path, *, chat_template: str | None) -> Path:
        """Write an F32 GGUF file."""
        writer = gguf.GGUFWriter(str(path), "llama")
        writer.add_context_length(CONTEXT)
        writer.add_embedding_length(WIDTH)
        writer.add_block_count(LAYERS)
        writer.add_feed_forward_length(INNER)
        writer.add_head_count(HEADS)
        writer.add_head_count_kv(KV_HEADS)
        writer.add_layer_norm_rms_eps(EPSILON)
        writer.add_rope_freq_base(ROPE_BASE)
        writer.add_rope_dimension_count(HEAD_WIDTH)
        writer.add_vocab_size(len(self.tokens))
        writer.add_file_type(gguf.LlamaFileType.ALL_F32)
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_list(list(self.tokens))
        writer.add_token_types([_token_type(token) for token in self.tokens])
        writer.add_token_merges(list(self.merges))
        writer.add_bos_token_id(self.id_of(BOS))
        writer.add_eos_token_id(self.id_of(END))
        writer.add_add_bos_token(True)
        if chat_template is not None:
            writer.add_chat_template(chat_template)
        for name, weight in self.weights.items():
            writer.add_tensor(name, weight)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    def logprobs(self, ids: Sequence[int], *, temperature: float = 1.0) -> np.ndarray:
        """Return the log-probabilities of all tokens after each prefix: row n follows ``ids[n]``.

        Args:
            ids: The sequence.
            temperature: The distribution that was sampled from, 1 = the model's own.
        """
        state = self._weight("token_embd.weight")[list(ids)]
        for layer in range(LAYERS):
            state = state + self._attention(layer, _normed(state))
            state = state + self._feed_forward(layer, _normed(state))
        logits = _normed(state) @ self._weight("output.weight").T / temperature
        logits -= logits.max(axis=-1, keepdims=True)
        return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))

    def _weight(self, name: str) -> np.ndarray:
        return self.weights[name].astype(np.float64)

    def _attention(self, layer: int, state: np.ndarray) -> np.ndarray:
        length = len(state)
        query, key, value = (
            (state @ self._weight(f"blk.{layer}.attn_{part}.weight").T).reshape(
                length, -1, HEAD_WIDTH
            )
            for part in "qkv"
        )
        query = _rotated(query)
        key = _rotated(key).repeat(HEADS // KV_HEADS, axis=1)
        value = value.repeat(HEADS // KV_HEADS, axis=1)
        query, key, value = (part.transpose(1, 0, 2) for part in (query, key, value))
        scores = query @ key.transpose(0, 2, 1) / np.sqrt(HEAD_WIDTH)
        scores += np.triu(np.full((length, length), -np.inf), 1)
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        scores /= scores.sum(axis=-1, keepdims=True)
        mixed = (scores @ value).transpose(1, 0, 2).reshape(length, -1)
        return mixed @ self._weight(f"blk.{layer}.attn_output.weight").T

    def _feed_forward(self, layer: int, state: np.ndarray) -> np.ndarray:
        gate, up, down = (
            self._weight(f"blk.{layer}.ffn_{part}.weight") for part in ("gate", "up", "down")
        )
        gated = state @ gate.T
        return (gated / (1 + np.exp(-gated)) * (state @ up.T)) @ down.T


def make_tiny_llama(seed: int = 0) -> TinyLlama:
    """Return a model of seeded random weights."""
    tokens, merges = _trained_vocabulary()
    random = np.random.default_rng(seed)

    def weight(rows: int, columns: int, scale: float) -> np.ndarray:
        return (random.standard_normal((rows, columns)) * scale).astype(np.float32)

    embedding = weight(len(tokens), WIDTH, 1.0)
    embedding[:, 0] = CONSTANT
    embedding[:, 1] = [CONSTANT * (token in CALLS) for token in tokens]
    output = weight(len(tokens), WIDTH, 0.2)
    output[:, 0] = [_bias(token) / CONSTANT for token in tokens]
    output[:, 1] = [AFTER_CALL / CONSTANT * (token == END) for token in tokens]
    weights = {
        "token_embd.weight": embedding,
        "output.weight": output,
        "output_norm.weight": np.ones(WIDTH, np.float32),
    }
    for layer in range(LAYERS):
        shapes = {
            "attn_q": (HEADS * HEAD_WIDTH, WIDTH),
            "attn_k": (KV_HEADS * HEAD_WIDTH, WIDTH),
            "attn_v": (KV_HEADS * HEAD_WIDTH, WIDTH),
            "attn_output": (WIDTH, HEADS * HEAD_WIDTH),
            "ffn_gate": (INNER, WIDTH),
            "ffn_up": (INNER, WIDTH),
            "ffn_down": (WIDTH, INNER),
        }
        for part, (rows, columns) in shapes.items():
            name = f"blk.{layer}.{part}.weight"
            weights[name] = weight(rows, columns, 1.0 / np.sqrt(columns))
            if part in ("attn_output", "ffn_down"):
                weights[name][:2] = 0.0
        for norm in ("attn_norm", "ffn_norm"):
            weights[f"blk.{layer}.{norm}.weight"] = np.ones(WIDTH, np.float32)
    return TinyLlama(tokens, merges, weights)


def _trained_vocabulary() -> tuple[list[str], list[str]]:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1000,
        special_tokens=[*CONTROL, *CALLS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    schemas = [orjson.dumps(tool.schema).decode() for tool in NATIVE_TOOLS.values()]
    tokenizer.train_from_iterator([_TEXT, *schemas], trainer)
    merges = orjson.loads(tokenizer.to_str())["model"]["merges"]
    vocabulary = tokenizer.get_vocab()
    return sorted(vocabulary, key=vocabulary.__getitem__), [
        merge if isinstance(merge, str) else " ".join(merge) for merge in merges
    ]


def _token_type(token: str) -> int:
    if token in CONTROL:
        return int(gguf.TokenType.CONTROL)
    return int(gguf.TokenType.USER_DEFINED if token in CALLS else gguf.TokenType.NORMAL)


def _bias(token: str) -> float:
    """Make turns end after a dozen tokens, most of them with a call; odd bytes are rare."""
    if token == END:
        return 2.8
    if token in CONTROL:
        return -12.0
    if token in CALLS:
        return 5.2 if token == CALLS[1] else 4.5
    return -0.5 if len(token) == 1 and not token.isascii() else 0.0


def _normed(state: np.ndarray) -> np.ndarray:
    return state / np.sqrt((state**2).mean(axis=-1, keepdims=True) + EPSILON)


def _rotated(heads: np.ndarray) -> np.ndarray:
    """Rotate neighbouring components by their position, as GGUF files of Llamas want it."""
    positions = np.arange(len(heads))[:, None]
    angles = positions * ROPE_BASE ** (-np.arange(0, HEAD_WIDTH, 2) / HEAD_WIDTH)
    cos, sin = np.cos(angles)[:, None, :], np.sin(angles)[:, None, :]
    even, odd = heads[..., 0::2], heads[..., 1::2]
    rotated = np.empty_like(heads)
    rotated[..., 0::2], rotated[..., 1::2] = even * cos - odd * sin, even * sin + odd * cos
    return rotated

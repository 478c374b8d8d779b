"""The tiny Llama of the exactness proof as a directory that vLLM serves, and stock vLLM on the CPU.

vLLM is no dependency of ours: ``VLLM`` names its command, in an environment of its own. How one is
made without a GPU is in ``docs/trainers.md``.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import numpy as np
import orjson
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests.integration.free_port import free_port
from tests.tiny_llama import (
    BOS,
    CALLS,
    CHATML,
    CONTROL,
    END,
    EPSILON,
    HEAD_WIDTH,
    HEADS,
    INNER,
    KV_HEADS,
    LAYERS,
    ROPE_BASE,
    WIDTH,
    TinyLlama,
)

SERVED_HEAD_WIDTH = 64
"""vLLM's attention on the CPU knows no heads as narrow as the model's: they are padded."""
CONTEXT_TOKENS = 4096
WHOLE_PROMPTS = (
    "--no-enable-chunked-prefill",
    *("--max-num-batched-tokens", str(2 * CONTEXT_TOKENS)),
)
"""After a part of a prompt vLLM winds the request's generator back, which a CPU's generator cannot
("CPU Generator does not use offset"): a seeded request then ends the engine."""
START_S = 900.0
STOP_S = 30.0
FAULT = "EngineDeadError"
ERROR_LINES = 60
"""The traceback of what went wrong first; those of whoever waited for it follow."""


def vllm_command() -> str | None:
    """Return the command that ``VLLM`` names, or the one in the path; None if there is none."""
    return os.environ.get("VLLM") or shutil.which("vllm")


def write_model(llama: TinyLlama, folder: Path) -> Path:
    """Write configuration, weights and tokenizer as the hub's directories have them."""
    folder.mkdir()
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": SERVED_HEAD_WIDTH,
        "hidden_act": "silu",
        "max_position_embeddings": CONTEXT_TOKENS,
        "rms_norm_eps": EPSILON,
        "rope_theta": ROPE_BASE,
        "tie_word_embeddings": False,
        "vocab_size": len(llama.tokens),
        "bos_token_id": llama.id_of(BOS),
        "eos_token_id": llama.id_of(END),
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_bytes(orjson.dumps(config))
    save_file(_weights(llama), folder / "model.safetensors", metadata={"format": "pt"})
    _tokenizer(llama).save_pretrained(folder)
    return folder


def _tokenizer(llama: TinyLlama) -> PreTrainedTokenizerFast:
    vocabulary = {token: number for number, token in enumerate(llama.tokens)}
    merges = [tuple(merge.split(" ")) for merge in llama.merges]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in CONTROL])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in CALLS])
    assert tokenizer.get_vocab_size() == len(llama.tokens)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=BOS, eos_token=END)
    fast.chat_template = CHATML
    return fast


def _weights(llama: TinyLlama) -> dict[str, np.ndarray]:
    named = {
        "model.embed_tokens.weight": llama.weights["token_embd.weight"],
        "model.norm.weight": llama.weights["output_norm.weight"],
        "lm_head.weight": llama.weights["output.weight"],
    }
    for layer in range(LAYERS):
        of = {
            name.removeprefix(f"blk.{layer}.").removesuffix(".weight"): weight
            for name, weight in llama.weights.items()
            if name.startswith(f"blk.{layer}.")
        }
        # The scores are divided by the root of the width that the server knows.
        scale = np.float32(np.sqrt(SERVED_HEAD_WIDTH / HEAD_WIDTH))
        front = f"model.layers.{layer}"
        named |= {
            f"{front}.self_attn.q_proj.weight": _spread(of["attn_q"]) * scale,
            f"{front}.self_attn.k_proj.weight": _spread(of["attn_k"]),
            f"{front}.self_attn.v_proj.weight": _padded(of["attn_v"]),
            f"{front}.self_attn.o_proj.weight": _padded(of["attn_output"].T).T,
            f"{front}.mlp.gate_proj.weight": of["ffn_gate"],
            f"{front}.mlp.up_proj.weight": of["ffn_up"],
            f"{front}.mlp.down_proj.weight": of["ffn_down"],
            f"{front}.input_layernorm.weight": of["attn_norm"],
            f"{front}.post_attention_layernorm.weight": of["ffn_norm"],
        }
    return {name: np.ascontiguousarray(weight) for name, weight in named.items()}


def _spread(weight: np.ndarray) -> np.ndarray:
    """Return queries or keys in wider heads that are rotated by the same angles.

    GGUF rotates neighbours, the hub's Llamas component n with n + half; pair j of the narrow head
    turns as fast as pair j times the ratio of the wide one.
    """
    ratio, half = SERVED_HEAD_WIDTH // HEAD_WIDTH, SERVED_HEAD_WIDTH // 2
    narrow = weight.reshape(-1, HEAD_WIDTH // 2, 2, weight.shape[1])
    wide = np.zeros((len(narrow), SERVED_HEAD_WIDTH, weight.shape[1]), np.float32)
    wide[:, :half:ratio] = narrow[:, :, 0]
    wide[:, half::ratio] = narrow[:, :, 1]
    return wide.reshape(-1, weight.shape[1])


def _padded(weight: np.ndarray) -> np.ndarray:
    narrow = weight.reshape(-1, HEAD_WIDTH, weight.shape[1])
    wide = np.zeros((len(narrow), SERVED_HEAD_WIDTH, weight.shape[1]), np.float32)
    wide[:, :HEAD_WIDTH] = narrow
    return wide.reshape(-1, weight.shape[1])


@contextmanager
def vllm_server(command: str, model: Path, log: Path, *words: str) -> Iterator[str]:
    """Run ``vllm serve`` on ``model`` until the context ends; its address up to and with /v1."""
    port = free_port()
    arguments = (
        *("serve", str(model), "--host", "127.0.0.1", "--port", str(port)),
        *("--served-model-name", "tiny", "--dtype", "float32", "--enforce-eager"),
        *("--max-model-len", str(CONTEXT_TOKENS), "--max-num-seqs", "16"),
        *(*WHOLE_PROMPTS, *words),
    )
    environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
    environment |= {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    with log.open("wb") as out:
        process = subprocess.Popen(
            [command, *arguments],
            cwd=model.parent,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        _wait_until_ready(process, f"http://127.0.0.1:{port}/health", log)
        yield f"http://127.0.0.1:{port}/v1"
        _tell_of_faults(process, log)
    finally:
        _stop(process)


def _tell_of_faults(process: subprocess.Popen[bytes], log: Path) -> None:
    """Print why vLLM's engine died, if it did: a test shows only that nothing more came."""
    errors = [line for line in log.read_text(errors="replace").splitlines() if "ERROR" in line]
    if process.poll() is not None or any(FAULT in line for line in errors):
        print(f"vLLM's engine died (exit code {process.poll()}); its first errors:")
        print("\n".join(errors[:ERROR_LINES]))


def _wait_until_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text(errors="replace")[-4000:]
        try:
            if httpx.get(url, timeout=5).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(1)
    raise AssertionError(f"vLLM did not start within {START_S:g} s")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the server and the engine process that it starts."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(STOP_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(STOP_S)

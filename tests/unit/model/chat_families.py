"""Chat templates of model families, written here from what is publicly known of their formats.

Not the vendors' files: each has the traits that matter for extending a conversation (which tokens
end a turn, what is moved, merged, trimmed or left out later), in as few lines as that takes. Their
tokenizers are trained here, on the text below.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import orjson
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

CORPUS = [
    "system user assistant tool terminal command list the files and tell me what is there",
    'Tools: {"name": "terminal", "arguments": {"command": "ls -l /tmp"}, "parameters": {}}',
    "I look. There are two files. a.txt b.txt <function=terminal> <parameter=command> </function>",
    '{"type": "function", "function": {"description": "Run a command.", "properties": {}}}',
]


@dataclass(frozen=True, kw_only=True)
class Family:
    """One family.

    Attributes:
        parser: Reads its calls.
        special: Control tokens.
        markup: Tokens of their own that are not called special.
        call_end: Token that ends a turn with calls, as the model samples it.
        answer_end: Token that ends a turn without.
        opening: What the assistant's words begin with in a turn without calls.
        forks: After which kind of message the template cannot be extended.
        kind: Of the tokenizer.
    """

    name: str
    parser: str
    template: str
    special: tuple[str, ...]
    markup: tuple[str, ...] = ()
    call_end: str
    answer_end: str
    opening: str = ""
    forks: tuple[Literal["tool", "user"], ...] = ()
    kind: Literal["bytes", "spaces"] = "bytes"


_THINK = ("<think>", "</think>")
_CALL = ("<tool_call>", "</tool_call>")

_HERMES_TOOLS = """\
{%- if tools %}<|im_start|>system
{%- if messages[0].role == 'system' %}{{ '\\n' + messages[0].content }}{% endif %}
<tools>
{%- for tool in tools %}{{ '\\n' + tool | tojson }}{% endfor %}
</tools><|im_end|>
{% elif messages[0].role == 'system' %}<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% endif %}"""
_JSON_CALLS = """\
{%- for call in message.tool_calls %}
{{- '\\n' if message.content or not loop.first else '' }}
{{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- call.function.arguments | tojson + '}\\n</tool_call>' }}
{%- endfor %}"""

HERMES = Family(
    name="hermes",
    parser="hermes",
    special=("<|im_start|>", "<|im_end|>"),
    call_end="<|im_end|>",
    answer_end="<|im_end|>",
    template=_HERMES_TOOLS
    + """\
{%- for message in messages if message.role != 'system' %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.role == 'tool' %}{{ '<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{%- else %}{{ message.content or '' }}"""
    + _JSON_CALLS
    + """\
{%- endif %}{{ '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}""",
)

QWEN3 = Family(
    name="qwen3",
    parser="qwen",
    special=("<|im_start|>", "<|im_end|>"),
    markup=(*_CALL, *_THINK, "<tool_response>", "</tool_response>"),
    call_end="<|im_end|>",
    answer_end="<|im_end|>",
    template=_HERMES_TOOLS
    + """\
{%- set seen = namespace(query=0) %}
{%- for message in messages %}{% if message.role == 'user' %}{% set seen.query = loop.index0 %}
{%- endif %}{% endfor %}
{%- for message in messages if message.role != 'system' %}
{%- set place = messages.index(message) %}
{%- if message.role == 'user' %}{{ '<|im_start|>user\\n' + message.content + '<|im_end|>\\n' }}
{%- elif message.role == 'assistant' %}{{ '<|im_start|>assistant\\n' }}
{%- if place > seen.query and (loop.last or message.reasoning_content) %}
{{- '<think>\\n' + (message.reasoning_content or '').strip('\\n') + '\\n</think>\\n\\n' }}
{%- endif %}{{ message.content or '' }}"""
    + _JSON_CALLS
    + """\
{{- '<|im_end|>\\n' }}
{%- else %}
{%- if messages[place - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{%- if loop.last or messages[place + 1].role != 'tool' %}{{ '<|im_end|>\\n' }}{% endif %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}""",
)

QWEN3_CODER = Family(
    name="qwen3_coder",
    parser="qwen3_coder",
    special=("<|im_start|>", "<|im_end|>"),
    markup=_CALL,
    call_end="<|im_end|>",
    answer_end="<|im_end|>",
    template=_HERMES_TOOLS
    + """\
{%- for message in messages if message.role != 'system' %}
{%- if message.role == 'tool' %}
{%- if loop.previtem.role != 'tool' %}{{ '<|im_start|>user\\n' }}{% endif %}
{{- '<tool_response>\\n' + message.content + '\\n</tool_response>\\n' }}
{%- if loop.last or loop.nextitem.role != 'tool' %}{{ '<|im_end|>\\n' }}{% endif %}
{%- else %}
{{- '<|im_start|>' + message.role + '\\n' + (message.content or '') }}
{%- for call in message.tool_calls %}
{{- '\\n' if message.content or not loop.first else '' }}
{{- '<tool_call>\\n<function=' + call.function.name + '>' }}
{%- for key, value in call.function.arguments.items() %}
{{- '\\n<parameter=' + key + '>\\n' + value | string + '\\n</parameter>' }}
{%- endfor %}
{{- '\\n</function>\\n</tool_call>' }}
{%- endfor %}{{ '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}""",
)

LLAMA3 = Family(
    name="llama3",
    parser="llama3_json",
    special=(
        "<|begin_of_text|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|python_tag|>",
    ),
    call_end="<|eot_id|>",
    answer_end="<|eot_id|>",
    template="""\
{%- macro head(role) %}{{ '<|start_header_id|>' + role + '<|end_header_id|>\\n\\n' }}{% endmacro %}
{{- '<|begin_of_text|>' }}
{%- if messages[0].role == 'system' %}
{{- head('system') + messages[0].content | trim + '<|eot_id|>' }}
{%- endif %}
{%- for message in messages if message.role != 'system' %}
{%- if message.tool_calls %}
{%- if message.tool_calls | length > 1 %}{{ raise_exception('One call at a time.') }}{% endif %}
{%- set function = message.tool_calls[0].function %}
{{- head('assistant') + '{"name": "' + function.name + '", "parameters": ' }}
{{- function.arguments | tojson + '}<|eot_id|>' }}
{%- elif message.role == 'tool' %}
{{- head('ipython') + message.content | tojson + '<|eot_id|>' }}
{%- elif message.role == 'user' and tools and loop.first %}
{{- head('user') + 'Functions:\\n\\n' }}
{%- for tool in tools %}{{ tool | tojson(indent=4) + '\\n\\n' }}{% endfor %}
{{- message.content | trim + '<|eot_id|>' }}
{%- else %}
{{- head(message.role) + message.content | trim + '<|eot_id|>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ head('assistant') }}{% endif %}""",
)

MISTRAL = Family(
    name="mistral",
    parser="mistral",
    special=(
        "<s>",
        "</s>",
        "[INST]",
        "[/INST]",
        "[AVAILABLE_TOOLS]",
        "[/AVAILABLE_TOOLS]",
        "[TOOL_CALLS]",
        "[TOOL_RESULTS]",
        "[/TOOL_RESULTS]",
    ),
    call_end="</s>",
    answer_end="</s>",
    kind="spaces",
    forks=("user",),  # the tools stand in front of the last user message
    template="""\
{%- set seen = namespace(user=0) %}
{%- for message in messages %}{% if message.role == 'user' %}{% set seen.user = loop.index0 %}
{%- endif %}{% endfor %}
{{- '<s>' }}
{%- for message in messages %}
{%- if message.role == 'user' %}
{%- if tools and loop.index0 == seen.user %}
{{- '[AVAILABLE_TOOLS] ' + tools | tojson + '[/AVAILABLE_TOOLS]' }}
{%- endif %}
{{- '[INST] ' + message.content + '[/INST]' }}
{%- elif message.tool_calls %}
{{- '[TOOL_CALLS] [' }}
{%- for call in message.tool_calls %}
{%- if call.id | length != 9 %}{{ raise_exception('An id has nine characters.') }}{% endif %}
{{- '{"name": "' + call.function.name + '", "arguments": ' + call.function.arguments | tojson }}
{{- ', "id": "' + call.id + '"}' + ('' if loop.last else ', ') }}
{%- endfor %}
{{- ']</s>' }}
{%- elif message.role == 'assistant' %}
{{- ' ' + message.content | trim + '</s>' }}
{%- elif message.role == 'tool' %}
{{- '[TOOL_RESULTS] {"content": ' + message.content | tojson + ', "call_id": "' }}
{{- message.tool_call_id + '"}[/TOOL_RESULTS]' }}
{%- endif %}
{%- endfor %}""",
)

_DS = {
    name: f"<\uff5c{name.replace(' ', chr(0x2581))}\uff5c>"
    for name in (
        "begin of sentence",
        "end of sentence",
        "User",
        "Assistant",
        "tool calls begin",
        "tool calls end",
        "tool call begin",
        "tool call end",
        "tool sep",
        "tool output begin",
        "tool output end",
    )
}
DEEPSEEK_V3_1 = Family(
    name="deepseek_v3_1",
    parser="deepseek_v3_1",
    special=tuple(_DS.values()),
    markup=_THINK,
    call_end=_DS["end of sentence"],
    answer_end=_DS["end of sentence"],
    template=f"""\
{{{{- '{_DS["begin of sentence"]}' }}}}
{{%- if messages[0].role == 'system' %}}{{{{ messages[0].content }}}}{{% endif %}}
{{%- for tool in tools or [] %}}{{{{ '\\n\\n' + tool | tojson }}}}{{% endfor %}}
{{%- for message in messages %}}
{{%- if message.role == 'user' %}}{{{{ '{_DS["User"]}' + message.content }}}}
{{%- elif message.role == 'tool' %}}
{{{{- '{_DS["tool output begin"]}' + message.content + '{_DS["tool output end"]}' }}}}
{{%- elif message.role == 'assistant' %}}
{{%- if loop.previtem.role == 'user' %}}{{{{ '{_DS["Assistant"]}</think>' }}}}{{% endif %}}
{{{{- message.content or '' }}}}
{{%- for call in message.tool_calls %}}
{{{{- '{_DS["tool calls begin"]}' if loop.first else '' }}}}
{{{{- '{_DS["tool call begin"]}' + call.function.name + '{_DS["tool sep"]}' }}}}
{{{{- call.function.arguments | tojson + '{_DS["tool call end"]}' }}}}
{{{{- '{_DS["tool calls end"]}' if loop.last else '' }}}}
{{%- endfor %}}{{{{ '{_DS["end of sentence"]}' }}}}
{{%- endif %}}
{{%- endfor %}}
{{%- if add_generation_prompt and messages[-1].role == 'user' %}}
{{{{- '{_DS["Assistant"]}</think>' }}}}
{{%- endif %}}""",
)

GLM45 = Family(
    name="glm45",
    parser="glm45",
    special=(
        "<|endoftext|>",
        "[gMASK]",
        "<sop>",
        "<|system|>",
        "<|user|>",
        "<|assistant|>",
        "<|observation|>",
    ),
    markup=(*_CALL, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    call_end="<|observation|>",  # no end of its own: the next speaker's token ends a turn
    answer_end="<|user|>",
    template="""\
{{- '[gMASK]<sop>' }}
{%- if tools %}{{ '<|system|>\\n' }}
{%- for tool in tools %}{{ tool | tojson + '\\n' }}{% endfor %}{% endif %}
{%- for message in messages %}
{%- if message.role == 'assistant' %}
{{- '<|assistant|>\\n' + (message.content or '') }}
{%- for call in message.tool_calls %}
{{- ('\\n' if message.content or not loop.first else '') + '<tool_call>' + call.function.name }}
{%- for key, value in call.function.arguments.items() %}
{{- '\\n<arg_key>' + key + '</arg_key>\\n<arg_value>' + value | string + '</arg_value>' }}
{%- endfor %}
{{- '\\n</tool_call>' }}
{%- endfor %}
{%- elif message.role == 'tool' %}
{{- '<|observation|>' if loop.previtem.role != 'tool' else '' }}
{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{%- else %}{{ '<|' + message.role + '|>\\n' + message.content }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}""",
)

KIMI_K2 = Family(
    name="kimi_k2",
    parser="kimi_k2",
    special=(
        "<|im_system|>",
        "<|im_user|>",
        "<|im_assistant|>",
        "<|im_middle|>",
        "<|im_end|>",
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
        "<|tool_call_begin|>",
        "<|tool_call_argument_begin|>",
        "<|tool_call_end|>",
    ),
    call_end="<|im_end|>",
    answer_end="<|im_end|>",
    template="""\
{%- if tools %}
{{- '<|im_system|>tool_declare<|im_middle|>' + tools | tojson + '<|im_end|>' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role in ('user', 'assistant') %}
{{- '<|im_' + message.role + '|>' + message.role + '<|im_middle|>' }}
{%- else %}{{ '<|im_system|>' + message.role + '<|im_middle|>' }}
{%- endif %}
{%- if message.role == 'tool' %}{{ '## Return of ' + message.tool_call_id + '\\n' }}{% endif %}
{{- message.content or '' }}
{%- for call in message.tool_calls %}
{{- '<|tool_calls_section_begin|>' if loop.first else '' }}
{{- '<|tool_call_begin|>' + call.id + '<|tool_call_argument_begin|>' }}
{{- call.function.arguments | tojson + '<|tool_call_end|>' }}
{{- '<|tool_calls_section_end|>' if loop.last else '' }}
{%- endfor %}{{ '<|im_end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_assistant|>assistant<|im_middle|>' }}{% endif %}""",
)

GPT_OSS = Family(
    name="gpt_oss",
    parser="gpt_oss",
    special=(
        "<|start|>",
        "<|end|>",
        "<|message|>",
        "<|channel|>",
        "<|constrain|>",
        "<|return|>",
        "<|call|>",
    ),
    call_end="<|call|>",
    answer_end="<|return|>",
    opening="<|channel|>final<|message|>",
    forks=("user",),  # an answer ends with <|return|> and is shown again with <|end|>
    template="""\
{%- set last = namespace(name='') %}
{{- '<|start|>system<|message|>' + (tools | tojson if tools else '') + '<|end|>' }}
{%- for message in messages %}
{%- if message.role == 'assistant' %}
{%- if message.tool_calls and message.content %}
{{- '<|start|>assistant<|channel|>commentary<|message|>' + message.content + '<|end|>' }}
{%- endif %}
{%- for call in message.tool_calls %}
{%- set last.name = call.function.name %}
{{- '<|start|>assistant<|channel|>commentary to=functions.' + last.name + ' <|constrain|>json' }}
{{- '<|message|>' + call.function.arguments | tojson + '<|call|>' }}
{%- else %}
{{- '<|start|>assistant<|channel|>final<|message|>' + (message.content or '') + '<|end|>' }}
{%- endfor %}
{%- elif message.role == 'tool' %}
{%- if not last.name %}{{ raise_exception('A result without a call.') }}{% endif %}
{{- '<|start|>functions.' + last.name + ' to=assistant<|channel|>commentary<|message|>' }}
{{- message.content | tojson + '<|end|>' }}
{%- else %}
{{- '<|start|>' + message.role + '<|message|>' + message.content + '<|end|>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}""",
)

GRANITE = Family(
    name="granite",
    parser="granite",
    special=("<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>", "<|tool_call|>"),
    call_end="<|end_of_text|>",
    answer_end="<|end_of_text|>",
    template="""\
{%- macro head(role) %}{{ '<|start_of_role|>' + role + '<|end_of_role|>' }}{% endmacro %}
{%- if tools %}{{ head('tools') + tools | tojson(indent=4) + '<|end_of_text|>\\n' }}{% endif %}
{%- for message in messages %}
{{- head('tool_response' if message.role == 'tool' else message.role) + (message.content or '') }}
{%- if message.tool_calls %}{{ '<|tool_call|>[' }}
{%- for call in message.tool_calls %}
{{- '{"name": "' + call.function.name + '", "arguments": ' + call.function.arguments | tojson }}
{{- '}' if loop.last else '}, ' }}
{%- endfor %}{{ ']' }}{% endif %}
{{- '<|end_of_text|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ head('assistant') }}{% endif %}""",
)

SEED_OSS = Family(
    name="seed_oss",
    parser="seed_oss",
    special=("<seed:bos>", "<seed:eos>", "<seed:think>", "</seed:think>", "<seed:tool_call>"),
    call_end="<seed:eos>",
    answer_end="<seed:eos>",
    template="""\
{%- if tools %}{{ '<seed:bos>system\\n' + tools | tojson + '<seed:eos>' }}{% endif %}
{%- for message in messages %}
{{- '<seed:bos>' + message.role + '\\n' + (message.content or '') }}
{%- for call in message.tool_calls %}
{{- '\\n' if message.content or not loop.first else '' }}
{{- '<seed:tool_call>\\n<function=' + call.function.name + '>' }}
{%- for key, value in call.function.arguments.items() %}
{{- '\\n<parameter=' + key + '>' + value | string + '</parameter>' }}
{%- endfor %}{{ '\\n</function>\\n</seed:tool_call>' }}
{%- endfor %}{{ '<seed:eos>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<seed:bos>assistant\\n' }}{% endif %}""",
)

GEMMA4 = Family(
    name="gemma4",
    parser="gemma4",
    special=("<bos>", "<eos>", "<|turn>", "<turn|>", '<|"|>', "<|tool_call>", "<tool_call|>"),
    call_end="<turn|>",
    answer_end="<turn|>",
    kind="spaces",
    forks=("tool", "user"),  # numbers its turns: an earlier one changes with every new message
    template="""\
{{- '<bos><|turn>system\\nturn ' + messages | length | string + '\\n' }}
{%- for tool in tools or [] %}{{ tool | tojson + '\\n' }}{% endfor %}{{ '<turn|>\\n' }}
{%- for message in messages %}
{{- '<|turn>' + ('model' if message.role == 'assistant' else message.role) + '\\n' }}
{{- (message.content or '') | trim }}
{%- for call in message.tool_calls %}
{{- '<|tool_call>call:' + call.function.name + '{' }}
{%- for key, value in call.function.arguments.items() %}
{{- key + ':' + ('<|"|>' + value + '<|"|>' if value is string else value | tojson) }}
{{- '' if loop.last else ',' }}
{%- endfor %}{{ '}<tool_call|>' }}
{%- endfor %}{{ '<turn|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|turn>model\\n' }}{% endif %}""",
)

FAMILIES: Sequence[Family] = (
    HERMES,
    QWEN3,
    QWEN3_CODER,
    LLAMA3,
    MISTRAL,
    DEEPSEEK_V3_1,
    GLM45,
    KIMI_K2,
    GPT_OSS,
    GRANITE,
    SEED_OSS,
    GEMMA4,
)


def trained(family: Family) -> PreTrainedTokenizerFast:
    """Train a tokenizer for ``family``; with its template."""
    tokens = [AddedToken(text, special=True, normalized=False) for text in family.special]
    if family.kind == "bytes":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer: Any = trainers.BpeTrainer(
            vocab_size=600, show_progress=False, initial_alphabet=alphabet, special_tokens=tokens
        )
    else:
        # As sentencepiece has it: a space in front of the text, but not behind control tokens;
        # unknown characters as bytes; control tokens in the vocabulary itself.
        tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
        )
        single_bytes = [AddedToken(f"<0x{byte:02X}>", special=False) for byte in range(256)]
        trainer = trainers.BpeTrainer(
            vocab_size=900,
            show_progress=False,
            special_tokens=[AddedToken("<unk>", special=True), *tokens, *single_bytes],
        )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer = _without_added_bytes(tokenizer)
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in family.markup])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=family.answer_end)
    fast.chat_template = family.template
    return fast


def _without_added_bytes(tokenizer: Tokenizer) -> Tokenizer:
    """Leave the tokens for single bytes in the vocabulary only, as sentencepiece has them."""
    spec = orjson.loads(tokenizer.to_str())
    spec["added_tokens"] = [t for t in spec["added_tokens"] if not t["content"].startswith("<0x")]
    return Tokenizer.from_str(orjson.dumps(spec).decode())

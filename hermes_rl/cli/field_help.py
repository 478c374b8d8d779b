"""The help of dotted flags, made from the configuration models."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from hermes_rl.config import AFFECTS_SCORE, AtroposFields, ConfigModel, TrainingFields

__all__ = ["field_help"]

WIDTH = 96
_IDLE = AtroposFields.model_fields.keys() | TrainingFields.model_fields.keys()


def field_help(sections: Sequence[tuple[str, type[ConfigModel]]]) -> str:
    """Return one paragraph per field of each section, with default and meaning."""
    lines = ["settings (flags, or fields of the YAML file; * = changing it makes a new run):"]
    for section, model in sections:
        for name, field in model.model_fields.items():
            if name not in _IDLE:
                lines += _lines(f"--{section}.{name}", field)
    lines.append(
        "Fields that only serve and process use are accepted in the env section as well.\n"
        "A list may be given as JSON or as text with commas, a mapping as JSON, nothing as null;\n"
        "--openai.0.<field> sets one of several servers.\n"
    )
    return "\n".join(lines)


def _lines(flag: str, field: FieldInfo) -> list[str]:
    star = "*" if AFFECTS_SCORE in field.metadata else " "
    meaning = " ".join((field.description or "").split())
    text = f"{meaning} [{_default(field)}]"
    return [
        f" {star}{flag}",
        *textwrap.wrap(text, WIDTH, initial_indent="      ", subsequent_indent="      "),
    ]


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True, validated_data={})
    return "required" if value is PydanticUndefined else "null" if value is None else str(value)

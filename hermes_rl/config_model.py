"""The base of all configuration models, and the mark of what changes scores."""

from __future__ import annotations

import types
import typing
from typing import Any

from pydantic import BaseModel, ConfigDict, SecretStr, field_validator, model_validator

from hermes_rl.bounds import value_fault

__all__ = ["AFFECTS_SCORE", "ConfigModel"]


class _AffectsScore:
    """Marks a field whose change makes scores incomparable."""

    def __repr__(self) -> str:
        return "AFFECTS_SCORE"


AFFECTS_SCORE = _AffectsScore()


def _holds(annotation: object, kind: type) -> bool:
    """Say whether an annotation is ``kind``, parametrised or not, or a union with it."""
    origin = typing.get_origin(annotation) or annotation
    if origin is kind:
        return True
    return any(_holds(argument, kind) for argument in _union_members(annotation))


def _union_members(annotation: object) -> tuple[object, ...]:
    is_union = typing.get_origin(annotation) in _UNIONS
    return typing.get_args(annotation) if is_union else ()


_UNIONS = (typing.Union, types.UnionType)


class ConfigModel(BaseModel):
    """Base of all configuration models: forbids unknown fields, reads text as a list."""

    model_config = ConfigDict(
        extra="forbid", protected_namespaces=(), use_attribute_docstrings=True
    )

    @model_validator(mode="before")
    @classmethod
    def _split_text_of_lists(cls, values: Any) -> Any:
        """Turn ``"a, b"`` into ``["a", "b"]`` where a list is wanted."""
        if not isinstance(values, dict):
            return values
        return {
            name: [part.strip() for part in value.split(",") if part.strip()]
            if isinstance(value, str) and cls.takes(name, list)
            else value
            for name, value in values.items()
        }

    @field_validator("*")
    @classmethod
    def _can_be_written(cls, value: Any) -> Any:
        """Refuse what no run directory could hold: huge integers, NaN, broken text ..."""
        secret = value.get_secret_value() if isinstance(value, SecretStr) else value
        if (fault := value_fault(secret)) is not None:
            raise ValueError(fault)
        return value

    @classmethod
    def takes(cls, name: str, kind: type) -> bool:
        """Say whether the field ``name`` exists and accepts values of type ``kind``."""
        field = cls.model_fields.get(name)
        return field is not None and _holds(field.annotation, kind)

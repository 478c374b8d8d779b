"""Reading YAML that people wrote: what plain YAML lets pass silently is an error with its line.

A key that stands twice in one mapping is refused: of such keys YAML libraries keep the last. So
is a file that is too large, nested too deeply or in itself; see :mod:`hermes_rl.bounds`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from hermes_rl.bounds import value_fault
from hermes_rl.errors import ConfigError

__all__ = ["read_yaml_file"]

_MOST_BYTES = 1 << 20
"""No configuration is longer; a device or a wrong file may be endless."""
_MOST_ENTRIES = 100_000
"""Of all mappings together, merged ones counted each time: no configuration has more."""
_MERGE = "tag:yaml.org,2002:merge"


class _RepeatedKey(yaml.YAMLError):
    """A key stands twice in one mapping."""


class _TooManyEntries(yaml.YAMLError):
    """Merges multiply what is written."""


class _Loader(yaml.SafeLoader):
    """The safe loader, without repeated keys, and with merges that do not multiply."""

    _entries = 0

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Compose a mapping and check its keys, which here are still as they were written."""
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        lines: dict[tuple[str, str], int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE:
                continue
            name, line = (key.tag, key.value), key.start_mark.line + 1
            if name in lines:
                raise _RepeatedKey(
                    f"the key {key.value!r} in line {line} stands in line {lines[name]} already; "
                    "remove one of them"
                )
            lines[name] = line
        return node

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Put what is merged in its place, each key once: PyYAML before 6.0.4 keeps them all."""
        super().flatten_mapping(node)
        kept: dict[object, tuple[yaml.Node, yaml.Node]] = {}
        for key, value in node.value:
            name = (key.tag, key.value) if isinstance(key, yaml.ScalarNode) else id(key)
            kept[name] = (key, value)
        node.value = list(kept.values())
        self._entries += len(node.value)
        if self._entries > _MOST_ENTRIES:
            raise _TooManyEntries(f"its mappings have more than {_MOST_ENTRIES} entries")


def read_yaml_file(path: Path, source: str) -> object:
    """Return what a YAML file holds, None for an empty one.

    Args:
        path: The file.
        source: Words for error messages.

    Raises:
        ConfigError: It cannot be read, is no YAML, or is too large or too deep.
    """
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{source} cannot be read: {reason}.") from error
    if len(text) > _MOST_BYTES:
        raise ConfigError(f"{source} is longer than {_MOST_BYTES >> 20} MiB: no configuration.")
    try:
        content: object = yaml.load(text.decode(), _Loader)
    except RecursionError:
        raise ConfigError(f"{source} is nested too deeply.") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date or number that is none
        raise ConfigError(f"{source} is not valid YAML: {' '.join(str(error).split())}") from error
    if (fault := value_fault(content)) is not None:
        raise ConfigError(f"{source}: a value in it {fault}.")
    return content

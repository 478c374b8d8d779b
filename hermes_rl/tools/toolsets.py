"""Named groups of tools. Names and contents are those of hermes-agent 0.19.

``enabled=None`` means every toolset usable here: the native tools, and those of hermes-agent that
are on the safe list of :mod:`hermes_rl.legacy.safety` and have what they need. A toolset that is
*named* must be usable: one that none of the available tools belongs to is an error that says what
to install, so that a run never goes on silently with fewer tools than it was asked to have. A
composite toolset (``debugging``, ``hermes-cli`` ...) is usable with whatever of it is available.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from hermes_rl.errors import ConfigError, UnknownName
from hermes_rl.tools.native import NATIVE_TOOLS

__all__ = [
    "TOOLSETS",
    "Availability",
    "Toolset",
    "resolve_toolsets",
    "toolset_names",
    "toolset_tools",
]


@dataclass(slots=True, frozen=True)
class Toolset:
    """Tools of its own, and other toolsets it includes."""

    tools: tuple[str, ...] = ()
    includes: tuple[str, ...] = ()


def _tools(names: str, *includes: str) -> Toolset:
    return Toolset(tuple(names.split()), includes)


_BROWSER = (
    "browser_navigate browser_snapshot browser_click browser_type browser_scroll browser_back "
    "browser_press browser_get_images browser_vision browser_console browser_cdp browser_dialog"
)
_HOME = "ha_list_entities ha_get_state ha_list_services ha_call_service"
_KANBAN = (
    "kanban_show kanban_list kanban_complete kanban_block kanban_heartbeat kanban_comment "
    "kanban_create kanban_link kanban_unblock kanban_attach kanban_attach_url kanban_attachments"
)
_FEISHU_DRIVE = (
    "feishu_drive_list_comments feishu_drive_list_comment_replies feishu_drive_reply_comment "
    "feishu_drive_add_comment"
)
_YUANBAO = "yb_query_group_info yb_query_group_members yb_send_dm yb_search_sticker yb_send_sticker"
_DESK = "read_terminal close_terminal"
_ASSISTANT = (
    f"web_search web_extract vision_analyze {_BROWSER} todo memory session_search "
    "skills_list skill_view skill_manage execute_code delegate_task"
)
_CORE = Toolset(
    tuple(
        f"{_ASSISTANT} {_DESK} image_generate text_to_speech clarify cronjob {_HOME} {_KANBAN} "
        "computer_use".split()
    ),
    ("terminal", "file"),
)


def _platform(extra: str = "") -> Toolset:
    return Toolset(_CORE.tools + tuple(extra.split()), _CORE.includes)


_PLATFORM_NAMES = (
    "telegram discord whatsapp slack signal bluebubbles homeassistant email mattermost matrix "
    "dingtalk feishu weixin qqbot wecom wecom-callback yuanbao sms"
)
_PLATFORMS = tuple(_PLATFORM_NAMES.split())
_PLATFORM_EXTRAS = {
    "discord": "discord discord_admin",
    "feishu": f"feishu_doc_read {_FEISHU_DRIVE}",
    "yuanbao": _YUANBAO,
}

TOOLSETS: Mapping[str, Toolset] = MappingProxyType(
    {
        "web": _tools("web_search web_extract"),
        "search": _tools("web_search"),
        "x_search": _tools("x_search"),
        "vision": _tools("vision_analyze"),
        "video": _tools("video_analyze"),
        "image_gen": _tools("image_generate"),
        "video_gen": _tools("video_generate xai_video_edit xai_video_extend"),
        "computer_use": _tools("computer_use"),
        "terminal": _tools("terminal process"),
        "skills": _tools("skills_list skill_view skill_manage"),
        "browser": _tools(f"{_BROWSER} web_search"),
        "cronjob": _tools("cronjob"),
        "file": _tools("read_file write_file patch search_files"),
        "tts": _tools("text_to_speech"),
        "todo": _tools("todo"),
        "memory": _tools("memory"),
        "context_engine": _tools(""),
        "session_search": _tools("session_search"),
        "project": _tools("project_list project_create project_switch"),
        "clarify": _tools("clarify"),
        "code_execution": _tools("execute_code"),
        "delegation": _tools("delegate_task"),
        "homeassistant": _tools(_HOME),
        "kanban": _tools(_KANBAN),
        "discord": _tools("discord"),
        "discord_admin": _tools("discord_admin"),
        "yuanbao": _tools(_YUANBAO),
        "feishu_doc": _tools("feishu_doc_read"),
        "feishu_drive": _tools(_FEISHU_DRIVE),
        "spotify": _tools(
            "spotify_playback spotify_devices spotify_queue spotify_search spotify_playlists "
            "spotify_albums spotify_library"
        ),
        "debugging": _tools("", "terminal", "web", "file"),
        "safe": _tools("", "web", "vision", "image_gen"),
        "coding": _tools(f"{_ASSISTANT} {_DESK} clarify", "terminal", "file"),
        "hermes-acp": _tools(_ASSISTANT, "terminal", "file"),
        "hermes-api-server": _tools(
            f"{_ASSISTANT} image_generate cronjob {_HOME}", "terminal", "file"
        ),
        "hermes-cli": _platform(),
        "hermes-cron": _platform(),
        **{f"hermes-{name}": _platform(_PLATFORM_EXTRAS.get(name, "")) for name in _PLATFORMS},
        "hermes-webhook": _tools("web_search web_extract vision_analyze clarify"),
        "hermes-gateway": Toolset(
            includes=tuple(f"hermes-{name}" for name in [*_PLATFORMS, "webhook"])
        ),
    }
)
"""Every toolset by name."""

_OLD_NAMES = {
    "web_tools": "web",
    "vision_tools": "vision",
    "image_tools": "image_gen",
    "skills_tools": "skills",
    "browser_tools": "browser",
    "cronjob_tools": "cronjob",
    "file_tools": "file",
    "tts_tools": "tts",
}
_EVERYTHING = ("all", "*")
_ONLY_TERMINAL = "terminal_tools"
"""The oldest name of all: the terminal without the process tool."""


def toolset_names() -> list[str]:
    """Return every name that may be enabled or disabled, sorted."""
    return sorted([*TOOLSETS, *_OLD_NAMES, *_EVERYTHING, _ONLY_TERMINAL])


def toolset_tools(name: str) -> frozenset[str]:
    """Return the tools of a toolset, those of its includes too.

    Raises:
        UnknownName: No such toolset; lists the nearest.
    """
    if name in _EVERYTHING:
        return frozenset().union(*(toolset_tools(each) for each in TOOLSETS))
    if name == _ONLY_TERMINAL:
        return frozenset({"terminal"})
    toolset = TOOLSETS.get(_OLD_NAMES.get(name, name))
    if toolset is None:
        raise UnknownName.of("toolset", name, toolset_names())
    return frozenset(toolset.tools).union(*(toolset_tools(each) for each in toolset.includes))


def _no_hermes_agent(tools: Collection[str]) -> str:
    return (
        "Install the extra and set what its tools need (API keys, a browser): "
        "pip install 'hermes_rl[hermes]'."
    )


@dataclass(slots=True, frozen=True, kw_only=True)
class Availability:
    """Which tools can run here beside the native ones.

    Attributes:
        offered: Those that belong to ``enabled=None``.
        by_name: Those that must be asked for: a toolset that holds them is named.
        toolsets: Toolsets that exist only here, with their tools: those of plug-ins.
        why_not: Says of tools that cannot run here why, and what to do.
    """

    offered: frozenset[str] = frozenset()
    by_name: frozenset[str] = frozenset()
    toolsets: Mapping[str, Sequence[str]] = field(default_factory=dict)
    why_not: Callable[[Collection[str]], str] = _no_hermes_agent

    def tools_of(self, toolset: str) -> frozenset[str]:
        """Return the tools of a toolset, those of its includes and of plug-ins too.

        Raises:
            UnknownName: No such toolset; lists the nearest.
        """
        own = frozenset(self.toolsets.get(toolset, ()))
        if toolset in _EVERYTHING:
            own = own.union(*self.toolsets.values())
        elif toolset in self.toolsets and toolset not in TOOLSETS:
            return own
        try:
            return toolset_tools(toolset) | own
        except UnknownName:
            known = [*toolset_names(), *self.toolsets]
            raise UnknownName.of("toolset", toolset, known) from None


def resolve_toolsets(
    enabled: Sequence[str] | None,
    disabled: Sequence[str] | None = None,
    availability: Availability | None = None,
) -> list[str]:
    """Return the names of the tools to offer, sorted.

    Args:
        enabled: Toolsets by name; None = everything available, ``[]`` = no tool at all.
        disabled: Toolsets whose tools are taken away in the end.
        availability: What can run here beside the native tools; None = nothing.

    Raises:
        UnknownName: A name is no toolset.
        ConfigError: A toolset is named in ``enabled`` but none of its tools is available.
    """
    availability = availability or Availability()
    offered = availability.offered.union(NATIVE_TOOLS)
    usable = offered | availability.by_name
    chosen = offered if enabled is None else frozenset[str]()
    for name in enabled or ():
        tools = availability.tools_of(name)
        if tools and not tools & usable:
            raise ConfigError(
                f"Toolset {name!r} ({', '.join(sorted(tools))}) is enabled but not available "
                f"here. {availability.why_not(tools)} Or leave it out of enabled_toolsets."
            )
        chosen |= tools & usable
    for name in disabled or ():
        chosen -= availability.tools_of(name)
    return sorted(chosen)

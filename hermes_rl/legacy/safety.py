"""Which of hermes-agent's tools may be used, and what may be given to them.

Tools run on the host, beside the engine, while the agent's commands run in its sandbox. So:

* :data:`OFFERED`, the safe list: they see public pages and their own rollout's state only. They
  belong to ``enabled_toolsets=None``.
* :data:`BY_NAME`: they act on accounts of yours or cost money. Only where a toolset that holds
  them is named. So are tools that no table knows: those of your own plugins.
* :data:`REFUSED`: they would run commands or use files on the host instead of in the sandbox,
  share state between rollouts, or wait for somebody who is not there. Never.
* the native tools: this library's own, in the sandbox; hermes-agent's are never used.

The names are those of hermes-agent 0.19.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from urllib.parse import urlsplit

from hermes_rl.tools.native import NATIVE_TOOLS
from hermes_rl.types import JSONObject

__all__ = [
    "BY_NAME",
    "FILE_ARGUMENTS",
    "KNOWN",
    "OFFERED",
    "READ_ONLY",
    "REFUSED",
    "argument_problem",
    "is_web_address",
    "refusal",
]

_LOOKING = (
    "web_search",
    "web_extract",
    "x_search",
    "vision_analyze",
    "video_analyze",
    "skills_list",
    "skill_view",
)
_BROWSING = (
    "browser_navigate",
    "browser_snapshot",
    "browser_click",
    "browser_type",
    "browser_scroll",
    "browser_back",
    "browser_press",
    "browser_get_images",
    "browser_vision",
    "browser_console",
    "browser_dialog",
)

OFFERED = frozenset({*_LOOKING, *_BROWSING})
"""The safe list."""

READ_ONLY = frozenset(_LOOKING)
"""Calls may run beside other read-only calls of the same message."""


def _with_reason(*groups: tuple[str, str]) -> Mapping[str, str]:
    return MappingProxyType({name: reason for names, reason in groups for name in names.split()})


BY_NAME: Mapping[str, str] = _with_reason(
    ("image_generate video_generate xai_video_edit xai_video_extend", "costs money per call"),
    ("text_to_speech", "costs money per call"),
    ("ha_list_entities ha_get_state ha_list_services ha_call_service", "acts on your home"),
    (
        "discord discord_admin feishu_doc_read feishu_drive_add_comment "
        "feishu_drive_list_comment_replies feishu_drive_list_comments feishu_drive_reply_comment "
        "spotify_albums spotify_devices spotify_library spotify_playback spotify_playlists "
        "spotify_queue spotify_search yb_query_group_info yb_query_group_members "
        "yb_search_sticker yb_send_dm yb_send_sticker",
        "acts on an account of yours",
    ),
)
"""Tool -> why it must be asked for."""

REFUSED: Mapping[str, str] = _with_reason(
    ("execute_code", "it runs code on the host; use terminal, which runs in the sandbox"),
    ("cronjob", "it schedules commands on the host"),
    ("computer_use", "it operates the host's desktop"),
    ("browser_cdp", "the raw protocol reaches files of the host and other rollouts' pages"),
    ("delegate_task", "it starts agents whose commands run on the host"),
    ("read_terminal close_terminal", "it belongs to hermes-agent's desktop application"),
    ("project_list project_create project_switch", "it keeps projects in directories of the host"),
    ("skill_manage", "it writes skills that all rollouts share"),
    ("memory session_search", "it keeps what one rollout said where others read it"),
    ("clarify", "it asks a person, and nobody is there to answer"),
    (
        "kanban_show kanban_list kanban_complete kanban_block kanban_heartbeat kanban_comment "
        "kanban_create kanban_link kanban_unblock kanban_attach kanban_attach_url "
        "kanban_attachments",
        "it uses a board and files on the host that all rollouts share",
    ),
)
"""Tool -> why it is never used."""

KNOWN = frozenset({*OFFERED, *BY_NAME, *REFUSED, *NATIVE_TOOLS})

FILE_ARGUMENTS: Mapping[str, str] = MappingProxyType(
    {"vision_analyze": "image_url", "video_analyze": "video_url"}
)
"""Tool -> a parameter that may name a file. It is read in the sandbox, never on the host."""
_ADDRESS_ARGUMENTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "browser_navigate": ("url",),
        "image_generate": ("image_url", "reference_image_urls"),
        "video_generate": ("image_url", "reference_image_urls"),
        "xai_video_edit": ("video_url",),
        "xai_video_extend": ("video_url",),
    }
)
"""Tool -> parameters that must be web addresses: a path or file:// would be of the host."""
_REFUSED_ARGUMENTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"text_to_speech": ("output_path",), "yb_send_dm": ("media_files",)}
)
"""Tool -> parameters that name files of the host."""
_BROWSER_PREFIX = "browser_"


def refusal(tool: str) -> str | None:
    """Say why a tool is not run through hermes-agent; None if it may be."""
    if tool in NATIVE_TOOLS:
        return (
            f"{tool} is not run by hermes-agent: it would run on the host. hermes_rl has it "
            "natively, in the rollout's sandbox; see hermes_rl.tools.ToolDispatcher."
        )
    reason = REFUSED.get(tool)
    return f"{tool} is refused: {reason}." if reason else None


def is_web_address(value: object) -> bool:
    """Say whether ``value`` is an http or https address."""
    if not isinstance(value, str):
        return False
    try:
        parts = urlsplit(value.strip())
    except ValueError:
        return False
    return parts.scheme.lower() in ("http", "https") and bool(parts.netloc)


def argument_problem(tool: str, arguments: JSONObject) -> str | None:
    """Say what is wrong with giving ``arguments`` to a tool on the host; None if nothing is."""
    for parameter in _REFUSED_ARGUMENTS.get(tool, ()):
        if arguments.get(parameter):
            return f"{tool}: leave out {parameter}; it names files of another machine."
    for parameter in _ADDRESS_ARGUMENTS.get(tool, ()):
        given = arguments.get(parameter)
        for value in given if isinstance(given, list) else [given] if given else []:
            if not is_web_address(value):
                return f"{tool}: {parameter} must be an http:// or https:// address."
    if tool.startswith(_BROWSER_PREFIX):
        # They become words of a command line, where this would be an option.
        for parameter, value in arguments.items():
            if isinstance(value, str) and value.lstrip().startswith("--"):
                return f"{tool}: {parameter} must not begin with two dashes."
    return None

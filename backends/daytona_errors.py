"""What Daytona's SDK raises, and the error we raise for it.

The SDK's classes stand for HTTP statuses (see ``daytona.common.errors``); what a status means
depends on what was being done.
"""

from __future__ import annotations

import re

from daytona.common import errors as vendor

from hermes_rl.backends.cloud_errors import ErrorTable, Phase, Row
from hermes_rl.errors import (
    BackendUnavailable,
    Capacity,
    ConfigError,
    CreateError,
    HermesRLError,
    ImageBuildFailed,
    ImageNotFound,
    RateLimited,
    SandboxError,
    SandboxGone,
)

__all__ = ["TABLE"]

_CREATE: frozenset[Phase] = frozenset({"create", "image"})
_USE: frozenset[Phase] = frozenset({"use"})


def _told(error: Exception) -> str:
    return str(error) or type(error).__name__


def _key_refused(error: Exception) -> HermesRLError:
    return ConfigError(f"Daytona refuses the key: {_told(error)}. Check DAYTONA_API_KEY.")


def _exhausted(error: Exception) -> HermesRLError:
    return Capacity(f"Daytona has no room for another sandbox: {_told(error)}")


def _not_allowed(error: Exception) -> HermesRLError:
    return ConfigError(f"Daytona does not allow this with the key in use: {_told(error)}")


def _rate_limited(error: Exception) -> HermesRLError:
    headers = getattr(error, "headers", None) or {}
    lowered = {str(name).lower(): str(value) for name, value in dict(headers).items()}
    wait = lowered.get("retry-after", "")
    retry_after_s = float(wait) if re.fullmatch(r"\d+(\.\d+)?", wait) else None
    return RateLimited(
        f"Daytona refuses more sandboxes for now: {_told(error)}", retry_after_s=retry_after_s
    )


def _no_image(error: Exception) -> HermesRLError:
    return ImageNotFound(f"The image or snapshot is not there: {_told(error)}")


def _build_failed(error: Exception) -> HermesRLError:
    text = _told(error)
    return ImageBuildFailed(f"Daytona could not build the image: {text}", output=text)


def _bad_request(error: Exception) -> HermesRLError:
    return CreateError(f"Daytona refuses the sandbox: {_told(error)}")


def _not_started(error: Exception) -> HermesRLError:
    return CreateError(f"The sandbox does not start: {_told(error)}")


def _gone(error: Exception) -> HermesRLError:
    return SandboxGone(f"The sandbox is gone: {_told(error)}", cause="removed")


def _unavailable(error: Exception) -> HermesRLError:
    return BackendUnavailable(f"Daytona cannot be reached: {_told(error)}")


def _other(error: Exception) -> HermesRLError:
    return SandboxError(f"Daytona failed: {type(error).__name__}: {error}")


TABLE = ErrorTable(
    "daytona",
    (
        Row(_key_refused, (vendor.DaytonaAuthenticationError,)),
        Row(
            _exhausted,
            (vendor.DaytonaForbiddenError, vendor.DaytonaBadRequestError),
            _CREATE,
            "quota|limit (exceeded|reached)|exceeds? .*limit|no available runners",
        ),
        Row(_not_allowed, (vendor.DaytonaForbiddenError,)),
        Row(_rate_limited, (vendor.DaytonaRateLimitError,)),
        Row(_exhausted, (vendor.DaytonaQueueTimeoutError, vendor.DaytonaSpotEvictedError)),
        Row(
            _no_image,
            (vendor.DaytonaError,),
            _CREATE,
            "manifest unknown|pull access|snapshot .* not found|image .*not found",
        ),
        Row(_build_failed, (vendor.DaytonaError,), _CREATE, "build.?failed|building"),
        Row(_no_image, (vendor.DaytonaNotFoundError,), _CREATE),
        Row(
            _bad_request,
            (
                vendor.DaytonaBadRequestError,
                vendor.DaytonaConflictError,
                vendor.DaytonaUnprocessableEntityError,
            ),
            _CREATE,
        ),
        Row(
            _gone,
            (vendor.DaytonaNotFoundError, vendor.DaytonaGoneError, vendor.DaytonaConflictError),
            _USE,
        ),
        Row(
            _unavailable,
            (
                vendor.DaytonaConnectionError,
                vendor.DaytonaTimeoutError,
                vendor.DaytonaInternalServerError,
                vendor.DaytonaBadGatewayError,
                vendor.DaytonaServiceUnavailableError,
                OSError,
            ),
        ),
        Row(_not_started, (vendor.DaytonaError,), _CREATE),
        Row(_other, (Exception,)),
    ),
)

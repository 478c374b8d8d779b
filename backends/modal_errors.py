"""What Modal's SDK raises, and the error we raise for it.

The SDK's classes stand for gRPC statuses (see ``modal.exception``); what a status means depends on
what was being done.
"""

from __future__ import annotations

import grpclib
import modal.exception as vendor
from grpclib.exceptions import StreamTerminatedError
from modal_proto import api_pb2

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

_IMAGE: frozenset[Phase] = frozenset({"image"})
_CREATE: frozenset[Phase] = frozenset({"create", "image"})
_USE: frozenset[Phase] = frozenset({"use"})


def _told(error: Exception) -> str:
    """Some of the SDK's exceptions have no message."""
    return str(error) or type(error).__name__


def _token_refused(error: Exception) -> HermesRLError:
    return ConfigError(
        f"Modal refuses the token: {error}. Check MODAL_TOKEN_ID and MODAL_TOKEN_SECRET "
        "(modal token new makes a pair)."
    )


def _not_allowed(error: Exception) -> HermesRLError:
    return ConfigError(f"Modal does not allow this with the token in use: {error}")


def _too_old(error: Exception) -> HermesRLError:
    return ConfigError(f"Modal does not know this request: {error}. pip install --upgrade modal")


def _no_image(error: Exception) -> HermesRLError:
    return ImageNotFound(f"The image is not there or may not be pulled: {error}")


def _build_failed(error: Exception) -> HermesRLError:
    text = str(error)
    return ImageBuildFailed(f"Modal could not build the image: {text}", output=text)


def _rate_limited(error: Exception) -> HermesRLError:
    details = getattr(error, "_grpc_details", None) or ()
    waits = [each.retry_after_secs for each in details if isinstance(each, api_pb2.RPCRetryPolicy)]
    return RateLimited(
        f"Modal refuses more sandboxes for now: {error}", retry_after_s=waits[0] if waits else None
    )


def _exhausted(error: Exception) -> HermesRLError:
    """Tell a request that came too fast, which has a time to wait, from a quota."""
    limited = _rate_limited(error)
    if isinstance(limited, RateLimited) and limited.retry_after_s is not None:
        return limited
    return Capacity(f"Modal has no room for another sandbox: {error}")


def _no_capacity(error: Exception) -> HermesRLError:
    return Capacity(f"Modal has not started the sandbox in time: {_told(error)}")


def _bad_request(error: Exception) -> HermesRLError:
    return CreateError(f"Modal refuses the sandbox: {error}")


def _expired(error: Exception) -> HermesRLError:
    return SandboxGone("The sandbox is gone: its lease is over.", cause="expired")


def _gone(error: Exception) -> HermesRLError:
    return SandboxGone(f"The sandbox is gone: {_told(error)}", cause="removed")


def _unavailable(error: Exception) -> HermesRLError:
    return BackendUnavailable(f"Modal cannot be reached: {_told(error)}")


def _other(error: Exception) -> HermesRLError:
    return SandboxError(f"Modal failed: {type(error).__name__}: {error}")


TABLE = ErrorTable(
    "modal",
    (
        Row(_token_refused, (vendor.AuthError,)),
        Row(_not_allowed, (vendor.PermissionDeniedError,)),
        Row(_too_old, (vendor.VersionError, vendor.UnimplementedError)),
        Row(
            _no_image,
            (vendor.ImageBuildError, vendor.NotFoundError),
            _IMAGE,
            "manifest unknown|not found|does not exist|pull access|denied|unauthorized"
            "|invalid reference|failed to resolve",
        ),
        Row(_build_failed, (vendor.ImageBuildError, vendor.ExecutionError), _IMAGE),
        Row(
            _rate_limited,
            (vendor.ResourceExhaustedError,),
            _CREATE,
            "rate.?limit|too many requests",
        ),
        Row(_exhausted, (vendor.ResourceExhaustedError,), _CREATE),
        Row(_expired, (vendor.SandboxTimeoutError,)),
        Row(_gone, (vendor.SandboxTerminatedError,)),
        Row(_no_capacity, (vendor.TimeoutError,), _CREATE),
        Row(_bad_request, (vendor.InvalidError, vendor.AlreadyExistsError), _CREATE),
        Row(_bad_request, (vendor.NotFoundError, vendor.RemoteError), _CREATE),
        Row(_gone, (vendor.NotFoundError, vendor.ConflictError), _USE),
        Row(
            _unavailable,
            (
                vendor.ServiceError,
                vendor.InternalError,
                vendor.ConnectionError,
                vendor.ClientClosed,
                vendor.TimeoutError,
                vendor.InternalFailure,
                StreamTerminatedError,
                grpclib.GRPCError,
                OSError,
            ),
        ),
        Row(_other, (Exception,)),
    ),
)

"""Language models: the protocols every client implements.

A :class:`ChatModel` opens one :class:`ModelSession` per rollout. Tool schemas enter once, at the
session. ``messages`` is the growing conversation and must extend the previous call's list;
anything else is a counted fork, never an error.
"""

from __future__ import annotations

from hermes_rl.model.protocol import ChatModel, ModelSession, Renderer, Sampling

__all__ = ["ChatModel", "ModelSession", "Renderer", "Sampling"]

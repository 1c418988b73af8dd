"""Headway: concurrency and batching for LLM serving.

`from headway import Engine, SamplingParams` is the Python API; `headway --help` the command line.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headway.core.errors import (
        ConfigError,
        ContextLengthExceeded,
        EngineFailed,
        Expired,
        HeadwayError,
        InvalidRequest,
        ModelError,
        QueueFull,
        Refused,
    )
    from headway.core.request import SamplingParams
    from headway.engine import Delta, Engine, EngineConfig, Output

__all__ = [
    "ConfigError",
    "ContextLengthExceeded",
    "Delta",
    "Engine",
    "EngineConfig",
    "EngineFailed",
    "Expired",
    "HeadwayError",
    "InvalidRequest",
    "ModelError",
    "Output",
    "QueueFull",
    "Refused",
    "SamplingParams",
]

_HOMES = dict.fromkeys(("Delta", "Engine", "EngineConfig", "Output"), "headway.engine")
_HOMES["SamplingParams"] = "headway.core.request"


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    """Import on first use: `headway --help` must not load a runtime."""
    if name not in __all__:
        raise AttributeError(f"module 'headway' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES.get(name, "headway.core.errors")), name)

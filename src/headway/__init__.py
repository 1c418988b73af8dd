"""Headway: concurrency and batching for LLM serving.

`from headway import Engine, SamplingParams` is the Python API; `headway --help` the command line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headway.core.request import SamplingParams
    from headway.engine import Delta, Engine, EngineConfig, Output

__all__ = ["Delta", "Engine", "EngineConfig", "Output", "SamplingParams"]


def __getattr__(name: str) -> Any:
    """Import on first use: `headway --help` must not load a runtime."""
    if name not in __all__:
        raise AttributeError(f"module 'headway' has no attribute {name!r}")
    if name == "SamplingParams":
        from headway.core.request import SamplingParams

        return SamplingParams
    import headway.engine

    return getattr(headway.engine, name)

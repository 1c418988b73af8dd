"""The engine: the core's scheduler with a real clock, an executor in a supervised process, and token streams."""

from headway.engine.config import EngineConfig
from headway.engine.engine import Engine, Output
from headway.engine.stream import Delta, Stream
from headway.metrics.snapshot import Snapshot

__all__ = ["Delta", "Engine", "EngineConfig", "Output", "Snapshot", "Stream"]

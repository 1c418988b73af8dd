"""Sizing: what fits into a device's memory, and how long a step takes on it, from a model's shape and a name.

    shape = shape_from_config(json.load(open("config.json")))
    plan = plan_memory(shape, hardware_named("RTX 4090"), engine_named("vllm"), MemorySettings(max_model_len=8192))
    plan.tokens, plan.sequences(8192)
    fit_roofline(shape, hardware_named("RTX 4090")).step_time

KV bytes are exact. The memory plan names each term; `tests/simulate/sizing/test_printed.py` holds it against what
engines printed. The roofline is an estimate with bounds, for when nothing was measured.
"""

from headway.simulate.sizing.config_json import shape_from_config
from headway.simulate.sizing.engines import DEFAULT_ENGINE, ENGINES, Engine, engine_named
from headway.simulate.sizing.gguf_metadata import shape_from_gguf
from headway.simulate.sizing.hardware import HARDWARE, Hardware, hardware_named
from headway.simulate.sizing.kv import KvCost, kv_cost
from headway.simulate.sizing.kv_dtype import KV_DTYPES, KvDtype, kv_dtype
from headway.simulate.sizing.live import LiveKv, live_kv
from headway.simulate.sizing.memory import MemoryPlan, MemorySettings, Term, plan_memory
from headway.simulate.sizing.roofline import Efficiency, Roofline, RooflineFit, StepRange, fit_roofline, transfer
from headway.simulate.sizing.shape import ModelShape
from headway.simulate.sizing.weights import WeightBytes, weight_bytes

__all__ = [
    "DEFAULT_ENGINE",
    "ENGINES",
    "HARDWARE",
    "KV_DTYPES",
    "Efficiency",
    "Engine",
    "Hardware",
    "KvCost",
    "KvDtype",
    "LiveKv",
    "MemoryPlan",
    "MemorySettings",
    "ModelShape",
    "Roofline",
    "RooflineFit",
    "StepRange",
    "Term",
    "WeightBytes",
    "engine_named",
    "fit_roofline",
    "hardware_named",
    "kv_cost",
    "kv_dtype",
    "live_kv",
    "plan_memory",
    "shape_from_config",
    "shape_from_gguf",
    "transfer",
    "weight_bytes",
]

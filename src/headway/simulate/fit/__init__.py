"""A step-time model, and the server around it, from what was measured: `fit` gives a `StepFit`, `serve` uses it."""

from headway.simulate.fit.bench import read_bench
from headway.simulate.fit.combine import covers, fit
from headway.simulate.fit.model import Coefficient, Residual, Server, StepFit, Valid, fit_bytes, load_fit
from headway.simulate.fit.prior import Belief
from headway.simulate.fit.records import Observed, Series, read_folder, read_requests, read_series
from headway.simulate.fit.served import Demand, Served, serve
from headway.simulate.fit.step_log import StepLog, read_step_log

__all__ = [
    "Belief",
    "Coefficient",
    "Demand",
    "Observed",
    "Residual",
    "Series",
    "Served",
    "Server",
    "StepFit",
    "StepLog",
    "Valid",
    "covers",
    "fit",
    "fit_bytes",
    "load_fit",
    "read_bench",
    "read_folder",
    "read_requests",
    "read_series",
    "read_step_log",
    "serve",
]

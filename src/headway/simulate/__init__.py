"""The virtual drive: the core that serves, on integer virtual time, with steps that take what a formula says.

`simulate(requests, settings)` drives one `Front` and one `Scheduler` per worker, the very ones of `headway serve`, and
returns a `Run`: when each request passed each station, and what every worker did. Nothing here decides anything.
"""

from headway.simulate.drive import Stuck, simulate
from headway.simulate.run import Record, Run, StepRecord
from headway.simulate.settings import VirtualRequest, VirtualSettings, VirtualWorker

__all__ = [
    "Record",
    "Run",
    "StepRecord",
    "Stuck",
    "VirtualRequest",
    "VirtualSettings",
    "VirtualWorker",
    "simulate",
]

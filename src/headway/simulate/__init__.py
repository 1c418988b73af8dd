"""The virtual drive: the core that serves, on integer virtual time, with steps that take what a formula says.

`simulate(requests, settings)` drives one `Front` and one `Scheduler` per worker, the very ones of `headway serve`, and
returns a `Run`: when each request passed each station, and what every worker did. Workers pull from the front, as the
engine of `headway serve MODEL` does; or, with `VirtualSettings.fleet`, the front sends to them, as a gateway does.
Nothing here decides anything.
"""

from headway.simulate.drive import Stuck, simulate
from headway.simulate.predict import Prediction, predict
from headway.simulate.run import Record, Run, Sample, Shift, StepRecord
from headway.simulate.settings import VirtualFleet, VirtualRequest, VirtualSettings, VirtualWorker

__all__ = [
    "Prediction",
    "Record",
    "Run",
    "Sample",
    "Shift",
    "StepRecord",
    "Stuck",
    "VirtualFleet",
    "VirtualRequest",
    "VirtualSettings",
    "VirtualWorker",
    "predict",
    "simulate",
]

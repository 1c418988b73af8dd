"""Capacity and cost: how many replicas of what, with which limits, keep a promise for some traffic (`plan`)."""

from headway.simulate.plan.candidate import Candidate, Limits, Room, StepCosts, measured, rated
from headway.simulate.plan.curve import CurvePoint, Knee, curve_of, knee_of
from headway.simulate.plan.plan import plan
from headway.simulate.plan.promise import Promise
from headway.simulate.plan.result import Asked, Cost, Estimate, Option, Plan, plan_bytes
from headway.simulate.plan.traffic import Recorded, Steady, Traffic

__all__ = [
    "Asked",
    "Candidate",
    "Cost",
    "CurvePoint",
    "Estimate",
    "Knee",
    "Limits",
    "Option",
    "Plan",
    "Promise",
    "Recorded",
    "Room",
    "Steady",
    "StepCosts",
    "Traffic",
    "curve_of",
    "knee_of",
    "measured",
    "plan",
    "plan_bytes",
    "rated",
]

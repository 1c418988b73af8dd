"""Calls that a gateway did not let in, counted once; those that were let in tell their own end (`trail`)."""

from __future__ import annotations

from aiohttp import web

from headway.gateway.background.work import CHAT, COMPLETIONS
from headway.gateway.fleet.headers import CALLER, TRAIL
from headway.gateway.fleet.service import FLEET
from headway.gateway.observe import REFUSAL
from headway.gateway.outcomes import outcome_of


def count_fleet_call(request: web.Request, status: int) -> None:
    """By tenant, where one is known. Of a body that was refused unread nobody knows the model."""
    if status < 400 or request.path not in {CHAT, COMPLETIONS} or TRAIL in request:
        return
    caller = request.get(CALLER)
    labels = {"tenant": caller.tenant} if caller is not None else {}
    request.app[FLEET].figures.refused(outcome_of(status, request.get(REFUSAL)), labels)

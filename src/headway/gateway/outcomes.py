"""How a call ended, counted once: those that were answered where they end, all others here, after their answer."""

from __future__ import annotations

from aiohttp import web

from headway.core.errors import Expired, HeadwayError, Refused
from headway.gateway.background.work import CHAT, COMPLETIONS
from headway.gateway.edge import CLIENT_GONE
from headway.gateway.observe import REFUSAL, TALLY
from headway.gateway.service import SERVICE


def outcome_of(status: int, error: HeadwayError | None) -> str:
    """Of a call that was not answered well, by `metrics.names.OUTCOMES`."""
    if status == CLIENT_GONE:
        return "cancelled"
    if isinstance(error, Expired):
        return "expired"
    if status == 429:
        return "limited"
    if 400 <= status < 500:
        return "invalid"
    return "refused" if isinstance(error, Refused) else "failed"


def count_engine_call(request: web.Request, status: int) -> None:
    """An engine's: those without a tally were not even read."""
    if request.path not in {CHAT, COMPLETIONS}:
        return
    outcome = outcome_of(status, request.get(REFUSAL))
    tally = request.get(TALLY)
    if tally is not None:
        tally.over("failed" if status < 400 else outcome)  # what went well has said so before
    elif status >= 400:
        request.app[SERVICE].metrics.calls.refused(outcome, {})

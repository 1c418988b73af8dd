"""Background requests as their owners see them."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw

from headway.store import Job, JobState

OBJECT = "headway.background"


def address(id: str) -> str:
    return f"/v1/background/{id}"


def shown_job(job: Job, answer: bytes | None = None) -> dict[str, Any]:
    """`answer` is what it ended with; of a listed one it is left out. Times are seconds since the epoch."""
    good = job.state is JobState.COMPLETED
    return {
        "id": job.id,
        "object": OBJECT,
        "status": job.state.value,
        "reason": job.kind,
        "url": address(job.id),
        "endpoint": job.endpoint,
        "model": job.meta.get("model") or None,
        "created_at": int(job.created_at_s),
        "started_at": _seconds(job.started_at_s),
        "ended_at": _seconds(job.finished_at_s),
        "tries": job.tries,
        "status_code": job.http_status,
        "response": _json(answer) if good else None,
        "error": None if good else _error(answer),
    }


def _seconds(at_s: float | None) -> int | None:
    return None if at_s is None else int(at_s)


def _json(body: bytes | None) -> Raw | None:
    return None if body is None else Raw(body)


def _error(body: bytes | None) -> Any:
    """The error of an error body; the whole body where there is none in it."""
    if body is None:
        return None
    try:
        told: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {"message": body[:1000].decode(errors="replace"), "type": "server_error", "param": None, "code": None}
    return told.get("error", told) if isinstance(told, dict) else told

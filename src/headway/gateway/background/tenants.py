"""Tenants' names as the store has them: it takes no empty one, and without keys that is everybody's name."""

from __future__ import annotations

_MARK = "tenant:"


def owner_of(tenant: str) -> str:
    return _MARK + tenant


def tenant_of(owner: str) -> str:
    return owner.removeprefix(_MARK)

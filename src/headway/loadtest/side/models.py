"""What a server's `/models` lists. Pure: JSON in; whatever is not as it should be is left out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Card:
    """A model as its server shows it."""

    id: str
    owner: str = ""  # the kind of server, where it is one that says so
    max_model_len: int | None = None  # tokens of prompt and answer together


def read_models(told: Any) -> tuple[Card, ...]:
    """In the server's order."""
    listed = told.get("data") if isinstance(told, dict) else None
    if not isinstance(listed, list):
        return ()
    return tuple(_card(one) for one in listed if isinstance(one, dict) and isinstance(one.get("id"), str))


def _card(told: dict[str, Any]) -> Card:
    owner, longest = told.get("owned_by"), told.get("max_model_len")
    return Card(
        id=told["id"],
        owner=owner if isinstance(owner, str) else "",
        max_model_len=longest if isinstance(longest, int) and longest > 1 else None,
    )


def card_of(cards: tuple[Card, ...], model: str) -> Card | None:
    return next((card for card in cards if card.id == model), None)

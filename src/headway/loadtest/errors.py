"""What can be wrong before or beside a measurement. What goes wrong with one request is in its record, never here."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headway.loadtest.record import Record


class LoadTestError(Exception):
    """`str()` of it is fit to show: what was wrong, where, and what to do. No key is ever in it."""


class InvalidPlan(LoadTestError):
    """What was asked for makes no sense."""


class Unreachable(LoadTestError):
    """No connection to the server: no such host, nobody listens, no route."""


class Unanswered(Unreachable):
    """A connection, and no answer over it in time."""


class TlsFailed(LoadTestError):
    """Somebody is there, and no trusted encryption with them."""


class Unauthorised(LoadTestError):
    """401 or 403: no key, or not a good one."""


class UnknownModel(LoadTestError):
    """The server does not serve that model; the message names those that it does."""


class Rejected(LoadTestError):
    """The server refuses a plain small request, or answers it with something that is none of OpenAI's."""


class ClientFailed(LoadTestError):
    """The load tester itself could not go on."""


class ResultFailed(ClientFailed):
    """The load was made, and its figures could not be. What was measured is in here, without keys."""

    def __init__(self, message: str, records: list[Record] | None = None) -> None:
        super().__init__(message)
        self.records = records or []

"""What the store refuses or cannot do: a branch of the one error tree."""

from __future__ import annotations

from headway.core.errors import HeadwayError


class StoreError(HeadwayError):
    """Base of everything the store raises on purpose."""


class BadValue(StoreError):
    """A field that can never be stored as given."""

    status = 400
    type = "invalid_request_error"
    code = "invalid_value"


class DuplicateItem(BadValue):
    """Two lines of one batch carry the same `custom_id`."""

    code = "duplicate_custom_id"


class TooLarge(StoreError):
    """A file, or all files of a tenant together, above the limit."""

    status = 413
    type = "invalid_request_error"
    code = "file_too_large"


class NotFound(StoreError):
    """Not here, or another tenant's: the two look alike on purpose."""

    status = 404
    type = "invalid_request_error"
    code = "not_found"


class Conflict(StoreError):
    """Right as such, but not in the state the object is in."""

    status = 409
    type = "invalid_request_error"
    code = "conflict"


class AlreadyExists(Conflict):
    code = "already_exists"


class IllegalMove(Conflict):
    """A move the table of `lifecycle` does not hold."""

    code = "illegal_state"


class LeaseLost(Conflict):
    """The job was cancelled, or given to somebody else: what this owner did is thrown away."""

    code = "lease_lost"


class InUse(Conflict):
    """A file that an unfinished batch reads."""

    code = "in_use"


class InputChanged(Conflict):
    """The lines of a batch differ from those it began with."""

    code = "input_changed"


class DiskFull(StoreError):
    """Nothing of the change was kept; the same call succeeds when there is space."""

    status = 507
    code = "disk_full"


class Locked(StoreError):
    """Another process writes in this directory. `holder` says which, as far as it has said so itself."""

    code = "store_locked"

    def __init__(self, message: str, *, holder: str) -> None:
        super().__init__(message)
        self.holder = holder


class Unwritable(StoreError):
    """The directory cannot be written by this user, or was opened for reading."""

    code = "store_unwritable"


class Corrupt(StoreError):
    """What lies on the disk is not what was written there."""

    code = "store_corrupt"


class WrongVersion(StoreError):
    """Written by another version of Headway than this one can use."""

    code = "store_version"


class StoreFailed(StoreError):
    """Anything else the disk or SQLite said; the message holds its words."""

    code = "store_failed"

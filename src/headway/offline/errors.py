"""What stops a batch before its end. What is finished by then stays; a message says how to go on."""

from __future__ import annotations

from headway.core.errors import HeadwayError


class BatchError(HeadwayError):
    """A batch cannot be begun, or not be gone on with."""

    status = 400
    type = "batch_error"


class InputUnreadable(BatchError):
    """The input is not there, empty, or no text; or, with --strict, a line of it is wrong."""

    code = "input_unreadable"


class InputChanged(BatchError):
    """The input is another than when the batch began."""

    code = "input_changed"


class OutputBusy(BatchError):
    """Another process writes this output."""

    status = 409
    code = "output_busy"


class OutputFailed(BatchError):
    """The output cannot be written: a full disk, a missing folder, no permission."""

    status = 507
    code = "output_failed"


class NothingWorks(BatchError):
    """No worker will ever take an item again."""

    status = 503
    code = "nothing_works"

"""The one error tree.

Every refusal reaches the one who asked, so every error carries what an HTTP edge needs to answer in OpenAI's
shape: a status hint, a `type`, a `code`, the `param` at fault, and, where waiting helps, `retry_after_s`.
A message says what was wrong, what the limit is, and what to do about it.
"""

from __future__ import annotations

# Nobody is told to come back later than this: what is known of the load does not reach further.
MAX_RETRY_AFTER_S = 60.0


class HeadwayError(Exception):
    """Base of everything Headway raises on purpose. `status` is a hint for an HTTP edge, nothing more."""

    status: int = 500
    type: str = "server_error"
    code: str | None = None

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        if code is not None:
            self.code = code


class InvalidRequest(HeadwayError):
    """The request can never succeed as written."""

    status = 400
    type = "invalid_request_error"


class ContextLengthExceeded(InvalidRequest):
    """Prompt, or prompt and output together, do not fit the model or the KV cache: waiting cannot help."""

    code = "context_length_exceeded"


class NotFound(HeadwayError):
    """A model, route or object that does not exist here."""

    status = 404
    type = "invalid_request_error"
    code = "not_found"


class Refused(HeadwayError):
    """Turned away for now; the same request may succeed later. `retry_after_s` says when to try."""

    status = 503
    type = "overloaded_error"

    def __init__(
        self, message: str, *, retry_after_s: float, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message, param=param, code=code)
        self.retry_after_s = retry_after_s


class QueueFull(Refused):
    """The waiting room is full, by count or by tokens."""

    status = 429
    type = "rate_limit_error"
    code = "queue_full"


class QuotaExceeded(Refused):
    """The tenant has used up what it may have at a time or in a minute; the code says of what."""

    status = 429
    type = "rate_limit_error"
    code = "quota_exceeded"


class QuotaStoreLost(Refused):
    """Limits are shared with other gateways, and the store that keeps what is left of them does not answer."""

    code = "quota_store_lost"


class Shed(Refused):
    """There is too much to do, and this tenant's work is the first to be left out."""

    status = 429
    type = "rate_limit_error"
    code = "shed"


class KvClaimed(Refused):
    """The requests inside could together need more KV than the operator is willing to promise."""

    code = "kv_claimed"


class NoWorker(Refused):
    """No worker that could serve the request is up."""

    code = "no_worker"


class Draining(Refused):
    """The server is stopping or its engine is not ready; no new work is taken."""

    code = "not_ready"


class TtftUnreachable(Refused):
    """Before its first token could come, the request's own limit on TTFT would have passed."""

    code = "ttft_unreachable"


class KvExhausted(Refused):
    """The KV cache filled up under a running sequence, and the operator chose to fail it rather than preempt."""

    code = "kv_exhausted"


class Expired(Refused):
    """The request waited longer than its limit and was turned away before it cost anything."""

    code = "queue_timeout"


class EngineFailed(HeadwayError):
    """The engine lost the sequence: a crash, a hang or a broken outcome. Nothing the client did."""

    code = "engine_failed"


class WorkerLost(HeadwayError):
    """The worker failed after it had begun to answer, or every worker that was tried failed. Nothing the client did."""

    status = 502
    code = "worker_lost"


class ModelError(HeadwayError):
    """A model cannot be found, fetched, checked or converted. Raised at start-up, never while serving."""

    type = "model_error"


class ConfigError(HeadwayError):
    """A flag or a configuration key is unknown or out of range."""

    status = 400
    type = "config_error"

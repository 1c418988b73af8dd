"""Limits that several gateways share: from flags to the parts that keep them."""

from __future__ import annotations

import secrets
import socket

from headway.cli.config import ServeConfig
from headway.core.front.front import Front
from headway.core.front.sharing import Loss, Sharing
from headway.engine.assembly import ns
from headway.workers.quota import SharedQuotas
from headway.workers.quota_url import shown_url, with_password


def shared_quotas(config: ServeConfig, front: Front) -> SharedQuotas | None:
    """None where this gateway counts for itself. Raises ConfigError."""
    if config.quota_store is None:
        return None
    from headway.workers.quota_redis import RedisStore

    # Of one life: what a gateway of this name held before it was killed is not this one's.
    gateway = f"{socket.gethostname()}-{secrets.token_hex(4)}"
    sharing = Sharing(
        gateway,
        front.admission.ledger,
        front.tenants.of,
        lease_ns=ns(config.quota_lease),
        loss=Loss(config.quota_loss),
    )
    return SharedQuotas(sharing, RedisStore(with_password(config.quota_store)), shown_url(config.quota_store))

"""Who calls: API keys, kept as hashes in a file (`keys`), and what a call's header says of its tenant (`auth`).

What a tenant may have is decided in `core`: here it only gets its name.
"""

from headway.gateway.tenancy.auth import ANONYMOUS, Door, Identity
from headway.gateway.tenancy.keys import Key, KeyFile, KeyRing

__all__ = ["ANONYMOUS", "Door", "Identity", "Key", "KeyFile", "KeyRing"]

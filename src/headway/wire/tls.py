"""How much an https server is trusted, where somebody says otherwise than the system does."""

from __future__ import annotations

import ssl


def tls_context(ca_file: str | None = None, *, verify: bool = True) -> ssl.SSLContext:
    """For HTTP/1.1. `ca_file`: its authority's certificate. Raises `ValueError` when that cannot be used."""
    try:
        context = ssl.create_default_context(cafile=ca_file or None)
    except (OSError, ssl.SSLError) as error:
        raise ValueError(f"The certificates in {ca_file!r} cannot be used: {error}") from None
    context.set_alpn_protocols(["http/1.1"])
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context

"""What a client says of a new batch."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct


class BatchRequest(Struct, kw_only=True):
    input_file_id: Annotated[
        str, Meta(min_length=1, max_length=128, description="A file that was uploaded with the purpose `batch`.")
    ]
    endpoint: Annotated[str, Meta(description="`/v1/chat/completions` or `/v1/completions`, for all of its lines.")]
    completion_window: Annotated[
        str, Meta(description="When it expires: a whole number of s, m, h or d. Default: 24h.")
    ] = "24h"
    metadata: Annotated[dict[str, str] | None, Meta(description="At most 16 texts, kept with it. Default: none.")] = (
        None
    )

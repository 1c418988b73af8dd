"""`/v1/files`, in OpenAI's shapes: what batches read and write. Bodies go from and to the disk, not to memory."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from aiohttp import BodyPartReader, MultipartReader, web

from headway.core.errors import InvalidRequest
from headway.gateway.background.routes import BACKGROUND, caller, json_answer, listed, paging
from headway.gateway.edge import REQUEST_ID
from headway.gateway.service import EDGE, BodyTooSlow
from headway.gateway.writing import write_in_time
from headway.store import MAX_FILE_BYTES, AsyncIncoming, Store, StoredFile, TooLarge

MAX_LISTED = 10_000
MAX_FIELD_BYTES = 4096
PIECE_BYTES = 256 * 1024
FORM_BYTES = 64 * 1024  # around the file
SHORTEST_S, LONGEST_S = 3600, 30 * 86_400  # of `expires_after`
_FILENAME = re.compile(r"[^A-Za-z0-9 ._()-]")


async def upload(request: web.Request) -> web.Response:
    """POST multipart/form-data: `file`, `purpose` (batch), perhaps `expires_after[…]`, from its creation on."""
    owner, background = caller(request), request.app[BACKGROUND]
    if not request.content_type.startswith("multipart/"):
        raise InvalidRequest("Send the file as multipart/form-data, with `file` and `purpose`.", code="invalid_body")
    length = request.content_length or 0
    if length > MAX_FILE_BYTES + FORM_BYTES:
        raise TooLarge(
            f"The file is larger than {MAX_FILE_BYTES:,} bytes, the limit for one file. Split it.", param="file"
        )
    await background.store.run(lambda store: background.check_space(store, length))
    name = f"file-{secrets.token_hex(12)}"
    async with await background.store.receive(name) as incoming:
        fields, filename = await _received(request, incoming)
        if filename is None:
            raise InvalidRequest(
                "`file` is missing: the form has no file.", param="file", code="missing_required_parameter"
            )
        if fields.get("purpose") != "batch":
            raise InvalidRequest(
                f"purpose must be 'batch', not {fields.get('purpose', '')[:40]!r}: files are for batches here.",
                param="purpose",
                code="invalid_value",
            )
        now_s = background.clock_s()
        expires_s = _expires_after_s(fields)
        received = await incoming.finish()

        def add(store: Store) -> StoredFile:
            background.check_space(store, received.bytes)  # others have come in meanwhile
            return store.files.add(
                received,
                name,
                owner,
                filename=filename,
                purpose="batch",
                now_s=now_s,
                expires_at_s=None if expires_s is None else now_s + expires_s,
            )

        stored = await background.store.run(add)
    return json_answer(stored.as_openai())


async def _received(request: web.Request, incoming: AsyncIncoming) -> tuple[dict[str, str], str | None]:
    """The form's fields, and the name of its file, whose bytes go to `incoming`."""
    fields: dict[str, str] = {}
    filename: str | None = None
    timeout_s = request.app[EDGE].config.body_timeout_s
    try:
        form = await request.multipart()
        while (part := await _in_time(form.next(), timeout_s)) is not None:
            if isinstance(part, MultipartReader) or not part.name:
                raise InvalidRequest("The form has a part without a name.", code="invalid_body")
            if part.name != "file":
                fields[part.name] = (await _small(part, timeout_s)).decode(errors="replace")
                continue
            if filename is not None:
                raise InvalidRequest("The form has two files; send one.", param="file", code="invalid_body")
            filename = (part.filename or "file")[:512].replace("\0", "") or "file"
            async for piece in _pieces(part, timeout_s):
                await incoming.write(piece)
    except (ValueError, AssertionError, web.RequestPayloadError) as error:
        raise InvalidRequest(f"The form cannot be read: {error}.", code="invalid_body") from error
    return fields, filename


async def _pieces(part: BodyPartReader, timeout_s: float) -> AsyncIterator[bytes]:
    while piece := await _in_time(part.read_chunk(PIECE_BYTES), timeout_s):
        yield bytes(piece)


async def _small(part: BodyPartReader, timeout_s: float) -> bytes:
    value = b""
    async for piece in _pieces(part, timeout_s):
        value += piece
        if len(value) > MAX_FIELD_BYTES:
            raise InvalidRequest(f"The field {part.name!r} has more than {MAX_FIELD_BYTES} bytes.", code="invalid_body")
    return value


async def _in_time(reading: Any, timeout_s: float) -> Any:
    """Raises `BodyTooSlow`: a client that stops sending holds nothing for ever."""
    try:
        async with asyncio.timeout(timeout_s):
            return await reading
    except TimeoutError:
        raise BodyTooSlow(f"Nothing of the file arrived for {timeout_s:g} s. Send it again.") from None


def _expires_after_s(fields: dict[str, str]) -> int | None:
    text = fields.get("expires_after[seconds]")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 10 and SHORTEST_S <= int(text) <= LONGEST_S):
        raise InvalidRequest(
            f"expires_after[seconds] must be from {SHORTEST_S} to {LONGEST_S}, not {text[:40]!r}.",
            param="expires_after",
            code="invalid_value",
        )
    return int(text)


async def get_one(request: web.Request) -> web.Response:
    return json_answer((await _file(request)).as_openai())


async def get_list(request: web.Request) -> web.Response:
    owner, page = caller(request), paging(request, most=MAX_LISTED, usual=MAX_LISTED)
    purpose = request.query.get("purpose") or None
    found = await request.app[BACKGROUND].store.run(lambda store: store.files.list(owner, purpose=purpose, **page))
    return listed([stored.as_openai() for stored in found.items], more=found.has_more)


async def delete(request: web.Request) -> web.Response:
    owner, name, background = caller(request), request.match_info["id"], request.app[BACKGROUND]
    await background.store.run(lambda store: store.files.delete(name, owner, background.clock_s()))
    return json_answer({"id": name, "object": "file", "deleted": True})


async def content(request: web.Request) -> web.StreamResponse:
    owner, stored = caller(request), await _file(request)
    response = web.StreamResponse()
    response.content_type = "application/octet-stream"
    response.content_length = stored.bytes
    shown = _FILENAME.sub("_", stored.filename) or "file"
    response.headers["Content-Disposition"] = f'attachment; filename="{shown}"'
    timeout_s = request.app[EDGE].config.write_timeout_s
    async with aclosing(request.app[BACKGROUND].store.read(stored.id, owner)) as pieces:  # type: ignore[type-var]
        first = await anext(pieces, b"")  # what is wrong with it is told while there is a status to tell it by
        await response.prepare(request)
        if first:
            await write_in_time(request, response, first, timeout_s=timeout_s, who=request[REQUEST_ID])
        async for piece in pieces:
            await write_in_time(request, response, piece, timeout_s=timeout_s, who=request[REQUEST_ID])
    await response.write_eof()
    return response


async def _file(request: web.Request) -> StoredFile:
    owner, name = caller(request), request.match_info["id"]
    return await request.app[BACKGROUND].store.run(lambda store: store.files.get(name, owner))


ROUTES: tuple[tuple[str, str, Any], ...] = (
    ("POST", "/v1/files", upload),
    ("GET", "/v1/files", get_list),
    ("GET", "/v1/files/{id}", get_one),
    ("DELETE", "/v1/files/{id}", delete),
    ("GET", "/v1/files/{id}/content", content),
)

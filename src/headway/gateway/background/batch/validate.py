"""Reading a batch's input for the first time: every line a request, every `custom_id` once, one model; or it fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing

from headway.gateway.background.batch.lines import Line, Numbered, WrongLine, parse_line, read_lines
from headway.store import AsyncStore, Batch, BatchError, BatchState, DuplicateItem, IllegalMove, NewItem, NotFound

MAX_WRONG = 100  # lines that are told of


async def validate(store: AsyncStore, batch: Batch, clock_s: Callable[[], float]) -> Batch:
    """Moves it to in_progress or failed, unless it is cancelled meanwhile. Repeated after a kill, it adds nothing."""
    wrong: list[BatchError] = []
    model: str | None = None
    seen = 0
    try:
        async with aclosing(read_lines(store, batch.input_file_id, batch.tenant)) as pieces:  # type: ignore[type-var]
            async for piece in pieces:
                lines, errors = await asyncio.to_thread(_parsed, piece, batch.endpoint)
                seen += len(piece)
                if lines and model is None:
                    model = lines[0].model
                errors += [_other_model(line, model or "") for line in lines if line.model != model]
                wrong += sorted(errors, key=lambda error: error.line or 0)
                if len(wrong) >= MAX_WRONG:
                    break
                if not wrong:
                    items = [NewItem(line.number, line.custom_id, line.body_hash) for line in lines]
                    await store.run(lambda rows: rows.items.add(batch.id, items))  # noqa: B023 # awaited here
    except DuplicateItem as error:
        line = int(error.param.removeprefix("line ")) if error.param else None
        wrong.append(BatchError(code=error.code or "duplicate_custom_id", message=error.message, line=line))
    except NotFound as error:
        wrong.append(BatchError(code="input_file_not_found", message=error.message, param="input_file_id"))
    if not seen and not wrong:
        wrong.append(BatchError(code="empty_file", message="The input file holds no request.", param="input_file_id"))
    to = BatchState.FAILED if wrong else BatchState.IN_PROGRESS
    try:
        return await store.run(
            lambda rows: rows.batches.move(batch.id, to, clock_s(), errors=wrong[:MAX_WRONG], model=model or None)
        )
    except IllegalMove:  # it was cancelled a moment ago
        return await store.run(lambda rows: rows.batches.find(batch.id))


def _parsed(piece: Sequence[Numbered], endpoint: str) -> tuple[list[Line], list[BatchError]]:
    lines, errors = [], []
    for number, text in piece:
        try:
            lines.append(parse_line(number, text, endpoint))
        except WrongLine as wrong:
            errors.append(wrong.error)
    return lines, errors


def _other_model(line: Line, model: str) -> BatchError:
    return BatchError(
        code="mismatched_model",
        message=f"The line asks for the model {line.model[:80]!r}, the first for {model[:80]!r}: a batch has one.",
        line=line.number,
        param="body.model",
    )

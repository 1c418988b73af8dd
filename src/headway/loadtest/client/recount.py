"""`Recount`: output counted again by the client's own tokenizer, in a thread, after the answer has ended."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

from headway.loadtest.client.reading import Reading
from headway.loadtest.record import CountedBy, Record

CountTokens = Callable[[str], int]


class Recount:
    """Fills `recounted_tokens`, and the tokens themselves where the server told none. `close` waits for the rest."""

    def __init__(self, count_tokens: CountTokens) -> None:
        self._count_tokens = count_tokens
        self._queue: SimpleQueue[tuple[Record, Reading | None, str] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="headway-recount", daemon=True)
        self._thread.start()
        self.failure = ""  # why it stopped counting

    def put(self, record: Record, reading: Reading | None, text: str) -> None:
        self._queue.put((record, reading, text))

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            record, reading, text = work
            if self.failure:
                continue
            try:
                tokens = self._count_tokens(text)
            except Exception as error:
                self.failure = f"the tokenizer failed on an output of {len(text)} characters: {error}"
                continue
            record.recounted_tokens = tokens
            if reading is not None and record.counted is CountedBy.CHUNKS:
                reading.share_out(tokens, CountedBy.TOKENIZER)
            elif reading is None and record.output_tokens < 0:
                record.output_tokens, record.counted = tokens, CountedBy.TOKENIZER

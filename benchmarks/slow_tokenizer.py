"""`python -m benchmarks.slow_tokenizer SECONDS serve …`: headway with a tokenizer that takes so long for each call."""

from __future__ import annotations

import sys
import time
from typing import Any

from headway.__main__ import main
from headway.gateway.prepare import Preparer

if __name__ == "__main__":
    takes_s = float(sys.argv.pop(1))
    quick = Preparer.completion

    def slow(self: Preparer, body: bytes) -> Any:
        time.sleep(takes_s)
        return quick(self, body)

    Preparer.completion = slow  # type: ignore[method-assign]
    main()

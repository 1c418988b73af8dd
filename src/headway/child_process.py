"""How this package starts Python of its own: the converter's child and the executor's.

Both must run this very code, however the parent found it, and nothing that happens to lie in the folder they are
started from.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

_PACKAGE_ROOT = str(Path(__file__).resolve().parents[1])


def command(module: str, *arguments: str) -> list[str]:
    """What runs `main()` of `module`, which finds `arguments` in `sys.argv[1:]`. Give it `environment()`.

    It is imported and not run with `-m`, so that what it pickles is of `module` and not of `__main__`. `-P` keeps the
    current folder out of `sys.path`.
    """
    return [sys.executable, "-P", "-c", f"from {module} import main; main()", *arguments]


def environment() -> dict[str, str]:
    """Ours, with this package importable."""
    inherited = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([_PACKAGE_ROOT, inherited] if inherited else [_PACKAGE_ROOT])}

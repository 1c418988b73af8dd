"""`python -m headway` and the `headway` script."""

from __future__ import annotations

import sys


def main() -> None:
    try:
        from headway.cli import run

        run()
    except KeyboardInterrupt:  # while importing: `run` has its own answer
        sys.exit(130)


if __name__ == "__main__":
    main()

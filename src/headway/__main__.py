"""`python -m headway` and the `headway` script."""

from __future__ import annotations


def main() -> None:
    from headway.cli import run

    run()


if __name__ == "__main__":
    main()

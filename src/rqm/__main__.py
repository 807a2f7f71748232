"""The ``rqm`` command, also as ``python -m rqm``: it may be stopped while it is still being loaded."""

import sys


def main() -> None:
    """Load the command line and run it."""
    try:
        from rqm.cli import main as run  # noqa: PLC0415 (takes a moment)

        run()
    except KeyboardInterrupt:
        sys.stderr.write("rqm: stopped by the user\n")
        sys.exit(130)


if __name__ == "__main__":
    main()

"""The ``rqm`` command, also as ``python -m rqm``: it may be stopped while it is still being loaded."""

import _signal as signal  # type: ignore[import-not-found]  # all of signal takes a moment to load
import os
import sys

STOPPED = 130
"""The exit code of a command that its user has stopped."""
SAID = "rqm: stopped by the user\n"
CURSOR = "\x1b[?25h"
"""Shows the cursor again, which a line about a wait may have hidden."""


def main() -> None:
    """Load the command line and run it."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else whoever started it wants it to go on
        signal.signal(signal.SIGINT, _stop)
    try:
        from rqm.cli import main as run  # noqa: PLC0415 (takes a moment)

        run()
    except KeyboardInterrupt:
        sys.stderr.write(SAID)
        sys.exit(STOPPED)


def _stop(number: int, frame: object) -> None:
    """Stop as ever; but at once while something is being imported: libraries make errors of their own of it."""
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":  # type: ignore[attr-defined]
            os.write(2, (CURSOR * os.isatty(2) + SAID).encode())
            os._exit(STOPPED)
        frame = frame.f_back  # type: ignore[attr-defined]
    signal.default_int_handler(number, None)


if __name__ == "__main__":
    main()

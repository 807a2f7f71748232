"""The `rqm` command, also as `python -m rqm`. Ctrl-C stops it cleanly even while it is being imported."""

import os
import signal
import sys

INTERRUPTED = 130
"""The exit code after Ctrl-C."""
MESSAGE = "rqm: stopped by the user\n"


def main() -> None:
    """Import the command line and run it."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # with nohup, Ctrl-C stays ignored
        signal.signal(signal.SIGINT, _interrupt)
    try:
        from rqm.cli import main as run  # noqa: PLC0415 (slow)

        run()
    except KeyboardInterrupt:
        sys.stderr.write(MESSAGE)
        sys.exit(INTERRUPTED)


def _interrupt(number: int, frame: object) -> None:
    """Raise KeyboardInterrupt; during an import exit at once, because libraries turn it into errors of their own."""
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":  # type: ignore[attr-defined]
            show_cursor = "\x1b[?25h"  # A progress bar may have hidden the cursor.
            os.write(2, (show_cursor * os.isatty(2) + MESSAGE).encode())
            os._exit(INTERRUPTED)
        frame = frame.f_back  # type: ignore[attr-defined]
    signal.default_int_handler(number, None)


if __name__ == "__main__":
    main()

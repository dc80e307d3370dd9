"""Where the script starts: until the commands are there, Ctrl-C ends it at once and without a traceback."""

from __future__ import annotations

import signal


def main() -> None:
    """Run the command line; ends the process with its exit code."""
    inherited = signal.getsignal(signal.SIGINT)
    if inherited is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from penstock.cli.main import main as run

    signal.signal(signal.SIGINT, inherited)
    run()

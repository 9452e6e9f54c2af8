"""The program `fedanchor`."""

import sys

from fedanchor import _native


def main() -> int:
    """Runs the command line of this process; returns its exit status."""
    return _native.program(["fedanchor", *sys.argv[1:]])

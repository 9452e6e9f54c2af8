"""The program `fedanchor`."""

import sys

import fedanchor._libtorch

fedanchor._libtorch.load()

from fedanchor import _native


def main() -> int:
    """Runs the command line of this process; returns its exit status."""
    return _native.program(["fedanchor", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())

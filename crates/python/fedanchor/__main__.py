"""`python -m fedanchor`."""

import sys

from fedanchor._program import main

sys.exit(main())

"""`python -m rljob_runtime.cli` is `rljob`."""

import sys

from rljob_runtime.cli import main

if __name__ == "__main__":
    sys.exit(main())

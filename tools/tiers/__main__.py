"""`python -m tools.tiers [check]`: all tiers, or those that need nothing but Python, with fewer examples."""

import os
import sys

from tools.tiers.run import FOLDER, SUMMARY, run
from tools.tiers.stages import ALL, CHECK, FEW_EXAMPLES

if __name__ == "__main__":
    if unknown := sys.argv[2:] or [each for each in sys.argv[1:] if each != "check"]:
        sys.exit(f"python -m tools.tiers [check]: what is {unknown[0]}?")
    if sys.argv[1:]:
        os.environ[FEW_EXAMPLES] = "1"
        sys.exit(run(CHECK, FOLDER / "check.json"))
    sys.exit(run(ALL, SUMMARY))

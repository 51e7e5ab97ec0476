"""`python -m tools.tiers [check]`: all tiers, or those that need nothing but Python."""

import sys

from tools.tiers.run import FOLDER, SUMMARY, run
from tools.tiers.stages import ALL, CHECK

if __name__ == "__main__":
    if unknown := sys.argv[2:] or [each for each in sys.argv[1:] if each != "check"]:
        sys.exit(f"python -m tools.tiers [check]: what is {unknown[0]}?")
    sys.exit(run(CHECK, FOLDER / "check.json") if sys.argv[1:] else run(ALL, SUMMARY))

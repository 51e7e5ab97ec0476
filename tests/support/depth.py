"""How many examples a property test tries: a third in `make check`, which somebody waits for, all of them in
`make test`."""

import os

from tools.tiers.stages import FEW_EXAMPLES


def examples(whole: int) -> int:
    """How many of `whole` are tried here."""
    return -(-whole // 3) if os.environ.get(FEW_EXAMPLES) else whole

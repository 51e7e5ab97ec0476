"""Forced lengths, for what runs inside a peer: how many tokens each response has, from the file that ours
reads."""

import json
import os
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tests.bench.peers.work import LENGTHS, SAMPLES


@cache
def lengths() -> NDArray[np.int64]:
    """Tokens of each response, (rows, SAMPLES), of the work that PEERS_WORK names."""
    _, *lines = (Path(os.environ["PEERS_WORK"]) / LENGTHS).read_text().splitlines()
    return np.array([json.loads(line)["response_tokens"] for line in lines]).reshape(-1, SAMPLES)


def told(rows: Sequence[int], lengths: NDArray[np.int64]) -> list[int]:
    """Tokens of each of some responses. `rows`: of each one's prompt; the responses to a prompt are numbered
    in their order, from 0. `lengths`: (rows, SAMPLES). Raises IndexError where a prompt has more of them."""
    begun: Counter[int] = Counter()
    found = []
    for row in rows:
        found.append(int(lengths[row, begun[row]]))
        begun[row] += 1
    return found

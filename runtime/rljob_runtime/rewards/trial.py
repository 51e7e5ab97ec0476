"""A reward function tried on a few samples before a job starts.

Guarantees: the function runs in a process of its own, which is gone afterwards, within a time limit; nothing
is said of a function that scores one sample of several, nor of one that takes too long to tell.
"""

import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rljob_runtime.rewards import RewardInput, Score
from rljob_runtime.rewards.load import RewardLoadError
from rljob_runtime.rewards.pool import RewardPool, RewardPoolError

_ERROR = "error: "
_MISTAKES = ("NameError: ", "ImportError: ", "ModuleNotFoundError: ", "AttributeError: 'RewardInput' ")
"""How errors begin that come from the function's text, whatever the response is."""


@dataclass(frozen=True)
class Verdict:
    """Every sample of a trial failed."""

    words: str
    """How the first failed: type, message and place of the error."""
    certain: bool
    """It will fail for every response. Otherwise the failure may be intended: a reward may raise for a
    response that is not in the form it wants, and those of a trial are made up."""


def verdict(scores: Sequence[Score]) -> Verdict | None:
    """What the scores of a trial show; None where some sample was scored, or too little is known."""
    failures = [score.failure for score in scores if score.failure is not None]
    if not failures or len(failures) < len(scores):
        return None
    # A slow first call, such as one that loads a judge model, says nothing of later ones.
    if any(failure.startswith(("timeout", "cancelled")) for failure in failures):
        return None
    words = [failure.removeprefix(_ERROR) for failure in failures]
    return Verdict(words[0], certain=all(each.startswith(_MISTAKES) for each in words))


def try_reward(
    function: str,
    arguments: Mapping[str, Any],
    search_path: Sequence[Path],
    samples: Sequence[RewardInput],
    seconds: float,
) -> Verdict | None:
    """Score the samples, in at most `seconds` with the start of the process; None also where that is too
    short, or no process can be started. `function` is "module:function", to be found in `search_path`."""
    return asyncio.run(_try(function, arguments, search_path, samples, seconds))


async def _try(
    function: str,
    arguments: Mapping[str, Any],
    search_path: Sequence[Path],
    samples: Sequence[RewardInput],
    seconds: float,
) -> Verdict | None:
    with tempfile.TemporaryDirectory(prefix="rljob-") as folder:
        pool = RewardPool(
            function,
            arguments,
            timeout_seconds=seconds,
            search_path=search_path,
            log=Path(folder) / "rewards.log",
            log_failures=False,
        )
        try:
            async with asyncio.timeout(seconds):
                await pool.start()
                return verdict(await pool.score(samples))
        except (TimeoutError, RewardLoadError, RewardPoolError):
            return None
        finally:
            await pool.close()

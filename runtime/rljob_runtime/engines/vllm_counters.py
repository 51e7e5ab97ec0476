"""What vLLM's scheduler counts, summed up between two looks at it; pure.

vLLM sends its `SchedulerStats` with the outputs of each of its steps where it has a logger. Ours does
nothing (`vllm_silent_logger`): the counts are read where the outputs arrive, without vLLM's own loggers,
which cost more than they tell here.
"""

from collections.abc import Mapping
from typing import Any


class SchedulerCounters:
    """Sums of the steps since the last `take`."""

    def __init__(self) -> None:
        self._running = self._waiting = 0
        self._kv_use = 0.0
        self._asked = self._hit = 0

    def observe(self, stats: Any) -> None:
        """The `SchedulerStats` of a step."""
        self._running, self._waiting = stats.num_running_reqs, stats.num_waiting_reqs
        self._kv_use = max(self._kv_use, stats.kv_cache_usage)
        if (cache := stats.prefix_cache_stats) is not None:
            self._asked += cache.queries
            self._hit += cache.hits

    def take(self) -> Mapping[str, float]:
        """running, waiting: requests in the last step. kv_use: the largest share of the KV cache that was in
        use. prefix_asked, prefix_hits: prompt tokens that were looked for in the cache, and found."""
        found = {
            "running": float(self._running),
            "waiting": float(self._waiting),
            "kv_use": round(self._kv_use, 4),
            "prefix_asked": float(self._asked),
            "prefix_hits": float(self._hit),
        }
        self._kv_use, self._asked, self._hit = 0.0, 0, 0
        return found

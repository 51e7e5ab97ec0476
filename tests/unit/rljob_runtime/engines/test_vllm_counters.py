"""What is told of vLLM's scheduler."""

from types import SimpleNamespace

from rljob_runtime.engines.vllm_counters import SchedulerCounters


def stats(running: int, waiting: int, kv_use: float, asked: int, hits: int) -> SimpleNamespace:
    cache = SimpleNamespace(queries=asked, hits=hits)
    return SimpleNamespace(
        num_running_reqs=running, num_waiting_reqs=waiting, kv_cache_usage=kv_use, prefix_cache_stats=cache
    )


def test_steps_are_summed_until_they_are_taken():
    counters = SchedulerCounters()
    for step in (stats(8, 2, 0.9, 100, 40), stats(6, 0, 0.5, 20, 20)):
        counters.observe(step)
    expected = {"running": 6, "waiting": 0, "kv_use": 0.9, "prefix_asked": 120, "prefix_hits": 60}
    assert counters.take() == expected
    counters.observe(SimpleNamespace(**{**vars(stats(1, 0, 0.1, 0, 0)), "prefix_cache_stats": None}))
    assert counters.take() == {"running": 1, "waiting": 0, "kv_use": 0.1, "prefix_asked": 0, "prefix_hits": 0}

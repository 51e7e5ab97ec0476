"""What the report says of what workers used."""

from rljob_runtime.trace.analyse.worker_use import UseSample, WorkerSamples
from rljob_runtime.trace.report.section_use import use_sentence


def worker(name: str, **values: float) -> WorkerSamples:
    return WorkerSamples(name, name.split("-")[0], [UseSample(0.0, 5.0, values)])


def test_sentences_name_caches_and_the_busiest_worker():
    told = use_sentence(
        [
            worker("driver", cpu=0.2),
            worker("fast-0", cpu=1.5, kv_use=0.4, prefix_asked=100, prefix_hits=20, preemptions=0),
            worker("heavy-0", cpu=1.0, kv_use=0.985, prefix_asked=100, prefix_hits=5, preemptions=12),
        ]
    )
    assert told == (
        "12 % of the prompt tokens were found in a prefix cache. Engines dropped the KV cache of a request "
        "12 times for want of room. The fullest KV cache was that of heavy-0, with 98 % in use. "
        "fast-0 used most processors: 1.5 on average."
    )


def test_what_was_not_told_is_not_said():
    assert use_sentence([worker("driver", cpu=0.2)]) == "driver used most processors: 0.2 on average."
    quiet = worker("fast-0", cpu=0.5, preemptions=0)
    assert use_sentence([quiet]).startswith("No request lost its KV cache for want of room. fast-0")

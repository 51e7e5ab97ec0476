"""What is said of starts, and which of them are kept."""

import pytest

from rljob_runtime.site.own_start import StartPart
from rljob_runtime.trace.analyse.worker_starts import StartBook, WorkerStart, ready_sentence
from rljob_runtime.trace.record.event_log import Event
from tests.support.runtime.events import event


def start(worker: str, begin: float, *parts: tuple[str, float]) -> WorkerStart:
    """A start whose parts follow each other; those of the core, which stand behind it, begin with it."""
    found, at, within = [], begin, begin
    for name, seconds in parts:
        inner = any(each.part == "core" for each in found)
        found.append(StartPart(name, within if inner else at, seconds))
        if inner:
            within += seconds
        else:
            at, within = at + seconds, at
    return WorkerStart(worker, worker.split("-")[0], tuple(found))


ENGINE = (
    ("process", 6.0),
    ("imports", 14.0),
    ("core", 61.0),
    ("load", 4.0),
    ("profile", 32.0),
    ("graphs", 20.0),
)
RANK = (("process", 3.0), ("imports", 40.0), ("join", 0.01), ("load", 27.0))
SENTENCES: dict[str, tuple[list[WorkerStart], str]] = {
    "an engine was last": (
        [start("fast-0", 4.0, *ENGINE), start("trainer-0", 4.0, *RANK)],
        ": engine fast-0 was last (81 s: process 6.0, imports 14, core 61, of which load 4.0, profile 32, "
        "graphs 20), trainer 70 s",
    ),
    "a rank was last": (
        [start("heavy-1", 1.0, *ENGINE), start("trainer-0", 4.0, *RANK), start("trainer-1", 20.0, *RANK)],
        ": trainer-1 was last (70 s: process 3.0, imports 40, load 27), engines 81 s",
    ),
    "the last to be ready, and not the slowest": (
        [start("fast-0", 0.0, *ENGINE), start("fast-1", 60.0, ("process", 6.0), ("core", 30.0))],
        ": engine fast-1 was last (36 s: process 6.0, core 30)",
    ),
    "the slowest of the others": (
        [
            start("fast-0", 4.0, *ENGINE), start("trainer-0", 0.0, *RANK),
            start("trainer-1", 0.0, ("load", 71.0)),
        ],
        ": engine fast-0 was last (81 s: process 6.0, imports 14, core 61, of which load 4.0, profile 32, "
        "graphs 20), trainer 71 s",
    ),
    "an engine without a core": (
        [start("fast-0", 0.0, ("process", 1.2), ("imports", 2.0), ("load", 0.3))],
        ": engine fast-0 was last (3.5 s: process 1.2, imports 2.0, load 0.3)",
    ),
    "imports twice": (
        [start("fast-0", 0.0, ("imports", 2.0), ("process", 1.0), ("imports", 3.0))],
        ": engine fast-0 was last (6.0 s: process 1.0, imports 5.0)",
    ),
    "engines of one worker that start at once": (
        [
            WorkerStart(
                "fast-0",
                "fast",
                (
                    StartPart("core", 0.0, 20.0), StartPart("core", 20.0, 30.0),
                    StartPart("core", 20.0, 35.0), StartPart("load", 1.0, 5.0),
                    StartPart("load", 21.0, 6.0), StartPart("load", 22.0, 6.0),
                ),
            )
        ],
        ": engine fast-0 was last (55 s: core 55, of which load 12)",
    ),
    "the driver is nobody's last": ([start("driver", 0.0, ("ray", 300.0))], ""),
    "nothing is known": ([], ""),
}  # fmt: skip


@pytest.mark.parametrize("case", SENTENCES)
def test_the_sentence(case: str) -> None:
    starts, said = SENTENCES[case]
    assert ready_sentence(85.2, starts) == f"ready after 85 s{said}"


def part(
    name: str, begin: float, seconds: float, since: object, worker: str = "fast-0", step: int = 0
) -> Event:
    return event("start", begin, begin + seconds, worker, step, part=name, since=since)


def test_the_newest_start_of_each_worker_is_kept() -> None:
    book = StartBook()
    ready = event("start", 0.0, 9.0, "driver", part="ready", since=0.0, words="ready after 9 s")
    first = [part("process", 1.0, 2.0, 1.0), part("load", 3.0, 4.0, 1.0), ready]
    book.add_step([*first, event("forward", 9.0, 10.0, "trainer-0")])
    assert book.newest == {"fast-0": start("fast-0", 1.0, ("process", 2.0), ("load", 4.0))}
    assert book.ready == "ready after 9 s"
    book.add_step([part("process", 50.0, 3.0, 50.0, step=7), part("load", 30.0, 1.0, 30.0, "fast-1", 7)])
    # Of an earlier start, or no start of ours: neither is taken for a part of the newest.
    book.add_step([part("core", 3.0, 4.0, 1.0), part("core", 60.0, 4.0, None)])
    assert book.newest == {
        "fast-0": start("fast-0", 50.0, ("process", 3.0)),
        "fast-1": start("fast-1", 30.0, ("load", 1.0)),
    }


def test_what_takes_place_beside_other_parts_counts_once() -> None:
    parts = [("imports", 0.0, 14.0), ("boot", 1.0, 16.0), ("core", 14.0, 20.0), ("load", 18.0, 4.0)]
    found = WorkerStart("fast-0", "fast", tuple(StartPart(*each) for each in parts))
    assert found.seconds == 34.0
    assert found.between == 0.0
    gap = WorkerStart("fast-0", "fast", (StartPart("imports", 0.0, 14.0), StartPart("boot", 16.0, 4.0)))
    assert gap.between == 2.0

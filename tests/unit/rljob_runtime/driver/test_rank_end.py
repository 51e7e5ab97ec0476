"""How a rank's process ended, as far as Ray's words and the end of its log tell."""

import pytest

from rljob_runtime.driver.rank_end import complaint, how_it_ended

EXIT = "Worker exit type: SYSTEM_ERROR Worker exit detail: "
KILLED = EXIT + (
    "Worker unexpectedly exits with a connection error code 2. End of file. Some common causes include: (1) "
    "the process was killed by the OOM killer due to high memory usage, (2) ray stop --force was called, or "
    "(3) the worker crashed unexpectedly due to SIGSEGV or another unexpected error."
)
CRASHED = [
    "08:32:52  INFO rank 0: checkpoint of step 14 written",
    "*** SIGSEGV received at time=1796027572 on cpu 1 ***",
    "PC: @     0x7fbfb725a267  (unknown)  kill",
    "    @     0x7fbfb725a050  (unknown)  (unknown)",
    "[2026-11-30 08:32:52,843 E 12216 12216] logging.cc:474:     @     0x7fbfb725a050  (unknown)  (unknown)",
    "Fatal Python error: Segmentation fault",
    "",
    "Stack (most recent call first):",
    '  File "/errors/r.py", line 10 in do',
    "",
    "Extension modules: msgpack._cmsgpack, google._upb._message (total: 12)",
]
RAISED = [
    "08:32:52  ERROR step 3 failed",
    "Traceback (most recent call last):",
    '  File "/x.py", line 1, in <module>',
    "    raise Odd('this')",
    "own.Odd: this",
]


@pytest.mark.parametrize(
    ("words", "log", "told"),
    [
        (KILLED, [], "no exit code, as by SIGKILL, which the kernel sends where memory runs out"),
        (KILLED, CRASHED, "SIGSEGV"),
        # It was another process that crashed: this one has logged since.
        (KILLED, [*CRASHED, "08:33:10  INFO rank 0 goes on from step_14"], "no exit code, as by SIGKILL, "),
        (EXIT + "Worker exits unexpectedly. Worker exits with an exit code 5.", [], "exit code 5"),
        (
            EXIT + "Worker exits unexpectedly. Worker exits with an exit code 1. The process receives a "
            "SIGTERM.",
            [],
            "SIGTERM",
        ),
        ("The actor died because its node has died. Node Id: 269a7", [], "its node is gone"),
        ("The actor died unexpectedly before finishing this task.", [], ""),
    ],
)
def test_how(words: str, log: list[str], told: str) -> None:
    found = how_it_ended(words, log)
    assert found.startswith(told) and bool(found) == bool(told)


@pytest.mark.parametrize(
    ("log", "told"),
    [
        ([], ""),
        (["08:04:28  INFO rank 0: checkpoint of step 14 written"], ""),
        (["Loading weights: 100%|##########| 26/26"], ""),
        (["rank 1 has the model", "Segmentation fault", "  "], "Segmentation fault"),
        (
            ["08:04:28  WARNING rank 0: no room for its groups"],
            "08:04:28  WARNING rank 0: no room for its groups",
        ),
        # What was complained of before other work went on.
        (["08:04:28  ERROR it failed", "08:04:29  INFO rank 0 goes on"], ""),
        (CRASHED, "Fatal Python error: Segmentation fault"),
        (RAISED, "own.Odd: this"),
        ([*RAISED, "Loading weights: 100%|##########| 26/26"], "own.Odd: this"),
        (
            ["terminate called after throwing an instance of 'c10::Error'", "  what():  CUDA error"],
            "terminate",
        ),
    ],
)
def test_what_the_log_complains_of_at_its_end(log: list[str], told: str) -> None:
    found = complaint(log)
    assert found.startswith(told) and bool(found) == bool(told)

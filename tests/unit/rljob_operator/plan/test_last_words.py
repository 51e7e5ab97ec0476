"""A container's last words, without the stacks around them."""

import pytest

from rljob_operator.plan.last_words import ONE_ENDED, last_words

PYTHON = """step 12 begins
Traceback (most recent call last):
  File "/app/run.py", line 3, in <module>
    run()
    ~~~^^
  File "/app/run.py", line 2, in run
    raise ValueError("no room")
ValueError: no room
"""
GCS_GONE = """(pid=7) rpc_client.h:154: Failed to connect to GCS within 60 seconds. GCS may have been killed.
*** StackTrace Information ***
/venv/ray/_raylet.so(+0x16ea3da) [0x7f0e1bcea3da] ray::operator<<()
/venv/ray/_raylet.so(_ZN3ray6RayLogD1Ev+0x479) [0x7f0e1bcecfc9] ray::RayLog::~RayLog()
/lib/libc.so.6(clone+0x40) [0x7f0e1d3c0a04] __clone
"""
LISTED = """Some Ray subprocesses exited unexpectedly:
  \x1b[1mgcs_server\x1b[22m [exit code=-9]

Remaining processes will be killed.
"""
SIGNALLED = """- RegisterNode request count: 3

----- END gcs_server.out tail (exit code(s)=-9 (signal 9)) -----
Remaining processes will be killed.
"""
SEVERAL = """----- END raylet.out tail (exit code(s)=-11 (signal 11), 1) -----
"""
AFTERMATH = """ No such file or directory: '/tmp/ray/session_2026/logs/raylet.out'!
2026-11-25 04:47:42,808\tERROR (agent) process_watcher.py:112 -- Raylet is terminated. Failed to read
Traceback (most recent call last):
  File "/venv/ray/_private/process_watcher.py", line 84, in report_raylet_error_logs
    with open(log_path, "r", encoding="utf-8") as f:
FileNotFoundError: [Errno 2] No such file or directory: '/tmp/ray/session_2026/logs/raylet.out'
2026-11-25 04:47:42,959\tWARNING (dashboard) module.py:83 -- Parent process 19735 died. Exiting...
2026-11-25 04:47:43,287\tWARNING (dashboard) module.py:83 -- Parent process 19735 died. Exiting...
"""
QUOTED = """[2026-11-24 00:01:02,003 I 21 21] (gcs_server) gcs_server.cc:481: GcsNodeManager:
- RegisterNode request count: 3

----- END gcs_server.out tail (exit code(s)=-9) -----

Remaining processes will be killed.
"""
SAID = {
    # what the container said: what is told
    "nothing": ("", ""),
    "a sentence": ("spec.training.data: no rows\n", "spec.training.data: no rows"),
    "a stack of Python": (PYTHON, "step 12 begins ValueError: no room"),
    "the begin of a stack alone": (
        "Traceback (most recent call last):\n",
        "Traceback (most recent call last):",
    ),
    "lines of a table": ("a\n  b\n  c\n", "a b c"),
    "a stack of C++": (
        GCS_GONE,
        "(pid=7) rpc_client.h:154: Failed to connect to GCS within 60 seconds. GCS may have been killed.",
    ),
    "a process of Ray's that was killed": (LISTED, "Ray's gcs_server was killed by signal 9"),
    "the end of its log": (QUOTED, "Ray's gcs_server was killed by signal 9"),
    "the same in Ray 2.60": (SIGNALLED, "Ray's gcs_server was killed by signal 9"),
    "what others say after it": (LISTED + AFTERMATH, "Ray's gcs_server was killed by signal 9"),
    "nothing but what others say after it": (AFTERMATH, ONE_ENDED),
    "something before it": ("[GCS] out of ids\n" + AFTERMATH, f"[GCS] out of ids {ONE_ENDED}"),
    "a process of Ray's that ended": (LISTED.replace("-9", "1"), "Ray's gcs_server ended with exit code 1"),
    "numbers that are none": (
        SEVERAL.replace(", 1)", f", {'9' * 5000})"),
        "Ray's raylet was killed by signal 11",
    ),
    "one that was started several times": (
        SEVERAL,
        "Ray's raylet was killed by signal 11 and ended with exit code 1",
    ),
}


@pytest.mark.parametrize(("said", "told"), SAID.values(), ids=SAID)
def test_last_words(said, told):
    assert last_words(said) == told

"""Frames that come and go cost no new memory."""

import platform
import subprocess
import sys

import pytest

CHURN = """
import resource
from rljob_runtime.net.memory import reuse_freed_memory

def faults_of_churn():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        frames = [b"x" * 2**20 for _ in range(8)]
        del frames
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

before = faults_of_churn()
reuse_freed_memory()
faults_of_churn()
print(before, faults_of_churn())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is known to return such memory")
def test_frames_are_not_mapped_anew_each_time():
    """In a process of its own: the thresholds hold for all of it, and only rise. No variables: they may set
    the thresholds."""
    command = [sys.executable, "-c", CHURN]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, env={})
    before, after = map(int, done.stdout.split())
    assert before > 10_000, "the memory of 20 x 8 frames would be mapped page by page"
    assert after < 1_000

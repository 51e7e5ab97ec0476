"""The end of processes that a job cannot do without, by processes that stand for Ray's."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterator

import psutil
import pytest

from rljob_runtime.site.ray_end import RayEnded, check_ray, ray_ends, wait_for_end
from tests.support.runtime.descriptors import many_open


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def test_whoever_waits_learns_of_an_end_and_what_it_was(child: subprocess.Popen[bytes]) -> None:
    async def run() -> None:
        waiting = asyncio.create_task(ray_ends([psutil.Process(child.pid)]))
        await asyncio.sleep(0)
        assert not waiting.done()
        child.kill()
        async with asyncio.timeout(20):
            await waiting

    with pytest.raises(RayEnded, match="was ended by SIGKILL, as the kernel does"):
        asyncio.run(run())


@pytest.mark.parametrize("reaped", [False, True])
def test_one_that_has_ended_is_told_before_anything_is_asked(
    child: subprocess.Popen[bytes], reaped: bool
) -> None:
    process = psutil.Process(child.pid)
    check_ray([process])
    child.send_signal(signal.SIGTERM)
    if reaped:
        child.wait(20)
    else:
        while process.status() != psutil.STATUS_ZOMBIE:
            pass
    with pytest.raises(RayEnded, match="has ended" if reaped else "was ended by SIGTERM"):
        check_ray([process])


@pytest.mark.parametrize(
    ("ended", "reaped", "told"),
    [(False, False, None), (True, False, "was ended by SIGTERM"), (True, True, "has ended")],
)
def test_a_thread_that_waits_learns_of_an_end_or_is_told_to_wait_no_more(
    child: subprocess.Popen[bytes], ended: bool, reaped: bool, told: str | None
) -> None:
    process = psutil.Process(child.pid)
    stop, stopper = os.pipe()
    if ended:
        child.terminate()
        if reaped:
            child.wait(20)
    else:
        os.close(stopper)
    found = wait_for_end([process], stop)
    assert (found is None) is (told is None)
    assert told is None or told in str(found)
    for descriptor in (stop, *([stopper] if ended else [])):
        os.close(descriptor)


@pytest.mark.parametrize("ended", [False, True])
def test_a_thread_of_a_process_with_many_open_files_can_wait_too(
    child: subprocess.Popen[bytes], ended: bool
) -> None:
    with many_open():
        stop, stopper = os.pipe()
        if ended:
            child.terminate()
        else:
            os.close(stopper)
        found = wait_for_end([psutil.Process(child.pid)], stop)
        for descriptor in (stop, *([stopper] if ended else [])):
            os.close(descriptor)
    assert (found is None) is not ended

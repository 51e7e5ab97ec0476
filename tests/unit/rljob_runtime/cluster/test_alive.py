"""The file by which a driver's container is known to be alive."""

import asyncio
import os
from pathlib import Path

from rljob_runtime.cluster.alive import BEAT_SECONDS, show_alive
from rljob_runtime.simulate.virtual_loop import run_virtual


def test_it_is_touched_for_as_long_as_the_loop_turns_and_then_is_gone(tmp_path: Path) -> None:
    file = tmp_path / "alive"

    async def run() -> None:
        showing = asyncio.create_task(show_alive(file))
        await asyncio.sleep(1)
        for _ in range(3):
            os.utime(file, (0, 0))
            await asyncio.sleep(BEAT_SECONDS)
            assert file.stat().st_mtime > 0
        showing.cancel()
        await asyncio.wait([showing])

    run_virtual(run())
    assert not file.exists()


def test_a_folder_that_cannot_be_written_ends_no_job(tmp_path: Path) -> None:
    async def run() -> bool:
        showing = asyncio.create_task(show_alive(tmp_path / "missing" / "alive"))
        await asyncio.sleep(100)
        goes_on = not showing.done()
        showing.cancel()
        await asyncio.wait([showing])
        return goes_on

    assert run_virtual(run())

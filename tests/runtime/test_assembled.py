"""What runs while a job's parts are there, without an engine or a rank."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rljob_api import RLJob
from rljob_runtime.change_signal import ChangeSignal
from rljob_runtime.data.prompts import PromptSource
from rljob_runtime.data.tokenizer import build_tokenizer
from rljob_runtime.driver.assemble import assembled
from rljob_runtime.driver.job_inputs import JobInputs
from rljob_runtime.driver.job_settings import job_settings
from rljob_runtime.driver.stop import StopRequest
from rljob_runtime.net.keys import Keyring
from rljob_runtime.run_folder import RunOptions
from rljob_runtime.short_files import DROPPED, LIMIT_BYTES
from rljob_runtime.site.desired import DesiredState
from rljob_runtime.site.nodes import NodeTable, read_nodes
from rljob_runtime.site.process_log import log_file
from rljob_runtime.site.site import Site
from rljob_runtime.site.status_draft import StatusDraft
from tests.support import jobs

pytestmark = pytest.mark.usefixtures("cluster")

SECONDS = 60.0


def inputs_in(folder: Path) -> JobInputs:
    """A job of a torch engine; its run is in `folder`."""
    job = RLJob.model_validate(jobs.job({"training.rollout.engine": {"torch": {}}}))
    training = job.spec.training
    tokenizer = build_tokenizer(training.tokenizer, folder, None)
    prompts = PromptSource(training.data, tokenizer, training.seed, folder)
    options = RunOptions(folder, folder, resume=False, live=False)
    return JobInputs(job, options, job_settings(job, prompts.rows), tokenizer, prompts)


async def site_without_workers(job: RLJob) -> Site:
    """This machine, whose Ray has no resource for an engine or a rank: none is started."""
    changes, desired = ChangeSignal(), DesiredState.of(job)

    async def no_pod(node_id: str) -> str:
        return ""

    table = NodeTable(read_nodes, no_pod, ("CPU",), changes)
    await table.read_once()
    home = table.nodes[0]
    return Site(
        True, table, home.id, home.address, lambda: desired, StatusDraft(attempt=1), changes, Keyring()
    )


def comes(condition: Callable[[], bool]) -> bool:
    """Whether it holds in time."""
    until = time.monotonic() + SECONDS
    while not (found := condition()) and time.monotonic() < until:
        time.sleep(0.05)
    return found


async def test_the_logs_of_engines_and_ranks_are_kept_short(tmp_path: Path) -> None:
    inputs = inputs_in(tmp_path)
    site = await site_without_workers(inputs.job)
    logs = [log_file(tmp_path, worker) for worker in ("fast-0", "trainer-0")]

    def write() -> None:
        for log in logs:
            log.parent.mkdir(exist_ok=True)
            with log.open("wb") as file:
                file.truncate(2 * LIMIT_BYTES + 1)  # takes no room on the disk

    def short() -> bool:
        return all(log.stat().st_size <= LIMIT_BYTES + len(DROPPED) for log in logs)

    async with assembled(inputs, site, StopRequest(site.changes), lambda line: None):
        write()
        assert await asyncio.to_thread(comes, short)
        # Of what is written last of all, too.
        write()
    assert short()

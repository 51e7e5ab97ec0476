"""The driver of whichever release this is started with, without the training: a program.

It reads lines of JSON, each the environment of a driver's container; reads and parses the RLJob that is named
there, reports step 3 of it, and writes a line: what it parsed. It imports nothing of the tests, and of the
runtime only what the last release has as well.
"""

import asyncio
import json
import logging
import random
import sys

from rljob_client.credentials import find_credentials
from rljob_runtime.cluster.api import ApiClient
from rljob_runtime.cluster.drive import parse
from rljob_runtime.cluster.own_job import read_job
from rljob_runtime.cluster.report import Reporter
from rljob_runtime.cluster.settings import read_settings
from rljob_runtime.site.desired import desired_state_of
from rljob_runtime.site.status_draft import StatusDraft
from rljob_runtime.view.progress import Header, Progress

SECONDS = 60.0
PROGRESS = Progress(
    Header("test", "cpu", {}, "torch", "tiny", 1.0), step=3, total_steps=4, reward=0.5, version=3,
    staleness_mean=0.4, staleness_max=1, masked_share=0.1, busy={"fast": 0.9, "trainer": 0.5},
)  # fmt: skip


async def report(environment: dict[str, str]) -> dict[str, object]:
    settings = read_settings(environment)
    async with ApiClient(find_credentials(settings.kubeconfig)) as client:
        found = await read_job(client, settings.identity, SECONDS, random.Random(0))
        job, desired = parse(found), desired_state_of(found)
        draft = StatusDraft(settings.attempt)
        reporter = Reporter(
            client, settings.identity, found["metadata"]["uid"], draft, lambda: desired, lambda: None,
            random.Random(0), asyncio.get_running_loop().time,
        )  # fmt: skip
        writing = asyncio.create_task(reporter.run())
        draft.acted_on(found["metadata"]["generation"])
        draft.progress(PROGRESS)
        written = await reporter.flush(SECONDS)
        writing.cancel()
    return {"written": written, "steps": job.spec.training.schedule.total_steps}


def main() -> None:
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    for line in sys.stdin:
        print(json.dumps(asyncio.run(report(json.loads(line)))), flush=True)


if __name__ == "__main__":
    main()

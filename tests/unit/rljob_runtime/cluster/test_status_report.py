"""What the driver says of itself: written when it must be, and no more often."""

import asyncio
import itertools
import random
from dataclasses import replace
from typing import Any

import pytest

from rljob_api.status import TrainingStatus
from rljob_client.errors import ApiError, Conflict, Forbidden, Invalid, ServerError, Unreachable
from rljob_runtime.cluster.api import ApiClient
from rljob_runtime.cluster.own_job import Identity
from rljob_runtime.cluster.report import PROGRESS_SECONDS, RELOOK_SECONDS, Reporter
from rljob_runtime.simulate.virtual_loop import run_virtual
from rljob_runtime.site.desired import DesiredState
from rljob_runtime.site.status_draft import REPORT_SECONDS, StatusDraft
from rljob_runtime.view.progress import Header, Progress
from tests.support.runtime.api_server import reply, serving

PROGRESS = Progress(
    Header("math", "cpu", {}, "torch", "tiny", 1.0), step=3, total_steps=10, reward=0.5, version=2,
    staleness_mean=0.4, staleness_max=1, queue_depth=8, tokens_per_second=123.456,
)  # fmt: skip


class Client:
    """Remembers what is applied, and when; fails as often as it is told."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.written: list[tuple[float, dict[str, Any]]] = []
        self.expected: list[str | None] = []
        """The resourceVersions that writes insisted on."""
        self.seen = DesiredState(1, 1, 1, 0, version="1")
        """The RLJob as the driver last saw it."""
        self.stored = "1"
        """Its resourceVersion in the server."""
        self.took_back_at: list[float] = []

    @property
    def news(self) -> list[tuple[float, dict[str, Any]]]:
        """What is applied without signs of life."""
        said = [(time, {**training, "time": None}) for time, training in self.written]
        return [entry for n, entry in enumerate(said) if n == 0 or entry[1] != said[n - 1][1]]

    def took_back(self) -> None:
        self.took_back_at.append(asyncio.get_running_loop().time())

    async def apply_status(self, body: dict[str, Any]) -> dict[str, Any]:
        assert (body["metadata"]["namespace"], body["metadata"]["name"]) == ("n", "j")
        await asyncio.sleep(0.1)
        if self.failures:
            raise self.failures.pop(0)
        expected = body["metadata"].get("resourceVersion")
        if expected not in (None, self.stored):
            raise Conflict("apply /x", "the object has been modified")
        self.expected.append(expected)
        self.written.append((asyncio.get_running_loop().time(), body["status"]["training"]))
        return {}


def reporting(client: Client, script) -> StatusDraft:
    """Runs `script(draft, reporter)` beside a reporter, in virtual time."""

    async def main() -> StatusDraft:
        draft = StatusDraft(attempt=2)
        loop = asyncio.get_running_loop()
        reporter = Reporter(
            client, Identity("n", "j"), "uid", draft, lambda: client.seen, client.took_back,
            random.Random(0), loop.time,
        )  # fmt: skip
        running = asyncio.create_task(reporter.run())
        await script(draft, reporter)
        running.cancel()
        return draft

    return run_virtual(main())


def test_an_idle_job_writes_signs_of_life_alone() -> None:
    async def script(draft: StatusDraft, reporter: Reporter) -> None:
        for _ in range(100):
            draft.progress(PROGRESS)
            draft.released([])
            await asyncio.sleep(10)

    client = Client()
    reporting(client, script)
    [(_, told)] = client.news
    assert told["step"] == 3 and told["reportSeconds"] == REPORT_SECONDS
    times = [time for time, _ in client.written]
    assert all(later - earlier < REPORT_SECONDS + 1 for earlier, later in itertools.pairwise(times))
    assert 1000 / REPORT_SECONDS - 2 < len(times) < 1000 / REPORT_SECONDS + 2


def test_progress_is_written_every_few_seconds() -> None:
    async def script(draft: StatusDraft, reporter: Reporter) -> None:
        for step in range(100):
            draft.progress(replace(PROGRESS, step=step))
            await asyncio.sleep(0.5)
        assert await reporter.flush(5)

    client = Client()
    reporting(client, script)
    times = [time for time, _ in client.written]
    # The last one is hurried.
    assert all(later - earlier >= PROGRESS_SECONDS for earlier, later in itertools.pairwise(times[:-1]))
    assert len(times) in (10, 11, 12)
    assert client.written[-1][1]["progress"] == "99/10"


def test_an_answer_is_written_at_once() -> None:
    async def script(draft: StatusDraft, reporter: Reporter) -> None:
        await asyncio.sleep(1)
        draft.progress(PROGRESS)
        await asyncio.sleep(1)
        assert len(client.written) == 1
        draft.released(["b", "a"])
        await asyncio.sleep(0.2)
        assert client.written[-1][1]["released"] == ["a", "b"]
        draft.trainer_stopped_for(2)
        await asyncio.sleep(0.2)
        assert client.written[-1][1]["trainerStoppedFor"] == 2
        draft.trainer_stopped_for(None)
        await asyncio.sleep(0.2)
        assert "trainerStoppedFor" not in client.written[-1][1]

    client = Client()
    reporting(client, script)


@pytest.mark.parametrize("error", [Unreachable("apply /x", "away"), Forbidden("apply /x", "no")])
def test_what_could_not_be_written_is_written_later_in_its_newest_state(error: Exception) -> None:
    async def script(draft: StatusDraft, reporter: Reporter) -> None:
        for step in range(10):
            draft.progress(replace(PROGRESS, step=step))
            await asyncio.sleep(1)
        draft.suspended_at(9)
        assert await reporter.flush(60)

    client = Client(*[error] * 6)
    reporting(client, script)
    assert client.failures == []
    assert client.written[-1][1]["suspendedAtStep"] == 9
    assert client.written[-1][1]["step"] == 9


UNKNOWN = (
    "failed to create typed patch object (n/j; rljob.dev/v1alpha1, Kind=RLJob): "
    ".status.training.load: field not declared in schema"
)


@pytest.mark.parametrize(
    "refusal",
    [ServerError("apply /x", UNKNOWN), Invalid("apply /x", UNKNOWN)],
    ids=["as the server's failure", "as a wrong request"],
)
def test_fields_that_the_server_does_not_know_are_left_out_and_an_answer_does_not_wait(
    refusal: ApiError,
) -> None:

    async def script(draft: StatusDraft, reporter: Reporter) -> None:
        draft.progress(replace(PROGRESS, busy={"trainer": 0.5}))
        draft.released(["a"])
        await asyncio.sleep(0.5)
        assert client.written[-1][1]["released"] == ["a"] and "load" not in client.written[-1][1]
        draft.load(replace(PROGRESS, busy={"trainer": 0.9}))
        await asyncio.sleep(60)
        assert await reporter.flush(1)

    client = Client(refusal)
    reporting(client, script)
    assert len(client.news) == 1


def test_fields_come_back_once_the_definition_knows_them(caplog: pytest.LogCaptureFixture) -> None:
    """The definition is brought up to date between the second look at it and the third."""

    async def script(draft: StatusDraft, reporter: Reporter) -> None:
        for minute in range(3 * int(RELOOK_SECONDS / 60) + 2):
            draft.progress(replace(PROGRESS, step=minute, busy={"trainer": 0.5}))
            await asyncio.sleep(60)

    client = Client(Invalid("apply /x", UNKNOWN))
    refused = client.apply_status

    async def apply_status(body: dict[str, Any]) -> dict[str, Any]:
        # Refused at the second look, too.
        now = asyncio.get_running_loop().time()
        if RELOOK_SECONDS <= now < 2 * RELOOK_SECONDS and "load" in body["status"]["training"]:
            raise Invalid("apply /x", UNKNOWN)
        return await refused(body)

    client.apply_status = apply_status  # type: ignore[method-assign]
    reporting(client, script)
    times = [time for time, training in client.written if "load" in training]
    assert len(client.news) == 3 * int(RELOOK_SECONDS / 60) + 2, "no step is left out"
    assert 2 * RELOOK_SECONDS <= times[0] <= 2 * RELOOK_SECONDS + 120
    assert times == [time for time, _ in client.written if time >= times[0]]
    told = [record for record in caplog.records if "older than this runtime" in record.message]
    assert len(told) == 1


def test_a_release_is_taken_back_only_from_an_operator_that_has_not_acted_on_it() -> None:
    async def script(draft: StatusDraft, reporter: Reporter) -> None:
        draft.released(["a", "b"])
        await asyncio.sleep(1)
        assert draft.offered == {"a", "b"}

        # The operator's write comes first, and the driver has not seen it: the write must fail.
        client.stored = "2"
        draft.released([])
        await asyncio.sleep(20)
        assert draft.offered == {"a", "b"} and client.written[-1][1]["released"] == ["a", "b"]

        # It sees that one of them is being removed: that one stays offered, the other is its own again.
        client.seen = replace(client.seen, version="2", doomed=frozenset("a"))
        draft.released(["a"])
        await asyncio.sleep(60)
        assert client.written[-1][1]["released"] == ["a"]
        assert draft.offered == {"a"}
        assert len(client.took_back_at) == 1
        assert client.expected[:2] == [None, "2"] and set(client.expected[2:]) == {None}

    client = Client()
    reporting(client, script)


def test_a_pod_that_is_being_removed_stays_offered_whatever_is_written() -> None:
    async def script(draft: StatusDraft, reporter: Reporter) -> None:
        draft.released(["a"])
        await asyncio.sleep(1)
        client.seen = replace(client.seen, doomed=frozenset("a"))
        draft.released([])
        await asyncio.sleep(1)
        assert draft.offered == {"a"}

    client = Client()
    reporting(client, script)


@pytest.mark.parametrize("reached", [True, False])
def test_what_never_reached_the_server_was_not_offered(reached: bool) -> None:
    """A pod that is wanted again while the server is away may be used at once, unless the server may know."""

    async def script(draft: StatusDraft, reporter: Reporter) -> None:
        await asyncio.sleep(10)
        client.failures = [Unreachable("apply /x", "away", sent=reached)] * 3
        draft.released(["a"])
        await asyncio.sleep(0.2)
        assert draft.offered == ({"a"} if reached else set())
        assert len(client.took_back_at) == (not reached)
        draft.released([])
        await asyncio.sleep(60)
        assert draft.offered == set()

    client = Client()
    reporting(client, script)


def test_flushing_gives_up_in_time() -> None:
    async def script(draft: StatusDraft, reporter: Reporter) -> None:
        draft.suspended_at(1)
        assert not await reporter.flush(20)

    reporting(Client(*[Unreachable("apply /x", "away")] * 1000), script)


def test_the_status_is_one_that_the_api_knows() -> None:
    draft = StatusDraft(attempt=2)
    draft.progress(PROGRESS)
    draft.checkpoint(3, "/runs/step_3")
    draft.acted_on(7)
    training = draft.training
    TrainingStatus.model_validate(training | {"time": "2026-01-01T00:00:00Z"})
    assert training == {
        "attempt": 2, "observedGeneration": 7, "step": 3, "totalSteps": 10, "weightVersion": 2, "reward": 0.5,
        "staleness": {"mean": 0.4, "max": 1}, "tokensPerSecond": 123.5, "queueDepth": 8, "progress": "3/10",
        "checkpoint": {"step": 3, "path": "/runs/step_3"}, "released": [],
        "reportSeconds": REPORT_SECONDS,
    }  # fmt: skip


def test_the_share_of_masked_tokens_stands_in_the_status_where_there_is_one() -> None:
    draft = StatusDraft(attempt=1)
    draft.progress(replace(PROGRESS, masked_share=0.16249))
    staleness = TrainingStatus.model_validate(draft.training | {"time": "2026-01-01T00:00:00Z"}).staleness
    assert staleness is not None and staleness.masked == 0.162


def test_busy_pools_stand_in_the_status_until_nothing_is_trained() -> None:
    busy = replace(PROGRESS, busy={"fast": 0.93, "trainer": 0.88}, running={"fast": 12}, busy_seconds=60.0)
    draft = StatusDraft(attempt=1)
    draft.progress(busy)
    load = TrainingStatus.model_validate(draft.training | {"time": "2026-01-01T00:00:00Z"}).load
    assert load is not None and load.summary == "88/93/-"
    draft.trains_no_more()
    assert "load" not in draft.training


def test_a_job_in_a_long_step_writes_only_what_is_noticeable() -> None:
    async def script(draft: StatusDraft, reporter: Reporter) -> None:
        for percent in range(80, 100):
            draft.load(replace(PROGRESS, busy={"fast": percent / 100, "trainer": 0.5}))
            await asyncio.sleep(60)

    client = Client()
    reporting(client, script)
    summaries = [written["load"]["summary"] for _, written in client.news[1:]]
    assert summaries == ["50/85/-", "50/90/-", "50/95/-"]
    assert client.written[0][1]["load"]["summary"] == "50/80/-"


async def test_what_is_applied_names_the_object_and_its_fields_alone() -> None:
    async with serving(reply()) as server, ApiClient(server.credentials()) as client:
        draft = StatusDraft(attempt=1)
        reporter = Reporter(
            client, Identity("n", "j"), "uid", draft, lambda: DesiredState(1, 1, 1, 0, version="5"),
            lambda: None,
            random.Random(0), lambda: 0.0,
        )  # fmt: skip
        running = asyncio.create_task(reporter.run())
        assert await reporter.flush(10)
        running.cancel()
    (body,) = server.bodies
    assert body.keys() == {"apiVersion", "kind", "metadata", "status"}
    assert body["metadata"] == {"name": "j", "namespace": "n", "uid": "uid"}
    assert body["status"].keys() == {"training"}
    assert body["status"]["training"]["time"].endswith("Z")

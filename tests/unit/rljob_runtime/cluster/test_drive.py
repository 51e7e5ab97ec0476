"""What `rljob drive` does before there is anything to run."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from rljob_api import RLJob
from rljob_runtime.cluster import drive as drive_module
from rljob_runtime.cluster.drive import drive, parse
from rljob_runtime.cluster.own_job import Identity
from rljob_runtime.cluster.settings import Settings, SettingsError, read_settings
from rljob_runtime.driver.run import Outcome
from rljob_runtime.exit_codes import ExitCode
from rljob_runtime.trace.record.event_ranks import EventRanks
from tests.support.jobs import job
from tests.support.runtime.api_server import Answer, reply, serving

ENVIRONMENT = {
    "RLJOB_NAME": "test",
    "RLJOB_NAMESPACE": "team",
    "RLJOB_ATTEMPT": "2",
    "RLJOB_RUN_FOLDER": "/rljob/runs/team/test",
    "RLJOB_KEY_FILE": "/keys/wire-key",
}


def test_settings_and_their_defaults() -> None:
    settings = read_settings(ENVIRONMENT)
    assert settings.identity == Identity("team", "test")
    assert (settings.attempt, settings.ray_address, settings.pod_address) == (2, "127.0.0.1:6379", None)
    assert settings.termination_log == Path("/dev/termination-log")
    assert settings.reward_host is None and settings.alive_file is None
    more = {
        "RLJOB_POD_IP": "10.0.0.9",
        "RLJOB_RAY_ADDRESS": "head:1",
        "RLJOB_KUBECONFIG": "/k",
        "RLJOB_REWARD_SOCKET": "/rewards/host",
        "RLJOB_ALIVE_FILE": "/tmp/alive",
    }
    assert read_settings(ENVIRONMENT | more) == Settings(
        settings.identity, 2, settings.run_folder, Path("/keys/wire-key"), Path("/rewards/host"),
        Path("/tmp/alive"), "10.0.0.9", "head:1", Path("/k"), settings.termination_log,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"RLJOB_NAME": "", "RLJOB_ATTEMPT": ""}, "RLJOB_NAME, RLJOB_ATTEMPT not set: .* use `rljob run`"),
        ({"RLJOB_ATTEMPT": "0"}, "RLJOB_ATTEMPT must be a whole number from 1"),
        ({"RLJOB_ATTEMPT": "two"}, "found 'two'"),
        ({"RLJOB_RAY_ADDRESS": "head"}, "RLJOB_RAY_ADDRESS must be host:port"),
    ],
)
def test_wrong_settings_are_named(changes: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        read_settings(ENVIRONMENT | changes)


@contextmanager
def api_server(answer: Answer) -> Iterator[str]:
    """A stand-in on a thread of its own, since `drive` has loops of its own; its URL."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    context = serving(answer)
    server = asyncio.run_coroutine_threadsafe(context.__aenter__(), loop).result(10)
    try:
        yield server.url
    finally:
        asyncio.run_coroutine_threadsafe(context.__aexit__(None, None, None), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def run(folder: Path, answer: Answer, **changes: str) -> tuple[int, str]:
    """The exit code, and what is left in the termination log."""
    log = folder / "termination-log"
    with api_server(answer) as url:
        (folder / "config").write_text(
            "current-context: c\n"
            "contexts: [{name: c, context: {cluster: k, user: u}}]\n"
            f"clusters: [{{name: k, cluster: {{server: '{url}'}}}}]\n"
            "users: [{name: u, user: {token: t}}]\n"
        )
        paths = {
            "RLJOB_KUBECONFIG": str(folder / "config"),
            "RLJOB_TERMINATION_LOG": str(log),
            "RLJOB_RUN_FOLDER": str(folder / "run"),
        }
        return drive(ENVIRONMENT | paths | changes), log.read_text()


def nested(levels: int) -> Any:
    return {"a": nested(levels - 1)} if levels else 1


def found(changes: dict[str, Any]) -> Answer:
    pools = {pool: {"replicas": 1} for pool in ("trainer", "fastRollout", "heavyRollout")}
    document = job({"pools": pools} | changes)
    document["metadata"] |= {"uid": "u", "generation": 1, "resourceVersion": "1", "managedFields": []}
    return reply(**document, status={"phase": "Starting", "of": "a newer version"})


@pytest.mark.parametrize(
    ("answer", "changes", "code", "message"),
    [
        (found({}), {"RLJOB_ATTEMPT": "x"}, 2, "RLJOB_ATTEMPT must be"),
        (found({"training.optimizer.warmupUpdates": 5}), {}, 2, "warmupUpdates must not be above"),
        (found({"training.reward.function": "no:where"}), {}, 2, "reward.function"),
        (
            found({"training.rollout.engine": {"mlx": {}}}),
            {},
            2,
            "engine.mlx: unknown here (known: vllm, torch)",
        ),
        (found({"storage.volume": nested(70)}), {}, 2, "fewer than 20."),
        (reply(404, kind="Status", details={"name": "test"}), {}, 1, "there is no RLJob team/test"),
        (reply(403, kind="Status", message="not allowed"), {}, 1, "not allowed"),
        (found({}), {"RLJOB_KUBECONFIG": "/nowhere"}, 2, "/nowhere: cannot read the kubeconfig"),
    ],
    ids=["settings", "rule", "reference", "newer choice", "too deep", "deleted", "forbidden", "credentials"],
)
def test_why_nothing_is_run(
    tmp_path: Path, answer: Answer, changes: dict[str, str], code: int, message: str
) -> None:
    ended, left = run(tmp_path, answer, **changes)
    assert (ended, left.count("\n")) == (code, 0)
    assert message in left


def test_fields_of_a_newer_definition_are_left_out_and_told(caplog: pytest.LogCaptureFixture) -> None:
    newer = {"runPolicy.retryPolicy": {"mode": "fast"}, "training.optimizer.epsilonRoot": 0.0}
    assert parse(job(newer) | {"status": {"new": 1}}) == RLJob.model_validate(job())
    [said] = caplog.records
    assert said.getMessage().endswith("spec.runPolicy.retryPolicy, spec.training.optimizer.epsilonRoot")


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine.txt").touch()
    code, left = run(tmp_path, found({}))
    assert code == 2
    assert "holds other files" in left


@pytest.mark.parametrize("before", [True, False])
def test_an_attempt_takes_back_that_the_one_before_was_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    """The job was changed since: with the first report of this attempt the old word would count. Nothing is
    run here."""
    written: list[Any] = []
    at_begin: list[int] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.method == "PATCH":
            written.append((await request.json())["status"])
            return await reply()(request)
        document = json.loads(await _body(found({}), request))
        document["status"] = {"training": {"attempt": 1, "completed": before}}
        return await reply(**document)(request)

    def no_run(*_: Any) -> Outcome:
        at_begin.append(len(written))
        return Outcome(ExitCode.FAILED, "not run")

    monkeypatch.setattr(drive_module, "carry_out", no_run)
    assert run(tmp_path, answer) == (1, "not run")
    assert (at_begin, written) == ([before], [{"training": {"completed": False}}] * before)


@pytest.mark.parametrize("before", [True, False])
def test_a_run_that_an_earlier_job_of_the_name_had_done_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    """It is in the condition Complete then. Nothing is run here."""

    async def answer(request: web.Request) -> web.StreamResponse:
        return await (reply() if request.method == "PATCH" else found({}))(request)

    done = Outcome(ExitCode.DONE, trained_before=before)
    monkeypatch.setattr(drive_module, "carry_out", lambda *_: done)
    (tmp_path / "termination-log").touch()
    code, left = run(tmp_path, answer)
    assert code == 0
    words = (
        "All of them had been trained before, by an earlier attempt or an earlier RLJob of this name: none "
        "was trained now. An RLJob of another name begins anew; more training.schedule.totalSteps or epochs "
        "train on."
    )
    assert left == (words if before else "")


async def _body(answer: Answer, request: web.Request) -> str:
    response = await answer(request)
    assert isinstance(response, web.Response) and response.text is not None
    return response.text


def test_event_ranks_stay_and_are_never_shared() -> None:
    ranks = EventRanks()
    first = [ranks.of(name) for name in ("trainer-0", "fast-0", "trainer-1", "fast-0", "driver")]
    assert first == [1, 2, 3, 2, 0]

"""A job that is refused leaves its folder as it was, byte for byte, but for the log."""

import logging
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import yaml
from safetensors.numpy import save_file

from rljob_api import RLJob
from rljob_runtime.change_signal import ChangeSignal
from rljob_runtime.data.prompts import PromptSource
from rljob_runtime.data.tokenizer import build_tokenizer
from rljob_runtime.driver.model_folder import CHECKPOINTS
from rljob_runtime.driver.run import OpenSite, Outcome, _with_log, carry_out
from rljob_runtime.exit_codes import ExitCode
from rljob_runtime.groups.ledger import Ledger
from rljob_runtime.net.keys import Keyring
from rljob_runtime.run_folder import Begin, FolderRefused, RunOptions, held, mark_finished
from rljob_runtime.site.desired import DesiredState
from rljob_runtime.site.nodes import NodeTable
from rljob_runtime.site.own_start import OwnStart
from rljob_runtime.site.ray_folder import RayFolderUnfit
from rljob_runtime.site.site import RESOURCES, Site
from rljob_runtime.site.status_draft import StatusDraft
from rljob_runtime.trainer import checkpoint
from rljob_runtime.trainer.checkpoint import Head
from tests.support.jobs import job
from tests.support.runtime.resumes import saved

SHORT = {"training.schedule": {"totalSteps": 1, "promptsPerBatch": 4}}
OTHER_DATA = {"training.seed": 7}
OTHER_MODEL = {"training.model.random.layers": 5}
ADAPTER = {"training.adapter": {"rank": 4}}
LENGTHS = {"training.rollout.forcedLengths": "none.jsonl"}
NO_TOKENIZER = {"training.tokenizer": {"path": "none"}}
NO_DATA = {"training.data": {"jsonl": {"path": "none.jsonl"}, "maxPromptTokens": 8}}
RESUMED = {
    "too few steps": (SHORT, "has 3 steps, and training.schedule.totalSteps is 1"),
    "other data": (OTHER_DATA, "is not the data that the run began with"),
    "another model": (OTHER_MODEL, "layers: 5, and the run began with 2"),
    "an adapter": (ADAPTER, "the job asks for an adapter"),
    "lengths that are not there": (LENGTHS, "none.jsonl"),
    "a tokenizer that is not there": (NO_TOKENIZER, "none"),
    "data that is not there": (NO_DATA, "none.jsonl"),
    "checkpoints elsewhere": ({"training.checkpoint": {"path": "other"}}, "the run's checkpoints are in"),
    "no room for Ray": ({}, "no room"),
}
ANEW = {
    "lengths that are not there": (LENGTHS, "none.jsonl"),
    "data that is not there": (NO_DATA, "none.jsonl"),
    "checkpoints of another run": (
        {"training.checkpoint": {"path": "taken"}},
        "holds checkpoints of another",
    ),
    "no room for Ray": ({}, "no room"),
}


@pytest.fixture(autouse=True)
def root() -> Iterator[None]:
    """Loggers as they were, afterwards."""
    root = logging.getLogger()
    before, level, raises = root.handlers[:], root.level, logging.raiseExceptions
    root.handlers.clear()
    yield
    for handler in root.handlers:
        handler.close()
    root.handlers[:] = before
    root.setLevel(level)
    logging.raiseExceptions = raises


@asynccontextmanager
async def no_site(_: RLJob) -> AsyncIterator[Site]:
    raise RayFolderUnfit("no room")
    yield


@asynccontextmanager
async def cluster(job: RLJob) -> AsyncIterator[Site]:
    """A cluster of which only that it is one has been looked at."""

    async def pod(_: str) -> str:
        return "pod"

    changes = ChangeSignal()
    table = NodeTable(list, pod, tuple(RESOURCES.values()), changes)
    wanted = DesiredState.of(job)
    yield Site(
        False, table, "home", "10.0.0.1", lambda: wanted, StatusDraft(attempt=1), changes, Keyring()
    )  # fmt: skip


def content(folder: Path) -> dict[str, Any]:
    """Every file, folder and link below a folder but logs and locks."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        if path.name not in ("driver.log", ".lock"):
            whole = path.is_file() and not path.is_symlink()
            found[str(path.relative_to(folder))] = path.read_bytes() if whole else path.is_symlink()
    return found


def checkpoint_in(root: Path, wanted: RLJob, folder: Path) -> None:
    training = wanted.spec.training
    prompts = PromptSource(
        training.data, build_tokenizer(training.tokenizer, folder, None), training.seed, folder
    )
    partial = checkpoint.begin(root, 3)
    state = msgspec.structs.replace(saved(3, Ledger(12), []), data=prompts.fingerprint)
    checkpoint.write_head(partial, Head(updates=3), msgspec.msgpack.encode(state))
    checkpoint.finish(partial, keep=2)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of three steps, which has done all of them."""
    folder, file = tmp_path / "run", tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(job()))
    with held(folder, file.read_bytes(), Begin.NEW) as found:
        found.begin()
    wanted = RLJob.model_validate(job())
    checkpoint_in(folder / CHECKPOINTS, wanted, tmp_path)
    checkpoint_in(tmp_path / "taken", wanted, tmp_path)
    (folder / "model_files").mkdir()
    (folder / "model_files" / "config.json").write_text('{"num_hidden_layers": 2}')
    (folder / "initial_model").mkdir()
    save_file({"w": np.ones(3)}, folder / "initial_model" / "model.safetensors")
    mark_finished(folder)
    return folder


def asked(run: Path, changes: dict[str, Any], begin: Begin, site: OpenSite = no_site) -> tuple[Outcome, bool]:
    """What becomes of a job that asks for this at `site`; whether it took the folder."""
    folder = run.parent
    taken: list[bool] = []
    document = job(changes)
    (folder / "job.yaml").write_text(yaml.safe_dump(document))
    with held(run, (folder / "job.yaml").read_bytes(), begin) as found:
        options = RunOptions(
            found.folder, folder, found.resumes, live=False, begin=lambda: taken.append(True)
        )
        try:
            outcome = carry_out(RLJob.model_validate(document), options, site, OwnStart())
        except FolderRefused as error:
            outcome = Outcome(ExitCode.REFUSED, str(error))
    return outcome, bool(taken)


@pytest.mark.parametrize(
    ("begin", "changes", "words"),
    [
        *(pytest.param(Begin.RESUME, *RESUMED[name], id=f"resumed: {name}") for name in RESUMED),
        *(
            pytest.param(begin, *ANEW[name], id=f"{begin.value}: {name}")
            for begin in (Begin.RESTART, Begin.AUTO_RESUME)
            for name in ANEW
        ),
    ],
)
def test_a_refused_job_leaves_the_earlier_run_as_it_was(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    run: Path,
    begin: Begin,
    changes: dict[str, Any],
    words: str,
) -> None:
    (tmp_path / "job.yaml").write_text("")
    before = content(tmp_path)
    outcome, taken = asked(run, changes, begin)
    # Where the folder is refused, nothing has begun that could end.
    if told := capsys.readouterr().out:
        assert f"failed: {3 if begin is Begin.RESUME else 0} steps, " in told
    assert outcome.code == ExitCode.REFUSED and words in (outcome.why or "")
    assert not taken
    (tmp_path / "job.yaml").write_text("")
    assert content(tmp_path) == before


def test_memory_that_a_cluster_does_not_share_leaves_the_run_as_it_was(run: Path) -> None:
    before = content(run)
    changes = {"training.async.weightSync": {"push": {}, "transport": "shm"}}
    outcome, taken = asked(run, changes, Begin.RESTART, cluster)
    assert outcome.code == ExitCode.REFUSED and "shm reaches one machine only" in (outcome.why or "")
    assert not taken
    assert content(run) == before


def test_a_teacher_whose_server_knows_nothing_leaves_the_run_as_it_was(tmp_path: Path, run: Path) -> None:
    class Nothing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(404)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    before = content(run)
    with HTTPServer(("127.0.0.1", 0), Nothing) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        named = {"url": f"http://127.0.0.1:{server.server_port}", "model": "m"}
        wanted = {"training.algorithm.distillation": {"teacher": {"server": named}}}
        outcome, taken = asked(run, wanted, Begin.RESUME)
        server.shutdown()
        serving.join()
    assert outcome.code == ExitCode.REFUSED and "there is no /v1/models" in (outcome.why or "")
    assert not taken
    assert content(run) == before


def test_one_file_is_named_that_has_more() -> None:
    log = Path("/run/driver.log")
    assert _with_log("no room", log) == "no room (more in /run/driver.log)"
    assert _with_log("boom (more in /run/rewards.log)", log) == "boom (more in /run/rewards.log)"

"""A teacher that a real vLLM server has: what it says is what the model says; what does not fit is refused.

The server starts once, for all tests.
"""

import asyncio
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import pytest_asyncio
import torch
from transformers import AutoModelForCausalLM

from rljob_api import RLJob
from rljob_api.algorithm import TeacherServer
from rljob_runtime.data.tokenizer import CharacterTokenizer
from rljob_runtime.driver.open_teacher import KEY, TeacherUnfit, opened_teacher
from rljob_runtime.exit_codes import ExitCode
from rljob_runtime.groups.state import JobState
from rljob_runtime.rollout.served_teacher import ServedTeacher, TeacherFailed
from rljob_runtime.trace.record.metrics_log import METRICS_FILE, read_metrics
from rljob_runtime.trainer.checkpoint import newest, read_head
from tests.support.jobs import job
from tests.support.runtime.fake_teacher import fake_teacher, status
from tests.support.runtime.runs import ONE_ENGINE, PROMPTS, manifest, running
from tests.support.runtime.served_teacher import vllm_server
from tests.support.runtime.tiny_models import VOCABULARY, sharp_model

STEPS = 3
EVALUATION = {
    "everyVersions": 1,
    "sets": [{"name": "held_out", "data": {"generated": {"task": "copy", "rows": 2}, "maxPromptTokens": 8}}],
}

pytestmark = pytest.mark.timeout(400)

LETTERS = CharacterTokenizer("abcdefghijklmnopqrstuvwxyz0123456789")
LONGEST = 96
SECRET = "sk-0123456789"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = sharp_model(tmp_path_factory.mktemp("teacher") / "model", 8)
    LETTERS.save_pretrained(found)
    return found


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    with vllm_server(folder, folder.parent / "server.log", "teacher", LONGEST, "--api-key", SECRET) as found:
        yield found


@pytest_asyncio.fixture
async def teacher(url: str) -> AsyncIterator[ServedTeacher]:
    async with ServedTeacher(TeacherServer(url=url, model="teacher"), SECRET) as found:
        yield found


def asked(url: str, **changes: Any) -> RLJob:
    """A job with samples of 95 tokens, the most that the server takes."""
    server = {"url": url, "model": changes.pop("name", "teacher")}
    return RLJob.model_validate(
        job(
            {
                "training.algorithm": {"distillation": {"teacher": {"server": server}}},
                "training.data.maxPromptTokens": 15,
                "training.rollout.maxResponseTokens": changes.pop("response", 80),
            }
        )
    )


async def test_it_says_what_the_model_says(folder: Path, teacher: ServedTeacher) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    rng = np.random.default_rng(0)
    for prompt_length, length in ((1, 1), (7, 20), (15, LONGEST - 16)):
        prompt, response = (
            rng.integers(0, VOCABULARY, count).astype(np.int32) for count in (prompt_length, length)
        )
        found = await teacher.score(prompt, response)
        tokens = torch.from_numpy(np.concatenate([prompt, response])).long()
        with torch.no_grad():
            expected = model(tokens[None]).logits[0].log_softmax(-1)
        places = torch.arange(prompt_length - 1, len(tokens) - 1)
        assert found.dtype == np.float32 and found.shape == (length,)
        np.testing.assert_allclose(found, expected[places, tokens[places + 1]].numpy(), atol=1e-5, rtol=0)


async def test_a_job_that_it_fits_opens_it(url: str, caplog: pytest.LogCaptureFixture) -> None:
    async with opened_teacher(asked(url).spec.training, LETTERS, {KEY: SECRET}) as teacher:
        assert teacher is not None
        assert len(await teacher.score(LETTERS.encode("ab"), LETTERS.encode("b", rendered=True))) == 1
    assert SECRET not in caplog.text and "is not checked" not in caplog.text


@pytest.mark.parametrize(
    ("changes", "letters", "key", "words"),
    [
        ({"name": "another"}, LETTERS, SECRET, "has no model 'another' (it has teacher)"),
        ({"response": 81}, LETTERS, SECRET, f"takes {LONGEST} tokens there, and must take {LONGEST + 1}"),
        ({}, CharacterTokenizer("zyxabc"), SECRET, "has another tokenizer than the policy"),
        ({}, LETTERS, "wrong", f"answered 401 (Unauthorized): set {KEY}"),
    ],
    ids=["another model", "too short", "another tokenizer", "a wrong key"],
)
async def test_a_job_that_it_does_not_fit_is_refused(
    url: str, changes: dict[str, Any], letters: CharacterTokenizer, key: str, words: str
) -> None:
    with pytest.raises(TeacherUnfit) as raised:
        async with opened_teacher(asked(url, **changes).spec.training, letters, {KEY: key}):
            raise AssertionError("it must not be opened")
    assert words in str(raised.value)


def answered(url: str) -> int:
    """Requests that the server has finished, by its own count."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return sum(
        int(float(line.split()[-1])) for line in lines if line.startswith("vllm:request_success_total")
    )


def test_a_job_learns_from_it(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each response that is trained is asked about once, and none of an evaluation."""
    monkeypatch.setenv(KEY, SECRET)
    learned = {
        "advantage": {"none": {}},
        "distillation": {"teacher": {"server": {"url": url, "model": "teacher"}}},
    }
    file, _ = manifest(tmp_path, STEPS, ONE_ENGINE, algorithm=learned, evaluation=EVALUATION)
    before = answered(url)
    with running(file) as run:
        assert run.end(250) == 0, run.log.read_text()
    # One more for the trial at the start.
    assert answered(url) - before == STEPS * PROMPTS * 2 + 1
    rows = read_metrics(run.folder / METRICS_FILE).rows
    assert len(rows) == STEPS
    checkpoint = newest(run.folder / "checkpoints")
    assert checkpoint is not None
    state = msgspec.msgpack.decode(read_head(checkpoint)[1], type=JobState)
    assert state.teacher == "teacher", "whose log-probabilities groups have that wait in it"
    assert all(row["teacher_kl"] > 0.1 and row["grad_norm"] > 0.01 for row in rows)
    assert all("reference_forward" not in row["seconds"] for row in rows)
    assert "The teacher&#x27;s server had answered" in (run.folder / "report.html").read_text()
    told = [each for each in run.folder.rglob("*") if each.is_file() and SECRET.encode() in each.read_bytes()]
    assert told == [] and SECRET not in run.log.read_text()


async def test_a_teacher_that_scores_nothing_ends_the_job(tmp_path: Path) -> None:
    async with fake_teacher() as fake:
        fake.models = [{"id": "teacher", "max_model_len": 128}]
        fake.answers = [fake.right, *[status(400, {"error": "out of order"})] * 1000]
        learned = {"distillation": {"teacher": {"server": {"url": fake.url, "model": "teacher"}}}}
        file, _ = manifest(tmp_path, STEPS, ONE_ENGINE, algorithm=learned)
        with running(file) as run:
            code = await asyncio.to_thread(run.end, 250)
    said = run.log.read_text()
    assert code == ExitCode.FAILED, said
    assert (
        f"training.algorithm.distillation.teacher.server: 'teacher' at {fake.url.removeprefix('http://')} "
        "failed for all 8 samples of step 1, before any was scored." in said
    )
    assert "out of order" in said
    assert (
        "no log-probabilities of the teacher for 1 more responses" in (run.folder / "driver.log").read_text()
    )


async def test_what_it_refuses_is_told_and_not_asked_again(teacher: ServedTeacher) -> None:
    prompt = np.array([3], np.int32)
    for response, words in (
        (np.array([10**6], np.int32), "Token id 1000000 is out of vocabulary"),
        (np.zeros(LONGEST, np.int32), f"maximum context length is {LONGEST} tokens"),
    ):
        with pytest.raises(TeacherFailed) as raised:
            await teacher.score(prompt, response)
        assert raised.value.status == 400 and words in str(raised.value)

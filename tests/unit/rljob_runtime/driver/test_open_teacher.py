"""What a server must have to be a job's teacher."""

import logging
from pathlib import Path
from typing import Any

import pytest

from rljob_api import RLJob
from rljob_runtime.data.tokenizer import CharacterTokenizer
from rljob_runtime.driver.open_teacher import KEY, TeacherUnfit, opened_teacher, probe
from rljob_runtime.rollout import served_teacher
from rljob_runtime.rollout.served_teacher import TeacherFailed
from tests.support.jobs import job
from tests.support.operator.certificates import Authority
from tests.support.runtime.fake_teacher import FakeTeacher, body, fake_teacher, status

LETTERS = CharacterTokenizer("abcdefgh")
LONGEST = 16 + 32
SECRET = "sk-0123456789"


def ours(text: str) -> list[int]:
    """The policy's tokenizer, as the server would have it."""
    return LETTERS.encode(text, rendered=True).tolist()


def asked(url: str) -> RLJob:
    return RLJob.model_validate(
        job(
            {
                "training.algorithm.distillation": {"teacher": {"server": {"url": url, "model": "teacher"}}},
                "training.data.maxPromptTokens": 16,
                "training.rollout.maxResponseTokens": 32,
            }
        )
    )


async def opened(fake: FakeTeacher, environment: dict[str, str] | None = None, path: str = "") -> Any:
    training = asked(fake.url + path).spec.training
    async with opened_teacher(training, LETTERS, environment or {}) as teacher:
        return teacher


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_teacher, "PAUSES", (0.0,))


async def test_one_that_fits(caplog: pytest.LogCaptureFixture) -> None:
    async with fake_teacher() as fake:
        fake.tokenize = ours
        with caplog.at_level(logging.INFO):
            assert await opened(fake) is not None
        assert "the teacher is teacher at 127.0.0.1:" in caplog.text
        # The highest number of the policy's tokens is among what is tried.
        assert [each["prompt"][-1] for each in fake.asked] == [LETTERS.vocabulary_size - 1]
        assert all(record.levelno < logging.WARNING for record in caplog.records)


async def test_a_job_without_one_asks_nobody() -> None:
    async with opened_teacher(RLJob.model_validate(job({})).spec.training, LETTERS, {}) as teacher:
        assert teacher is None


async def test_what_cannot_be_checked_is_told(caplog: pytest.LogCaptureFixture) -> None:
    async with fake_teacher() as fake:
        fake.models = [{"id": "teacher"}]
        assert await opened(fake) is not None
        assert "has no /tokenize: that its tokenizer is the policy's is not checked" in caplog.text
        assert "does not tell how long a sample teacher takes" in caplog.text


def test_the_probe_is_what_the_policy_s_tokenizer_can_encode() -> None:
    text, tokens = probe(LETTERS)
    assert text == "abcdefgh" and tokens.tolist() == ours(text)


UNFIT: dict[str, tuple[dict[str, Any], str]] = {
    "another model": (
        {"models": [{"id": f"m{number}"} for number in range(9)]},
        "has no model 'teacher' (it has m0, m1, m2, m3, m4)",
    ),
    "no model": ({"models": []}, "has no model 'teacher' (it has none)"),
    "too short": (
        {"models": [{"id": "teacher", "max_model_len": LONGEST}]},
        f"takes {LONGEST} tokens there, and must take {LONGEST + 1}",
    ),
    "another tokenizer": (
        {"tokenize": lambda text: [token + 1 for token in ours(text)]},
        "has another tokenizer than the policy: of a probe text, token 0 is 4 of 8",
    ),
    "tokens that it does not know": (
        {"answers": [status(400, {"error": {"message": "Token id 11 is out of vocabulary"}})]},
        "answered 400 (Token id 11 is out of vocabulary)",
    ),
    "no log-probabilities": (
        {"answers": [body({"choices": [{"text": "x"}]})]},
        "has no prompt_logprobs: only vLLM's servers give them",
    ),
    "a key that is missing": ({"key": SECRET}, f"answered 401 (Unauthorized): set {KEY} in the driver's"),
}


@pytest.mark.parametrize("name", UNFIT)
async def test_one_that_does_not_fit(name: str) -> None:
    changes, words = UNFIT[name]
    async with fake_teacher() as fake:
        fake.tokenize = ours
        for attribute, value in changes.items():
            setattr(fake, attribute, list(value) if attribute == "answers" else value)
        with pytest.raises(TeacherUnfit) as raised:
            await opened(fake)
        assert words in str(raised.value)
        assert str(raised.value).startswith("training.algorithm.distillation.teacher.server")


async def test_an_address_that_has_v1_in_it() -> None:
    async with fake_teacher() as fake:
        with pytest.raises(TeacherUnfit, match="url is what stands before /v1"):
            await opened(fake, path="/v1")


async def test_an_address_that_is_none() -> None:
    nobody = FakeTeacher()
    nobody.url = "http://teacher:99999"
    with pytest.raises(TeacherUnfit, match=r"server\.url: teacher:99999 is no address of a server"):
        await opened(nobody)


async def test_a_certificate_that_nobody_knows(tmp_path: Path) -> None:
    async with fake_teacher(Authority(tmp_path)) as fake:
        with pytest.raises(TeacherUnfit, match=r"server\.url: .*certificate verify failed"):
            await opened(fake)


async def test_one_that_is_away_may_be_there_for_another_attempt() -> None:
    async with fake_teacher() as fake:
        fake.answers = [status(503)] * 9
        fake.tokenize = ours
        with pytest.raises(TeacherFailed, match=r"server\.model: .* answered 503"):
            await opened(fake)
    with pytest.raises(TeacherFailed, match=r"server\.url: .*Cannot connect"):
        await opened(fake)


async def test_the_key_comes_from_the_environment(caplog: pytest.LogCaptureFixture) -> None:
    async with fake_teacher() as fake:
        fake.key, fake.tokenize = SECRET, ours
        with caplog.at_level(logging.DEBUG):
            assert await opened(fake, {KEY: SECRET}) is not None
            # As a Secret made from a file has it.
            assert await opened(fake, {KEY: f"{SECRET}\n"}) is not None
        with pytest.raises(TeacherUnfit) as raised:
            await opened(fake, {KEY: "another"})
        assert SECRET not in caplog.text + str(raised.value)

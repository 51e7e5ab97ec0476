"""Opens the server that has a job's teacher, and sees that it can score the job's responses.

Guarantees: a job whose teacher is not there, has another tokenizer, takes too short samples, or gives no
usable log-probabilities ends before anything of it is started, with what to change; the key comes from the
environment and is shown nowhere.
"""

import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import numpy as np

from rljob_api.training import Training
from rljob_runtime.data.errors import DataError
from rljob_runtime.data.tokenizer import TextTokenizer
from rljob_runtime.rollout.served_teacher import ServedTeacher, TeacherFailed
from rljob_runtime.rollout.teacher_answers import ServedModel, differing_tokens
from rljob_runtime.samples import Tokens

log = logging.getLogger(__name__)

KEY = "RLJOB_TEACHER_KEY"
"""The environment variable that has the server's key."""
_FIELD = "training.algorithm.distillation.teacher.server"
_PROBE = (
    "The sum is 3.14159 + 2/7.\n\n```python\ndef f(x):\n    return x ** 2\n```\n"
    "Ärger, naïve, 你好, привет, 🙂"
)
"""Words, numbers, code and several scripts: other tokenizers cut it otherwise."""


class TeacherUnfit(ValueError):
    """The server cannot be this job's teacher; asking it again would change nothing."""


@asynccontextmanager
async def opened_teacher(
    training: Training,
    tokenizer: TextTokenizer,
    environment: Mapping[str, str],
    say: Callable[[str], None] = lambda _: None,
) -> AsyncIterator[ServedTeacher | None]:
    """The job's served teacher, which has scored a few tokens; None where the job has none. `say` is given
    what a person is to know of it while the job runs. Raises `TeacherUnfit`, and `TeacherFailed` where the
    server is not there or fails."""
    server = training.algorithm.teacher_server
    if server is None:
        yield None
        return
    async with ServedTeacher(server, environment.get(KEY, "").strip() or None, say=say) as teacher:
        await _check(teacher, server.model, training.longest_sample_tokens, tokenizer)
        log.info("the teacher is %s at %s", server.model, teacher.host)
        yield teacher


async def _check(teacher: ServedTeacher, name: str, longest: int, tokenizer: TextTokenizer) -> None:
    try:
        models = await teacher.models()
    except TeacherFailed as error:
        raise _unfit(error, "url", "/v1/models") from error
    _check_model(models, name, longest, teacher.host)
    text, ours = probe(tokenizer)
    try:
        await _check_tokens(teacher, text, ours)
        # The highest number that the policy's tokenizer has: the teacher must know it too.
        tokens = np.concatenate([ours, np.array([tokenizer.vocabulary_size - 1], np.int32)])
        await teacher.score(tokens[:1], tokens[1:])
    except TeacherFailed as error:
        raise _unfit(error, "model", "/v1/completions") from error


def probe(tokenizer: TextTokenizer) -> tuple[str, Tokens]:
    """A text and its tokens, without any around it: one that tells tokenizers apart, where this one can
    encode it."""
    try:
        return _PROBE, tokenizer.encode(_PROBE, rendered=True)
    except DataError:
        return tokenizer.letters, tokenizer.encode(tokenizer.letters, rendered=True)


def _check_model(models: list[ServedModel], name: str, longest: int, host: str) -> None:
    found = next((each for each in models if each.id == name), None)
    if found is None:
        has = ", ".join(each.id for each in models[:5]) or "none"
        raise TeacherUnfit(f"{_FIELD}.model: {host} has no model {name!r} (it has {has})")
    if found.max_model_len is None:
        log.warning("%s does not tell how long a sample %s takes: that is not checked", host, name)
    elif found.max_model_len <= longest:
        raise TeacherUnfit(
            f"{_FIELD}: {name} takes {found.max_model_len} tokens there, and must take {longest + 1}: the "
            "longest sample (data.maxPromptTokens + rollout.maxResponseTokens) and one more. Start the "
            f"server with --max-model-len {longest + 1} or more"
        )


async def _check_tokens(teacher: ServedTeacher, text: str, ours: Tokens) -> None:
    try:
        theirs = await teacher.tokenize(text)
    except TeacherFailed as error:
        if error.status not in (404, 405):
            raise
        log.warning(
            "%s has no /tokenize: that its tokenizer is the policy's is not checked. With another one it "
            "scores other texts than the policy writes",
            teacher.host,
        )
        return
    if (why := differing_tokens(ours.tolist(), theirs)) is not None:
        raise TeacherUnfit(
            f"{_FIELD}.model: has another tokenizer than the policy: of a probe text, {why}. The teacher "
            "scores the policy's tokens by their numbers: take a teacher with the same tokenizer, as models "
            "of one family have"
        )


def _unfit(error: TeacherFailed, field: str, path: str) -> TeacherUnfit | TeacherFailed:
    """The error with its field and what to do; one that may pass stays so."""
    told = f"{_FIELD}.{field}: {error}"
    if error.status in (401, 403):
        return TeacherUnfit(f"{_FIELD}: {error}: set {KEY} in the driver's environment to the server's key")
    if error.status == 404:
        return TeacherUnfit(f"{told}: there is no {path}: url is what stands before /v1 of a vLLM server")
    return TeacherUnfit(told) if error.lasting else TeacherFailed(told, error.status, error.again)

"""The client of a server that has a teacher.

Guarantees: no more requests at a time than the job allows; each has a time limit, and its answer a largest
size; one that a server may answer later (no connection, 429, 5xx) is sent again a few times, with growing
pauses in which others have its place. When a server answers none of several in a row, one request at a time
is sent until it does (`teacher_circuit.py`), the others wait without using up their tries, and a person is
told; one that gives no answer for very long is lost. The key goes to the server alone, no redirection is
followed, and no error has it.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self, TypeVar
from urllib.parse import urlsplit

import aiohttp
import numpy as np

from rljob_api.algorithm import TeacherServer
from rljob_runtime.rewards import TEACHER
from rljob_runtime.rollout.teacher_answers import (
    ServedModel,
    UnusableAnswer,
    completion_request,
    log_probs_of,
    models_of,
    most_bytes,
    refusal_of,
    tokenize_request,
    tokens_of,
)
from rljob_runtime.rollout.teacher_circuit import Change, Circuit, Permit, patience_of
from rljob_runtime.samples import LogProbs, Tokens

T = TypeVar("T")

PAUSES = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Seconds before a request is sent again: together as long as a server behind a proxy takes to come back."""
_LISTING_BYTES = 4 * 2**20
"""Longest list of models, or of the tokens of a text, that is read."""
_CHUNK = 64 * 1024


class TeacherFailed(RuntimeError):
    """The server did not give what it was asked for; the message says why, in one line."""

    def __init__(
        self, why: str, status: int | None = None, again: bool = False, lasting: bool = False
    ) -> None:
        """`status`: of the HTTP answer; None where there was none, or a good one with a bad body. `again`:
        the same request may be answered a little later; `lasting`: it never will be."""
        super().__init__(why)
        self.status = status
        self.again = again
        self.lasting = lasting


class TeacherSilent(TeacherFailed):
    """There was no answer within the time limit."""


class TeacherLost(RuntimeError):
    """The server has given no answer for longer than its patience; the message is for a person."""


class ServedTeacher:
    """Asks one server; opened as a context, in a running event loop."""

    def __init__(
        self,
        server: TeacherServer,
        key: str | None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        say: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`key` is sent as a bearer token; None sends none. `say` is given what a person is to know: that the
        server answers no more, and that it does again. `clock`: in seconds."""
        self.host = urlsplit(server.url).netloc
        """The server in messages: the path of its address may be known to few."""
        self.in_words = f"training.algorithm.distillation.teacher.server: {server.model!r} at {self.host}"
        """The field and what it names, for errors."""
        self.ended = 0
        """Responses that were scored, or given up."""
        self.probes = 0
        """Requests that were sent to see whether a server that had failed answers again."""
        self._server = server
        self._base = server.url.rstrip("/")
        self._key = key
        self._sleep = sleep
        self._say = say
        self._clock = clock
        self._patience = patience_of(server.timeout_seconds)
        self._circuit = Circuit(self._patience)
        self._turn = asyncio.Event()
        """Set, and another one made, when a request that waits may be sent."""
        self._room = asyncio.Semaphore(server.concurrency)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), headers=headers, cookie_jar=aiohttp.DummyCookieJar()
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._session is not None
        await self._session.close()

    async def score(self, prompt: Tokens, response: Tokens) -> LogProbs:
        """Log-probabilities of the response's tokens, shape (response length,), under the teacher. Raises
        `TeacherFailed`, and `TeacherLost` where no response will be scored any more."""
        tokens = np.concatenate([prompt, response])
        body = completion_request(self._server.model, tokens)
        try:
            answer = await self._persist(body, most_bytes(len(tokens)))
        finally:
            self.ended += 1
        # In a thread: a response of 30,000 tokens takes 30 ms, in which the driver's loop would do nothing.
        return await asyncio.to_thread(
            self._read, answer, lambda found: log_probs_of(found, tokens, len(prompt))
        )

    async def models(self) -> list[ServedModel]:
        """The models that the server has. Raises `TeacherFailed`."""
        return self._read(await self._ask("GET", "/v1/models", None, _LISTING_BYTES), models_of)

    async def tokenize(self, text: str) -> list[int]:
        """The tokens of a text, by the server's tokenizer. Raises `TeacherFailed`."""
        body = tokenize_request(self._server.model, text)
        return self._read(await self._ask("POST", "/tokenize", body, _LISTING_BYTES), tokens_of)

    async def _persist(self, body: bytes, most: int) -> bytes:
        """The body of a good answer to a request for log-probabilities. Raises `TeacherFailed`,
        `TeacherLost`."""
        tries = 0
        while True:
            try:
                # One that waits here waits for others, each of which has a time limit.
                async with self._room:
                    permit = await self._permit()
                    return await self._tell(permit, self._once("POST", "/v1/completions", body, most))
            except TeacherFailed as failed:
                if self._circuit.state != "closed" and _of_the_server(failed):
                    continue
                if not failed.again:
                    raise
                if tries == len(PAUSES):
                    raise _given_up(failed) from failed
            await self._sleep(PAUSES[tries])
            tries += 1

    async def _permit(self) -> Permit:
        """Wait until a request may be sent."""
        while (permit := self._circuit.ask()) is None:
            await self._turn.wait()
        if permit.probe:
            try:
                await self._sleep(permit.after)
            except BaseException:
                self._withdraw(permit)
                raise
            self.probes += 1
        return permit

    async def _tell(self, permit: Permit, request: Awaitable[bytes]) -> bytes:
        """What the request gives; what becomes of it is told to all."""
        try:
            found = await request
        except TeacherFailed as failed:
            if _of_the_server(failed):
                self._take(self._circuit.failed(permit, self._clock()), failed)
            else:
                self._answered()
            raise
        except BaseException:
            self._withdraw(permit)
            raise
        self._answered()
        return found

    def _answered(self) -> None:
        seconds = self._circuit.answered(self._clock())
        if seconds is not None:
            self._say(f"the teacher at {self.host} answers again, after {seconds:.0f} s")
            self._wake()

    def _take(self, change: Change | None, failed: TeacherFailed) -> None:
        """Tell what a failure changes. Raises `TeacherLost`."""
        self._wake()
        if change == "opened":
            self._say(
                f"the teacher does not answer: {failed}. One request at a time is sent until it does; "
                f"the job ends after {self._patience / 60:g} min without an answer"
            )
        elif change == "lost":
            raise TeacherLost(
                f"{self.in_words} has given no answer for {self._patience / 60:g} min. "
                f"The newest failure: {TEACHER}: {failed}"
            ) from failed

    def _withdraw(self, permit: Permit) -> None:
        self._circuit.withdrawn(permit)
        self._wake()

    def _wake(self) -> None:
        """Have those that wait ask once more."""
        self._turn.set()
        self._turn = asyncio.Event()

    async def _ask(self, method: str, path: str, body: bytes | None, most: int) -> bytes:
        """The body of a good answer. Raises `TeacherFailed`."""
        for pause in PAUSES:
            try:
                return await self._once(method, path, body, most)
            except TeacherFailed as failed:
                if not failed.again:
                    raise
            await self._sleep(pause)
        try:
            return await self._once(method, path, body, most)
        except TeacherFailed as failed:
            if not failed.again:
                raise
            raise _given_up(failed) from failed

    async def _once(self, method: str, path: str, body: bytes | None, most: int) -> bytes:
        assert self._session is not None, "it is opened as a context"
        seconds = self._server.timeout_seconds
        try:
            async with (
                asyncio.timeout(seconds),
                self._session.request(
                    method,
                    self._base + path,
                    data=body,
                    allow_redirects=False,
                    timeout=aiohttp.ClientTimeout(total=None),
                ) as answer,
            ):
                found = await self._body(answer, most)
        except TimeoutError as error:
            raise TeacherSilent(f"{self.host} did not answer within {seconds:g} s") from error
        except aiohttp.InvalidURL as error:
            raise TeacherFailed(f"{self.host} is no address of a server", lasting=True) from error
        except aiohttp.ClientSSLError as error:
            raise TeacherFailed(self._words(error), lasting=True) from error
        except (aiohttp.ClientError, OSError) as error:
            raise TeacherFailed(self._words(error), again=True) from error
        if answer.status != 200:
            said = self._without_key(refusal_of(found))
            again = answer.status == 429 or answer.status >= 500
            why = f"{self.host} answered {answer.status}{f' ({said})' if said else ''}"
            raise TeacherFailed(why, answer.status, again, lasting=not again)
        return found

    async def _body(self, answer: aiohttp.ClientResponse, most: int) -> bytes:
        found = bytearray()
        async for chunk in answer.content.iter_chunked(_CHUNK):
            found += chunk
            if len(found) > most:
                # What is left of it is not read: its connection is of no use any more.
                answer.close()
                raise TeacherFailed(f"the answer of {self.host} has more than {most} bytes")
        return bytes(found)

    def _read(self, answer: bytes, reader: Callable[[bytes], T]) -> T:
        try:
            return reader(answer)
        except UnusableAnswer as error:
            raise TeacherFailed(f"the answer of {self.host} {error}", lasting=True) from error

    def _words(self, error: Exception) -> str:
        return f"{self.host}: {self._without_key(str(error)) or type(error).__name__}"

    def _without_key(self, text: str) -> str:
        return text if not self._key else text.replace(self._key, "…")


def _given_up(failed: TeacherFailed) -> TeacherFailed:
    """The failure of a request that is not sent again."""
    return TeacherFailed(f"{failed} ({len(PAUSES) + 1} times)", failed.status, again=True)


def _of_the_server(failed: TeacherFailed) -> bool:
    """Whether another request might have failed alike, as far as one can tell."""
    return failed.again or isinstance(failed, TeacherSilent)

"""The driver's last word: tried for some seconds, and no longer."""

import asyncio
import random
from typing import Any

import pytest

from rljob_client.errors import Conflict, Forbidden, NoCredentials, ServerError
from rljob_runtime.cluster.completed import (
    completed_before,
    say_completed,
    take_back_completed,
)
from rljob_runtime.cluster.own_job import Identity
from rljob_runtime.simulate.virtual_loop import run_virtual

AWAY = ServerError("apply /x", "503 Service Unavailable")


class Client:
    """Fails with each of `failures`, then takes what is applied."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.tries = 0
        self.taken: list[dict[str, Any]] = []

    async def apply_status(self, body: dict[str, Any]) -> None:
        self.tries += 1
        if self.failures:
            raise self.failures.pop(0)
        self.taken.append(body)


def seconds_of(client: Client) -> float:
    """How long it took."""

    async def main() -> float:
        await say_completed(client, Identity("n", "j"), "uid", random.Random(0))  # type: ignore[arg-type]
        return asyncio.get_running_loop().time()

    return run_virtual(main())


@pytest.mark.parametrize(
    "failure", [AWAY, NoCredentials("apply /x", "no token"), Conflict("apply /x", "changed")]
)
@pytest.mark.parametrize("failures", [0, 1, 3])
def test_it_is_said_of_this_very_job_once_the_server_is_there(failures: int, failure: Exception) -> None:
    client = Client(*[failure] * failures)
    seconds_of(client)
    [body] = client.taken
    assert body["metadata"] == {"name": "j", "namespace": "n", "uid": "uid"}
    assert body["status"] == {"training": {"completed": True}}
    assert client.tries == failures + 1


def test_a_server_that_stays_away_holds_the_driver_for_seconds(caplog: pytest.LogCaptureFixture) -> None:
    client = Client(*[AWAY] * 1000)
    assert seconds_of(client) == 20
    assert client.tries > 3 and not client.taken
    assert "the server is away" in caplog.text


def test_a_refusal_is_not_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    client = Client(Forbidden("apply /x", "not allowed"))
    seconds_of(client)
    assert (client.tries, client.taken) == (1, [])
    assert "not allowed" in caplog.text


def test_an_earlier_word_is_taken_back_by_whoever_gave_it() -> None:
    client = Client(AWAY)

    async def main() -> None:
        await take_back_completed(client, Identity("n", "j"), "uid", random.Random(0))  # type: ignore[arg-type]

    run_virtual(main())
    [body] = client.taken
    assert body["status"] == {"training": {"completed": False}}


@pytest.mark.parametrize(
    ("status", "before"),
    [
        ({"training": {"completed": True}}, True),
        ({"training": {"completed": False}}, False),
        ({"training": {"step": 1}}, False),
        ({"training": "x"}, False),
        ("x", False),
        (None, False),
    ],
)
def test_what_an_earlier_attempt_said(status: Any, before: bool) -> None:
    assert completed_before({"status": status}) is before
    assert completed_before({}) is False

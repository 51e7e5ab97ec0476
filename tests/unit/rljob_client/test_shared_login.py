"""One login, for whoever asks."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from rljob_client.credentials import CredentialsError
from rljob_client.identity import Identity
from rljob_client.shared_login import COMMAND_PACE, SharedLogin


class Held:
    """A login that waits until the test lets it go on; gives one identity after the other."""

    def __init__(self, *outcomes):
        self.outcomes = list(outcomes)
        self.begun = threading.Semaphore(0)
        self.go_on = threading.Semaphore(0)
        self.times = 0

    def __call__(self):
        self.times += 1
        self.begun.release()
        assert self.go_on.acquire(timeout=30.0)
        outcome = self.outcomes[self.times - 1]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


NEW = Identity("new")


async def within(seconds, login):
    async with asyncio.timeout(seconds):
        return await login.identity()


def test_a_login_outlives_the_event_loop_that_began_it():
    """As of a process that has one loop after the other."""
    held = Held(NEW)
    login = SharedLogin(held, COMMAND_PACE)
    for _ in range(3):
        with pytest.raises(TimeoutError):
            asyncio.run(within(0.1, login))
    with ThreadPoolExecutor(2) as threads:
        waiting = [threads.submit(asyncio.run, within(30.0, login)) for _ in range(2)]
        held.go_on.release()
        assert [future.result(30.0) for future in waiting] == [NEW, NEW]
    assert held.times == 1


async def test_what_is_still_valid_is_used_while_the_next_login_is_under_way():
    now, held = [0.0], Held(NEW)
    old = Identity("old", lifetime=3600.0)
    login = SharedLogin(held, COMMAND_PACE, lambda: now[0], first=old)
    now[0] = 3545.0
    assert [await login.identity() for _ in range(5)] == [old] * 5
    # Whoever wants the newest waits for it.
    newest = asyncio.create_task(login.identity(newest=True))
    held.go_on.release()
    assert await newest is NEW
    assert await login.identity() is NEW
    assert held.times == 1


async def test_a_login_that_fails_leaves_what_is_still_valid():
    now, held = [0.0], Held(CredentialsError("no network"))
    old = Identity("old", lifetime=3600.0)
    login = SharedLogin(held, COMMAND_PACE, lambda: now[0], first=old)
    now[0] = 3599.9
    held.go_on.release()
    assert await login.identity(newest=True) is old
    now[0] = 3600.0
    with pytest.raises(CredentialsError, match="no network"):
        await login.identity()
    assert held.times == 1


async def test_a_defect_is_told_to_all_who_wait_without_its_text(monkeypatch):
    told = []
    monkeypatch.setattr(threading, "excepthook", told.append)
    held = Held(KeyError("hidden"))
    login = SharedLogin(held, COMMAND_PACE)
    waiting = asyncio.gather(*(login.identity() for _ in range(3)), return_exceptions=True)
    held.go_on.release()
    assert [str(error) for error in await waiting] == ["the login failed: KeyError"] * 3


async def test_a_process_that_may_not_have_another_thread_says_so(monkeypatch):
    def start(thread):
        raise RuntimeError("can't start new thread")

    now = [0.0]
    login = SharedLogin(lambda: NEW, COMMAND_PACE, lambda: now[0])
    with monkeypatch.context() as patch, pytest.raises(CredentialsError, match="may not have another thread"):
        patch.setattr(threading.Thread, "start", start)
        await login.identity()
    now[0] = 1.0
    assert await login.identity() is NEW

"""Accounts of engines that are gone."""

from rljob_runtime.routing.requests import RequestKey
from tests.support.simulated.routed import Engines


def test_an_engine_that_is_gone_is_known_until_nothing_is_on_it() -> None:
    book = Engines([[100, 100], [100]]).book
    book.remove(0)
    assert [engine.number for engine in book.members()] == [1]
    book.interrupted(book.request(RequestKey(0, 0)), 5)
    assert book.engines[0].count == 1 and book.engines[0].gone
    book.finished(book.request(RequestKey(1, 0)), 100)
    assert list(book.engines) == [1]


def test_an_engine_that_is_gone_is_known_until_it_keeps_no_place() -> None:
    book = Engines([[], [100]]).book
    request = book.request(RequestKey(0, 0))
    book.move(request, book.engines[0], False)
    book.remove(0)
    assert book.engines[0].kept == 1
    book.unkeep(request)
    assert list(book.engines) == [1]


def test_an_idle_engine_that_is_gone_is_forgotten() -> None:
    book = Engines([[], [100]]).book
    book.remove(0)
    assert list(book.engines) == [1]
    book.check()

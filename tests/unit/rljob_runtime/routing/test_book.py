"""What is known of engines, those that are gone too, and of requests."""

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
    assert set(book.engines[0].arriving) == {request.key}
    book.unkeep(request)
    assert list(book.engines) == [1]


def test_an_idle_engine_that_is_gone_is_forgotten() -> None:
    book = Engines([[], [100]]).book
    book.remove(0)
    assert list(book.engines) == [1]
    book.check()


def test_late_news_of_one_request_does_not_hide_that_of_another() -> None:
    book = Engines([[100], [100]]).book
    gone, runs = RequestKey(7, 0), RequestKey(1, 0)
    assert book.progress({gone: 9, runs: 3}) == [book.request(runs)]
    assert book.request(runs).tokens == 3
    # No news: as many as were known.
    assert book.progress({runs: 3}) == []

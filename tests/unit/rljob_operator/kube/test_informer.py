"""What becomes of objects that cannot be read, beside others that can."""

from random import Random

import pytest

from rljob_client.client import Change
from rljob_client.objects import Item, ListMeta, ObjectMeta, Page
from rljob_client.resources import PODS
from rljob_operator.kube.informer import Informer, Selection
from rljob_operator.kube.observer import KubeObserver


def item(name, value):
    return Item(ObjectMeta(name=name, namespace="default", labels={"value": value}))


class Server:
    """A list of one page."""

    def __init__(self, listed):
        self._listed = listed

    async def pages(self, *_):
        yield Page(ListMeta("1"), self._listed)


NOBODY = "owner_of"


def number(found):
    return int(found.metadata.labels["value"])


CASES = {
    "no projection": ([item("a", "1"), item("b", "x"), item("c", "3")], [], {"a": 1, "c": 3}),
    "no owner": ([item("a", "1"), item("b", NOBODY), item("c", "3")], [], {"a": 1, "c": 3}),
    "it stays as it was": ([item("a", "1")], [("MODIFIED", item("a", "x"))], {"a": 1}),
    "until it is readable": (
        [item("a", "1")],
        [("MODIFIED", item("a", "x")), ("MODIFIED", item("a", "2"))],
        {"a": 2},
    ),
    "or gone": ([item("a", "1")], [("MODIFIED", item("a", "x")), ("DELETED", item("a", "x"))], {}),
}


@pytest.mark.parametrize(("listed", "changes", "known"), CASES.values(), ids=CASES)
async def test_the_others_are_known_and_it_is_told_once(listed, changes, known, caplog):
    def owner_of(found):
        return {NOBODY: {}}.get(found.metadata.labels["value"], {"": "all"})[""]

    again = [("MODIFIED", each) for each in listed if not each.metadata.labels["value"].isdecimal()]
    informer = Informer(
        Server(listed),
        Selection(PODS, Item, owner_of, number),
        lambda owner: None,
        KubeObserver(),
        Random(0),
    )
    await informer._list()
    for kind, found in again + changes:
        informer._take(Change(kind, "2", found))
    assert {name: value for (_, name), value in informer.of("all").items()} == known
    assert caplog.text.count("cannot be read, and stays as it was") == 1

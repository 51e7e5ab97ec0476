"""Events that the API server does not take: what is counted, and what the log says."""

import logging
from random import Random

import pytest

from rljob_client.client import ClientSettings
from rljob_client.errors import Forbidden, NoSuchResource, NotFound, Refusal
from rljob_operator.kube.client import ApiClient
from rljob_operator.kube.event_recorder import EventRecorder, Happening, ObjectReference
from rljob_operator.kube.observer import KubeObserver

MATH = ObjectReference("rljob.dev/v1alpha1", "RLJob", "gone", "math", "1")
DELETED = Happening("Normal", "Deleted", "Deleting", "the job's pods are gone")
ENDS = "namespace gone is being terminated"
ENDING = Refusal(403, "Forbidden", ENDS, (("NamespaceTerminating", ENDS),))
ENDED = Refusal(404, "NotFound", 'namespaces "gone" not found', about_object=True)


class Wire:
    """An API server that refuses one Event after the other."""

    def __init__(self, error, refusal):
        self.calls = []
        self._error, self._refusal = error, refusal

    async def send(self, call, timeout):
        self.calls.append(call)
        raise self._error(str(call), self._refusal.message, self._refusal)


class Outcomes(KubeObserver):
    def __init__(self):
        self.told = []

    def event_reported(self, outcome):
        self.told.append(outcome)


@pytest.mark.parametrize(
    ("error", "refusal", "outcome", "level"),
    [
        # With a namespace that goes, the job and all its Events go too: nobody is there to read them.
        (Forbidden, ENDING, "dropped", "DEBUG"),
        (NotFound, ENDED, "dropped", "DEBUG"),
        (Forbidden, Refusal(403, "Forbidden", "events is forbidden"), "failed", "WARNING"),
        (Forbidden, Refusal(403, "Forbidden", "exceeded quota"), "failed", "WARNING"),
        (NoSuchResource, Refusal(404, "NotFound", "not served"), "failed", "WARNING"),
    ],
)
async def test_an_event_that_is_refused(caplog, error, refusal, outcome, level):
    observer, wire = Outcomes(), Wire(error, refusal)
    recorder = EventRecorder("rljob-operator-7c9f", observer, Random(0))
    with caplog.at_level(logging.DEBUG, "rljob_operator"):
        recorder.start(ApiClient(wire, observer, ClientSettings("f"), Random(0)))
        recorder.record(MATH, DELETED)
        await recorder.stop(60)
    assert observer.told == [outcome]
    (line,) = caplog.records
    assert line.levelname == level and line.exc_info is None
    assert line.getMessage().startswith("event Deleted was not written: ")
    assert refusal.message in line.getMessage() and "\n" not in line.getMessage()
    # It is not tried again.
    assert len(wire.calls) == 1


async def test_the_next_one_is_written_all_the_same(caplog):
    class Namespaces(Wire):
        async def send(self, call, timeout):
            if "/namespaces/gone/" in call.path:
                return await super().send(call, timeout)
            return b"{}"

    observer = Outcomes()
    recorder = EventRecorder("rljob-operator-7c9f", observer, Random(0))
    recorder.record(MATH, DELETED)
    recorder.record(ObjectReference("v1", "ConfigMap", "stays", "math", "2"), DELETED)
    recorder.start(ApiClient(Namespaces(Forbidden, ENDING), observer, ClientSettings("f"), Random(0)))
    await recorder.stop(60)
    assert observer.told == ["dropped", "created"]
    assert caplog.text == ""

"""Events, requests and steps, in short: for tests of the analysis."""

from rljob_runtime.trace.analyse.windows import Window
from rljob_runtime.trace.record.event_log import Event


def event(
    name: str, start: float, end: float, worker: str = "fast-0", step: int = 0, **extra: object
) -> Event:
    return Event(name, start, end - start, step, worker, worker.split("-")[0], dict(extra))


def generated(
    request: str, start: float, end: float, finish: str = "stop", worker: str = "fast-0", tokens: int = 10
) -> Event:
    uid = int(request.split(".")[0])
    return event("generate", start, end, worker, uid=uid, request=request, tokens=tokens, finish=finish)


def windows(*seconds: float) -> list[Window]:
    found, at = [], 0.0
    for step, length in enumerate(seconds):
        found.append(Window(step, at, at + length))
        at += length
    return found

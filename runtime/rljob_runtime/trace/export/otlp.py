"""Events as spans of OpenTelemetry, in the JSON encoding of its protocol (OTLP); pure.

Guarantees: every span has an id of its own and lies in the trace of its step, whose root is the step; ids are
the same each time that a run is exported; times are whole nanoseconds, and a span does not end before it
began.

Sources: "OTLP File Exporter" and "JSON Protobuf Encoding" of the OpenTelemetry specification: ids are
hexadecimal, 64-bit integers are texts, enumerations are numbers.
"""

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, TypeAlias

from rljob_runtime.step_numbers import step_number
from rljob_runtime.trace.analyse.windows import Window
from rljob_runtime.trace.record.event_log import STATES, Event, WorkerInfo

TracesData: TypeAlias = dict[str, Any]
"""A line of the file, and what an OTLP receiver takes at /v1/traces."""

_INTERNAL = 1
"""SPAN_KIND_INTERNAL."""
_JOB = "job"


class Spans:
    """Makes spans of a run's events."""

    def __init__(self, name: str, windows: Sequence[Window], workers: Iterable[WorkerInfo]) -> None:
        """`name`: the run's. `windows`: the times of its steps."""
        self._name = name
        self._run = f"{name}/{windows[0].start if windows else 0}"
        self._windows = windows
        self._steps = {window.step for window in windows}
        self._workers = {worker.worker: worker for worker in workers}
        self._made = 0

    def of_steps(self) -> TracesData:
        """The root span of each step."""
        spans = [
            self._span(window.step, self._root(window.step), _name(window), window.start, window.end)
            | {"attributes": _attributes({"step": window.step})}
            for window in self._windows
        ]
        return self._of_worker(_JOB, _JOB, spans)

    def of_events(self, events: Sequence[Event]) -> TracesData | None:
        """The spans of events of one worker; None where they are none. What was so in a time, and was not
        done by the worker, is a figure and no span."""
        spans = [self._of_event(event) for event in events if event.event not in STATES]
        return self._of_worker(events[0].worker, events[0].pool, spans) if spans else None

    def _of_event(self, event: Event) -> dict[str, Any]:
        self._made += 1
        own = _identity(8, self._run, "span", self._made)
        span = self._span(event.step, own, event.event, event.start, event.end)
        if event.step in self._steps:
            span["parentSpanId"] = self._root(event.step)
        return span | {"attributes": _attributes({"step": event.step, **event.extra})}

    def _span(self, step: int, own: str, name: str, start: float, end: float) -> dict[str, Any]:
        began = _nanoseconds(start)
        return {
            "traceId": _identity(16, self._run, "trace", step),
            "spanId": own,
            "name": name,
            "kind": _INTERNAL,
            "startTimeUnixNano": str(began),
            "endTimeUnixNano": str(max(began, _nanoseconds(end))),
        }

    def _root(self, step: int) -> str:
        return _identity(8, self._run, "step", step)

    def _of_worker(self, worker: str, pool: str, spans: Sequence[dict[str, Any]]) -> TracesData:
        told: dict[str, Any] = {
            "service.name": "rljob",
            "service.namespace": self._name,
            "service.instance.id": worker,
            "rljob.pool": pool,
        }
        if (info := self._workers.get(worker)) is not None:
            told |= {"host.name": info.host, "process.pid": info.pid}
        scope = {"scope": {"name": "rljob"}, "spans": list(spans)}
        return {"resourceSpans": [{"resource": {"attributes": _attributes(told)}, "scopeSpans": [scope]}]}


def _name(window: Window) -> str:
    return f"step {step_number(window.step)}"


def _attributes(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    # What is not known is left out: an attribute has a value.
    return [
        {"key": key, "value": found} for key, value in values.items() if (found := _value(value)) is not None
    ]


def _value(value: Any) -> dict[str, Any] | None:
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case str():
            return {"stringValue": value}
        case list() | tuple():
            return {"arrayValue": {"values": [_value(each) or {} for each in value]}}
        case dict():
            return {"kvlistValue": {"values": _attributes(value)}}
        case _:
            return None


def _identity(size: int, *what: object) -> str:
    """So many bytes that say what is meant, in hexadecimal; never zero, which is no id."""
    return blake2b("/".join(map(str, what)).encode(), digest_size=size).hexdigest()


def _nanoseconds(seconds: float) -> int:
    # Rounded to microseconds: a float of seconds since the epoch has no more.
    return round(seconds * 1e6) * 1000

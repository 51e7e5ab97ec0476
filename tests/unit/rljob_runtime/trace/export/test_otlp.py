"""A run's folder as spans of OpenTelemetry: by the protocol's own messages, and taken by a receiver."""

import base64
import json
import threading
import urllib.request
from collections import Counter
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from rljob_runtime.cli import main
from rljob_runtime.run_folder import Begin, held
from rljob_runtime.trace.analyse.event_files import Tally, read_blocks
from rljob_runtime.trace.analyse.windows import Window
from rljob_runtime.trace.export.export import NothingToExport, export_trace
from rljob_runtime.trace.export.otlp import Spans
from rljob_runtime.trace.record.event_log import STATES, Event, WorkerInfo
from tests.support.jobs import job
from tests.support.runtime.synthetic_run import Job, write_run


def message(line: str) -> ExportTraceServiceRequest:
    """A line as the protocol's message, whose fields it must have and no others. Ids are hexadecimal there,
    and base64 in the JSON of protobuf alone."""
    document = json.loads(line)
    for each in document["resourceSpans"]:
        for scope in each["scopeSpans"]:
            for span in scope["spans"]:
                for key in ("traceId", "spanId", "parentSpanId"):
                    if key in span:
                        span[key] = base64.b64encode(bytes.fromhex(span[key])).decode()
    return json_format.ParseDict(document, ExportTraceServiceRequest())


def exported(folder: Path) -> list[ExportTraceServiceRequest]:
    export_trace(folder, folder / "trace.otlp.jsonl", "otlp")
    return [message(line) for line in (folder / "trace.otlp.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("otlp") / "run", Job(steps=8, restart_at=6))


def test_each_event_is_a_span_in_the_trace_of_its_step(run: Path) -> None:
    spans = [
        span
        for request in exported(run)
        for each in request.resource_spans
        for scope in each.scope_spans
        for span in scope.spans
    ]
    events = [event for block in read_blocks(run / "events", Tally()) for event in block]
    done = [event for event in events if event.event not in STATES]
    roots = {span.span_id: span for span in spans if span.name.startswith("step ")}
    assert sorted(root.name for root in roots.values()) == [f"step {step}" for step in range(1, 9)]
    assert Counter(span.name for span in spans if span.span_id not in roots) == Counter(
        event.event for event in done
    )
    assert len({span.span_id for span in spans}) == len(spans)
    for span in spans:
        assert (len(span.trace_id), len(span.span_id)) == (16, 8)
        assert span.end_time_unix_nano >= span.start_time_unix_nano
        if span.parent_span_id:
            assert roots[span.parent_span_id].trace_id == span.trace_id
    assert len({span.trace_id for span in roots.values()}) == 8


def test_who_did_it_is_the_resource(run: Path) -> None:
    who = set()
    for request in exported(run):
        (each,) = request.resource_spans
        told = {pair.key: pair.value.string_value for pair in each.resource.attributes}
        assert (told["service.name"], told["service.namespace"]) == ("rljob", "run")
        who.add((told["service.instance.id"], told["rljob.pool"]))
    assert {("job", "job"), ("driver", "driver"), ("trainer-0", "trainer")} <= who


def test_a_span_says_what_the_event_says() -> None:
    extra = {"uid": 7, "finish": "stop", "for_long": True, "phases": {"queue": 0.25}, "rewards": [1.0, None]}
    spans = Spans("math", [Window(3, 1.0, 3.0)], [WorkerInfo(1, "fast-0", "fast", "here", 41)])
    found = spans.of_events([Event("generate", 1.5, 0.25, 3, "fast-0", "fast", extra)])
    assert found is not None
    (each,) = message(json.dumps(found)).resource_spans
    (span,) = each.scope_spans[0].spans
    assert (span.start_time_unix_nano, span.end_time_unix_nano) == (1_500_000_000, 1_750_000_000)
    told: dict[str, Any] = {pair.key: pair.value for pair in span.attributes}
    assert (told["uid"].int_value, told["step"].int_value, told["finish"].string_value) == (7, 3, "stop")
    assert told["for_long"].bool_value
    assert told["phases"].kvlist_value.values[0].value.double_value == 0.25
    assert [value.WhichOneof("value") for value in told["rewards"].array_value.values] == [
        "double_value",
        None,
    ]
    host = {pair.key: pair.value for pair in each.resource.attributes}
    assert (host["host.name"].string_value, host["process.pid"].int_value) == ("here", 41)


def test_an_event_without_a_step_has_no_parent_and_a_clock_that_went_back_no_negative_time() -> None:
    found = Spans("math", [], []).of_events([Event("idle", 2.0, -1.0, 9, "driver", "driver", {})])
    assert found is not None
    (span,) = message(json.dumps(found)).resource_spans[0].scope_spans[0].spans
    assert span.parent_span_id == b"" and span.start_time_unix_nano == span.end_time_unix_nano


def test_figures_are_no_spans() -> None:
    states = [Event(state, 1.0, 1.0, 0, "fast-0", "fast", {}) for state in sorted(STATES)]
    assert Spans("math", [], []).of_events(states) is None


def test_the_same_run_has_the_same_ids(run: Path) -> None:
    assert exported(run) == exported(run)


def test_a_run_without_events_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(NothingToExport):
        export_trace(tmp_path, tmp_path / "trace.otlp.jsonl", "otlp")
    assert list(tmp_path.iterdir()) == []


class Receiver(BaseHTTPRequestHandler):
    """Takes what is posted as an OTLP receiver does, and refuses what is none."""

    spans = 0

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        taken = self.path == "/v1/traces" and self.headers["Content-Type"] == "application/json"
        request = message(body)
        Receiver.spans += sum(len(each.scope_spans[0].spans) for each in request.resource_spans)
        self.send_response(200 if taken else 400)
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        """Nothing."""


def test_the_command_writes_lines_that_a_receiver_takes(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    (tmp_path / "job.yaml").write_text(json.dumps(job()))
    with held(folder, (tmp_path / "job.yaml").read_bytes(), Begin.NEW) as found:
        found.begin()
    (folder / "events").symlink_to(run / "events")
    assert main(["trace", "export", str(folder), "--format", "otlp"]) == 0
    said = capsys.readouterr().out
    file = folder / "trace.otlp.jsonl"
    server = HTTPServer(("127.0.0.1", 0), Receiver)
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    try:
        for line in file.read_bytes().splitlines():
            request = urllib.request.Request(
                f"http://127.0.0.1:{server.server_port}/v1/traces", line, {"Content-Type": "application/json"}
            )
            with urllib.request.urlopen(request, timeout=10) as answer:
                assert answer.status == 200
    finally:
        server.shutdown()
        serving.join()
        server.server_close()
    assert said == (
        f"{file}: {Receiver.spans} spans; each line is a request for an OTLP receiver's /v1/traces\n"
    )

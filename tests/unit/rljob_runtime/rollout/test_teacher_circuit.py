"""When requests go to a server that fails: all, one at a time, or none any more."""

import pytest

from rljob_runtime.rollout.teacher_circuit import FAILURES, PAUSES, PROBES, Circuit, Permit, patience_of

OPEN = "f" * FAILURES
"""f: a request fails; a: one is answered; p: a probe begins; F: it fails; W: it is cancelled; o: a request
fails that was sent before; +: 100 s pass."""


def told(events: str, patience: float = 600.0) -> tuple[str, list[str]]:
    """The state after these events, and what changed on the way."""
    circuit, now, changes = Circuit(patience), 0.0, []
    permit: Permit | None = None
    for event in events:
        change: str | None = None
        match event:
            case "f" | "o":
                change = circuit.failed(Permit(), now)
            case "a":
                seconds = circuit.answered(now)
                change = None if seconds is None else f"closed after {seconds:g}"
            case "p":
                permit = circuit.ask()
                assert permit is not None and permit.probe
            case "F":
                assert permit is not None
                change = circuit.failed(permit, now)
            case "W":
                assert permit is not None
                circuit.withdrawn(permit)
            case "+":
                now += 100.0
        if change is not None:
            changes.append(change)
    return circuit.state, changes


@pytest.mark.parametrize(
    ("events", "state", "changes"),
    [
        ("", "closed", []),
        (OPEN[1:], "closed", []),
        (OPEN[1:] + "af", "closed", []),
        (OPEN, "open", ["opened"]),
        (OPEN + "p", "probing", ["opened"]),
        (OPEN + "po", "probing", ["opened"]),
        (OPEN + "pF", "open", ["opened"]),
        (OPEN + "pW", "open", ["opened"]),
        (OPEN + "pFp", "probing", ["opened"]),
        (OPEN + "+pa", "closed", ["opened", "closed after 100"]),
        # One that was sent before is answered while the probe is on its way, which then fails.
        (OPEN + "paF", "closed", ["opened", "closed after 0"]),
        (OPEN + "pa" + OPEN, "open", ["opened", "closed after 0", "opened"]),
        # The probe of an earlier time says nothing of the one that is on its way.
        (OPEN + "pa" + OPEN + "F", "open", ["opened", "closed after 0", "opened"]),
        (OPEN + "pF+++++pFpF", "open", ["opened"]),
        (OPEN + "pF++++++pFpF", "open", ["opened", "lost"]),
        # Nobody had anything to ask for long.
        (OPEN + "++++++++++pF", "open", ["opened"]),
        (OPEN + "++++++pWpWpW", "open", ["opened"]),
    ],
)
def test_states(events: str, state: str, changes: list[str]) -> None:
    assert PROBES == 3
    assert told(events) == (state, changes)


def test_one_request_is_sent_at_a_time_while_it_fails_after_growing_pauses() -> None:
    circuit = Circuit(1e9)
    for _ in range(FAILURES):
        permit = circuit.ask()
        assert permit is not None and not permit.probe and permit.after == 0.0
        circuit.failed(permit, 0.0)
    after = []
    for _ in range(len(PAUSES) + 2):
        permit = circuit.ask()
        assert permit is not None and circuit.ask() is None
        after.append(permit.after)
        circuit.failed(permit, 0.0)
    assert after == [*PAUSES, PAUSES[-1], PAUSES[-1]]


@pytest.mark.parametrize(("timeout", "patience"), [(1.0, 600.0), (120.0, 600.0), (1200.0, 6000.0)])
def test_patience(timeout: float, patience: float) -> None:
    assert patience_of(timeout) == patience

"""How often engines tell how far their requests are. Pure."""

_SHORTEST_SECONDS = 0.5
_REPORTS_PER_SECOND = 150
"""Most reports that the driver is to take in. One of a hundred requests costs it about 0.3 ms, from the
socket to the router, so that all of them take about a twentieth of its time."""


def report_seconds(engines: int) -> float:
    """Time between two reports of an engine, in a job that has so many."""
    return max(_SHORTEST_SECONDS, engines / _REPORTS_PER_SECOND)

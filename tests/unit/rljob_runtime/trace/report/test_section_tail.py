"""The report on the long tail."""

import json
import re
from html import unescape

import pytest

from rljob_runtime.trace.analyse.analysis import analyse
from rljob_runtime.trace.record.metrics_log import Metrics
from rljob_runtime.trace.report.section_tail import long_tail
from tests.support.runtime.events import generated, windows


def test_all_responses_have_a_share_however_often_they_were_taken_out() -> None:
    """Twelve responses, the n-th of which took n attempts."""
    events = []
    for uid in range(12):
        events += [
            generated(f"{uid}.0#{uid * 20 + stay}", stay, stay + 1.0, "stop" if stay == uid else "abort")
            for stay in range(uid + 1)
        ]
    page = long_tail(analyse(Metrics(), [], windows(20.0), [], [(0, events)]))
    figure = page[page.index("Attempts per response") :]
    data = re.search(r'data-hover="([^"]+)"', figure)
    assert data is not None
    names, shares = zip(
        *((name, values) for name, _, values in json.loads(unescape(data[1]))["s"]), strict=True
    )
    assert names == ("1", "2", "3", "4", "5", "others")
    assert sum(values[0] for values in shares) == pytest.approx(100.0, abs=0.2)

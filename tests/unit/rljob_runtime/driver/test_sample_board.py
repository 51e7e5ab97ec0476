"""What TensorBoard shows of what the model says."""

import re
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.plugin_event_accumulator import TENSORS, EventAccumulator

from rljob_runtime.driver.sample_board import SampleBoard, markdown
from rljob_runtime.trace.record.metrics_log import Interruption, MetricsLog
from rljob_runtime.trace.record.tensorboard_file import TENSORBOARD_FOLDER
from tests.support.runtime.said import line


def test_few_steps_of_many_are_shown() -> None:
    shown: list[int] = []

    def write(step: int, texts: Mapping[str, str]) -> None:
        shown.append(step)

    board = SampleBoard(write)
    for step in range(10_000):
        board([line(step)])
    assert shown[:22] == [*range(20), 20, 21] and shown == sorted(shown) and len(shown) < 180
    assert all(later <= 1.05 * earlier + 1 for earlier, later in pairwise(shown[20:]))
    # Training went back.
    board([line(500)])
    board([])
    assert shown[-1] == 500


def test_texts_are_read_by_tensorboard_and_superseded_with_the_curves(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path)
    board = SampleBoard(log.show)
    log.begin(0)
    for step in range(3):
        board([line(step, reward=reward, index=index) for index, reward in enumerate((0.5, 0.0, 1.0, None))])
    log.begin(2, Interruption("trainer lost", None))
    board([line(2, response="again")])
    log.close()
    found = EventAccumulator(str(tmp_path / TENSORBOARD_FOLDER))
    found.Reload()
    assert sorted(found.Tags()[TENSORS]) == ["says/best", "says/longest", "says/random", "says/worst"]
    assert [event.step for event in found.Tensors("says/best")] == [1, 2, 3]
    assert [event.step for event in found.Tensors("says/worst")] == [1, 2]
    first, *_, last = (event.tensor_proto.string_val[0].decode() for event in found.Tensors("says/best"))
    assert "    reward 1 ·" in first and "    ab<eos>" in first and "    again" in last
    assert found.SummaryMetadata("says/best").plugin_data.plugin_name == "text"


@pytest.mark.parametrize(
    "text",
    [
        "![x](http://elsewhere/x.png)", "a\n\n![x](http://elsewhere/x.png)\n", "\n\n\n```\n![x](http://e/x.png)",
        "<img src='http://e/x.png'>", "\r![x](http://e/x.png)", "\x85![x](http://e/x.png)", "~~~\n[a](http://b)",
        "| a |\n|---|\n| ![x](http://e/x.png) |", "\t- [a](http://b)", "    \n[a]: http://b\n\n[a]", "# a",
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:html5lib's sanitizer is deprecated")
def test_what_a_model_writes_stays_code(text: str) -> None:
    from tensorboard.plugin_util import markdown_to_safe_html

    for row in (line(0, response=text), line(0, prompt=text), line(0, reward=None, failure=text)):
        shown = markdown_to_safe_html(markdown(row))
        assert set(re.findall(r"<(/?\w+)", shown)) == {"pre", "code", "/pre", "/code"}

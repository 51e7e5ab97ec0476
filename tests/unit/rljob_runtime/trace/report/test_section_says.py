"""The report's section on what the model says: what stands in it, that it is inert, that it stays small."""

from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest

from rljob_runtime.trace.record.evaluation_log import EVALUATION_SAMPLES_FILE
from rljob_runtime.trace.record.sample_log import SAMPLES_FILE, SampleLine, SampleLog
from rljob_runtime.trace.report.page import write_report
from rljob_runtime.trace.report.section_says import says
from tests.support.runtime.said import line
from tests.support.runtime.synthetic_run import Job, write_run

ELEMENTS = {"p", "b", "h3", "h4", "div", "small", "pre", "code", "details", "summary", "input", "span"}
ATTRIBUTES = {"class", "id", "type", "placeholder", "aria-label"}


class Elements(HTMLParser):
    """Every element, attribute and text of a page, as a browser finds them outside of scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.attributes: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.attributes += [name for name, _ in attrs]

    def handle_comment(self, data: str) -> None:
        raise AssertionError("a comment")

    def handle_decl(self, decl: str) -> None:
        assert decl == "doctype html"

    def handle_data(self, data: str) -> None:
        self.text += data


def parsed(markup: str) -> Elements:
    found = Elements()
    found.feed(markup)
    found.close()
    return found


def steps(count: int) -> list[SampleLine]:
    return [
        line(
            step,
            uid=4 * step + row,
            row=row,
            index=index,
            reward=step / 100 + index,
            response=f"answer {step}",
        )
        for step in range(count)
        for row in (2, 3 + step)
        for index in range(4)
    ]


def test_it_shows_the_newest_step_the_same_prompt_and_a_search() -> None:
    text = parsed(says(steps(30), 32)).text
    for words in (
        "240 responses of 30 steps are kept", "Step 30", "best: reward 3.29", "worst: reward 0.29",
        "longest: ", "random: ", "The same prompt over time", "Row 2 of the data", "step 1: reward 2",
        "step 30: reward 2.29", "Search", "120 responses, spread over the steps",
    ):  # fmt: skip
        assert words in text, words


def evaluations(count: int, names: tuple[str, ...] = ("gsm8k", "hard")) -> list[SampleLine]:
    """Of each set two prompts, one of which is learned and one forgotten."""
    return [
        line(
            10 * number,
            uid=2 * place + row,
            row=row,
            reward=number / 10 if row == 0 else -number / 10,
            response=f"{name} {row} {number}",
            evaluation=name,
            first_version=number,
            last_version=number,
        )
        for number in range(count)
        for place, name in enumerate(names)
        for row in (0, 1)
    ]


def test_evaluations_stand_beside_what_is_trained() -> None:
    text = parsed(says(steps(3), 32, evaluations(20))).text
    for words in (
        "Step 3", "Evaluation of gsm8k, after step 190", "Evaluation of hard, after step 190",
        "40 responses of 20 evaluations are kept", "rljob samples . --step N --best",
        "rljob samples . --evaluation hard --step N --best",
        "best: reward 1.9 · evaluation of gsm8k", "worst: reward -1.9 · evaluation of gsm8k",
        "gsm8k: the prompt whose reward rose most", "hard: the prompt whose reward fell most",
        "initial weights: reward 0 · evaluation of gsm8k · 3 tokens, ended by itself · prompt 0 (row 0",
        "after step 190: reward -1.9", "version 19", "hard 1 19",
        "84 responses, spread over the steps and evaluations",
    ):  # fmt: skip
        assert words in text, words


def test_evaluations_alone_before_a_step_is_trained() -> None:
    text = parsed(says([], 32, evaluations(1))).text
    assert "no step has been trained" in text
    assert "Evaluation of hard, initial weights" in text and "of 1 evaluation are kept" in text
    assert "rose" not in text and "4 responses, spread" in text


@pytest.mark.parametrize(
    ("kept", "words"), [(0, "samplesPerStep is 0"), (32, "no step has been trained"), (None, "no step")]
)
def test_where_nothing_is_kept_it_says_why(kept: int | None, words: str) -> None:
    assert words in parsed(says([], kept)).text


HOSTILE = [
    "</script><script>alert(1)</script>", "</pre></div><img src=x onerror=alert(1)>", "<!--", "<!doctype x>",
    '"><svg onload=alert(1)>', "' onmouseover='alert(1)", "<style>*{display:none}</style>", "]]>",
    "&lt;b&gt;", "<a href=javascript:alert(1)>x</a>", "\u202e\x00\x1b[2J",
    "</title></style></textarea><iframe src=//x>",
]  # fmt: skip


@pytest.mark.parametrize("field", ["prompt", "response", "engine", "failure"])
def test_whatever_a_model_writes_is_text(tmp_path: Path, field: str) -> None:
    run = write_run(tmp_path, Job(steps=4))
    plain = parsed(write_report(run).read_text())
    rows = [
        line(step, uid=step, row=1, **{field: text}, **({"reward": None} if field == "failure" else {}))
        for step, text in enumerate(HOSTILE)
    ]
    held_out = [msgspec.structs.replace(row, evaluation="gsm8k") for row in rows]
    for kept, file in ((rows, SAMPLES_FILE), (held_out, EVALUATION_SAMPLES_FILE)):
        log = SampleLog(run, file=file)
        log.begin(0)
        log.write(kept)
    section = parsed(says(rows, 32, held_out))
    assert set(section.elements) <= ELEMENTS
    assert set(section.attributes) <= ATTRIBUTES
    whole = parsed(write_report(run).read_text())
    for tag in ("script", "img", "svg", "style", "iframe", "a"):
        # The page's own, and no more of them.
        assert whole.elements.count(tag) == plain.elements.count(tag)
    for text in HOSTILE[:10]:
        assert text in whole.text
    assert "\\u202e\\x00\\x1b[2J" in whole.text


def test_its_size_is_bounded() -> None:
    few = len(says(steps(40), 32))
    assert len(says(steps(400), 32)) < 1.1 * few
    long = [line(step, uid=step, response="word " * 20_000, prompt="ask " * 20_000) for step in range(200)]
    assert len(says(long, 32)) < 500_000
    assert "[... 98,000 characters left out ...]" in says(long, 32)
    sets = tuple(f"set_{place}" for place in range(8))
    assert len(says([], 32, evaluations(400, sets))) < 1.1 * len(says([], 32, evaluations(40, sets)))
    # Each character becomes six.
    worst = [line(step, uid=step, response="'" * 100_000, prompt='"' * 100_000) for step in range(200)]
    assert len(says(worst, 32)) < 2_500_000
    of_sets = [
        msgspec.structs.replace(row, response="'" * 100_000, prompt='"' * 100_000)
        for row in evaluations(30, sets)
    ]
    assert len(says([], 32, of_sets)) < 3_000_000

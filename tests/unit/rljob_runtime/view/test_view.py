"""What a person sees while a job runs, as text, at several widths."""

import io
from dataclasses import replace

import pytest
from rich.console import Console, ConsoleDimensions

from rljob_runtime.view import Header, Progress, Summary, make_view
from rljob_runtime.view.live import FRAMES_PER_SECOND, LiveView, render, render_header
from rljob_runtime.view.plain import PlainView
from rljob_runtime.view.progress import RecentReward, arrow, decimal, duration, ending, flow, learning, pack

HEADER = Header(
    "copy-grpo", "cpu", {"trainer": 1, "fast": 1, "heavy": 0}, "vllm 0.32.0", "tiny Qwen3 (0.12 M)", 1
)
PROGRESS = Progress(
    HEADER, step=128, total_steps=320, reward=0.571, reward_trend=0.01, loss=0.021, kl=0.004, version=128,
    staleness_mean=0.4, staleness_max=1, queue_depth=24, queue_capacity=64, tokens_per_second=5940,
    busy={"fast": 0.92, "trainer": 0.61}, seconds_left=84,
)  # fmt: skip


def shown(progress: Progress, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, force_terminal=False, legacy_windows=False)
    console.print(render_header(progress, width))
    console.print(render(progress, width))
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_at_120_columns() -> None:
    assert shown(PROGRESS, 120) == [
        "  copy-grpo   accelerator cpu   trainer 1 · fast 1   engine vllm 0.32.0   "
        "model tiny Qwen3 (0.12 M)   bound 1 version",
        "  step 128/320  ━━━━━━━━━━━                   reward 0.571 ▲   loss 0.021   kl 0.004   version 128",
        "  staleness 0.4 mean, 1 max   queue 24/64   tokens/s 5,940   fast 92 % busy   "
        "trainer 61 %   left 1:24",
    ]  # fmt: skip


def test_masked_tokens_are_shown_where_steps_do_not_wait() -> None:
    assert "0.4 mean, 1 max   masked 16 %   queue" in shown(replace(PROGRESS, masked_share=0.162), 120)[2]


def test_at_80_columns_no_part_is_broken() -> None:
    assert shown(PROGRESS, 80) == [
        "  copy-grpo   accelerator cpu   trainer 1 · fast 1   engine vllm 0.32.0",
        "  model tiny Qwen3 (0.12 M)   bound 1 version",
        "  step 128/320  ━━━━━━━━━━━",
        "  reward 0.571 ▲   loss 0.021   kl 0.004   version 128",
        "  staleness 0.4 mean, 1 max   queue 24/64   tokens/s 5,940   fast 92 % busy",
        "  trainer 61 %   left 1:24",
    ]


@pytest.mark.parametrize(
    ("width", "line"),
    [(44, "  step 128/320  ━━━━━━━━━━━"), (30, "  step 128/320  ━━━━━╸"), (20, "  step 128/320")],
)
def test_the_bar_has_what_the_step_leaves_it(width: int, line: str) -> None:
    assert line in shown(PROGRESS, width)


def test_what_is_not_known_is_not_invented() -> None:
    lines = shown(Progress(HEADER), 80)[2:]
    assert lines == ["  step 0  reward –   loss –   version 0", "  queue 0   tokens/s 0"]


def test_before_the_first_step_the_activity_stands_alone() -> None:
    assert shown(replace(PROGRESS, activity="starting 2 engines"), 80)[2:] == ["  starting 2 engines …"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "–"), (0, "0:00"), (84, "1:24"), (3599.6, "1:00:00"), (7510, "2:05:10"), (273600, "3 d 4 h")],
)
def test_durations(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0.0, "0.000"),
        (0.5714, "0.571"),
        (-0.02, "-0.020"),
        (0.00001, "1e-05"),
        (-1e-12, "-1e-12"),
        (-1e-18, "0.000"),
        (-0.0, "0.000"),
        (12345.6, "1.235e+04"),
    ],
)
def test_decimals(value: float | None, text: str) -> None:
    assert decimal(value) == text


@pytest.mark.parametrize(("trend", "sign"), [(0.1, "▲"), (-0.1, "▼"), (0.0, ""), (1e-9, "")])
def test_arrows(trend: float, sign: str) -> None:
    assert arrow(trend) == sign


@pytest.mark.parametrize(
    ("width", "lines"),
    [(20, ["aaaa  bbbb  cccc"]), (10, ["aaaa  bbbb", "cccc"]), (3, ["aaaa", "bbbb", "cccc"])],
)
def test_pack(width: int, lines: list[str]) -> None:
    assert pack(["aaaa", "bbbb", "cccc"], "  ", width) == lines


def terminal() -> Console:
    return Console(file=io.StringIO(), width=100, force_terminal=True, legacy_windows=False)


def text_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_live_view_draws_at_most_so_many_frames_a_second() -> None:
    console, now = terminal(), [0.0]
    view = LiveView(console, clock=lambda: now[0])
    view.start(PROGRESS)
    for step in range(1000):
        now[0] = (step + 1) / 100
        view.update(replace(PROGRESS, step=step))
    drawn = text_of(console).count("reward 0.571")
    view.finish(Summary(320, 10.0))
    assert 1 < drawn <= 10 * FRAMES_PER_SECOND + 1


def test_a_terminal_that_becomes_narrower_is_begun_anew_with_the_header_and_the_messages() -> None:
    console, now = terminal(), [0.0]
    view = LiveView(console, clock=lambda: now[0])
    view.start(PROGRESS)
    view.message("engine fast-0 lost; 3 requests moved")
    cleared = "\x1b[2J"
    for width, screens in ((60, 1), (100, 1), (45, 2)):
        console.size = ConsoleDimensions(width, 30)
        now[0] += 1
        view.update(replace(PROGRESS, step=width))
        screen = text_of(console).split(cleared)[1:]
        assert len(screen) == screens, f"at {width}: a wider terminal wraps nothing"
        if width != 100:
            parts = ("reward 0.571", "copy-grpo", "fast-0 lost")
            assert [screen[-1].count(part) for part in parts] == [1, 1, 1], f"at {width}"
    view.message("all is well")
    view.finish(Summary(320, 10.0))
    screen = text_of(console).split(cleared)[-1]
    assert screen.index("fast-0 lost") < screen.index("all is well") < screen.index("done: 320 steps")
    assert "\x1b[?25h" in screen.rsplit("reward", 1)[1], "the cursor is back"


def test_messages_stay_and_the_end_says_where_things_are() -> None:
    console = terminal()
    view = LiveView(console, clock=lambda: 0.0)
    view.start(PROGRESS)
    view.message("engine fast-0 lost; 3 requests moved")
    view.update(replace(PROGRESS, step=319))
    view.finish(
        Summary(
            320, 234.2, RecentReward(0.997, 10, 10), lost="Not trained: 3 responses (x).",
            report="runs/x/report.html", checkpoint="runs/x/checkpoints/320", model="runs/x/model",
        )
    )  # fmt: skip
    text = text_of(console)
    assert "engine fast-0 lost; 3 requests moved" in text
    assert "step 319/320" in text
    assert "done: 320 steps, reward 0.997 (mean of the last 10 steps), 234 s." in text
    assert "Report: runs/x/report.html" in text and "Checkpoint: runs/x/checkpoints/320" in text
    assert "Not trained: 3 responses (x)." in text and "Model: runs/x/model" in text
    assert text.count("\x1b[?25h") == 1, "the cursor is back"


def test_the_command_to_paste_and_the_paths_have_no_line_break_of_ours() -> None:
    report = f"{'/deep' * 50}/report.html"
    console, out = terminal(), io.StringIO()
    hint = f"Go on with: .venv/bin/rljob run {'/deep' * 50}/job.yaml --output '/a b' --resume"
    for view in (LiveView(console), PlainView(out)):
        view.finish(Summary(4, 10.0, outcome="stopped", hint=hint, report=report))
    for whole in (hint, report):
        assert whole in text_of(console) and whole in out.getvalue()


def test_a_job_that_fails_before_it_starts_has_an_end_too() -> None:
    console, out = terminal(), io.StringIO()
    for view in (LiveView(console), PlainView(out)):
        view.message("data is empty")
        view.finish(Summary(0, 0.4, outcome="failed"))
    for text in (text_of(console), out.getvalue()):
        assert "data is empty" in text and "failed: 0 steps, 0 s." in text


@pytest.mark.parametrize(
    ("steps", "reward", "told"),
    [
        (1, RecentReward(0.5, 1, 1), "1 step, reward 0.500,"),
        (0, None, "0 steps,"),
        (1, RecentReward(None, 0, 1), "1 step, no reward,"),
        (3, RecentReward(None, 0, 3), "3 steps, no reward in the last 3 steps,"),
        (3, RecentReward(0.5, 1, 3), "3 steps, reward 0.500 (1 of the last 3 steps; the others have none),"),
        (
            12, RecentReward(0.5, 9, 10),
            "12 steps, reward 0.500 (mean of 9 of the last 10 steps; the others have none),",
        ),
    ],
)  # fmt: skip
def test_the_closing_line_says_which_steps_reward_it_is(
    steps: int, reward: RecentReward | None, told: str
) -> None:
    assert ending(Summary(steps, 12.3, reward)) == [f"done: {told} 12 s."]


def plain_lines(steps: list[tuple[int, float]]) -> list[str]:
    """Log lines for updates at (step, time)."""
    out, now = io.StringIO(), [0.0]
    view = PlainView(out, clock=lambda: now[0], time_of_day=lambda: "12:00:00")
    view.start(replace(PROGRESS, step=0))
    for step, at in steps:
        now[0] = at
        view.update(replace(PROGRESS, step=step))
    return [line.removeprefix("12:00:00  ") for line in out.getvalue().splitlines()[1:]]


@pytest.mark.parametrize(
    ("steps", "written"),
    [
        ([(step, step * 0.1) for step in range(1, 31)], [1, 10, 20, 30]),
        ([(step, step * 40.0) for step in range(1, 5)], [1, 2, 3, 4]),
        ([(1, 1.0), (1, 100.0), (2, 101.0)], [1, 2]),
        ([(5, 0.1), (320, 0.2)], [5, 320]),
        ([(8, 0.1), (23, 0.2), (24, 0.3)], [8, 23]),
    ],
    ids=["every 10 steps", "slow steps", "no step, no line", "first and last", "jumps"],
)
def test_log_lines(steps: list[tuple[int, float]], written: list[int]) -> None:
    assert [int(line.split()[1].split("/")[0]) for line in plain_lines(steps)] == written


def test_a_log_line_holds_all_numbers() -> None:
    assert plain_lines([(128, 1.0)]) == [
        "step 128/320  reward 0.571 ▲  loss 0.021  kl 0.004  version 128  staleness 0.4 mean, 1 max  "
        "queue 24/64  tokens/s 5,940  fast 92 % busy  trainer 61 %  left 1:24"
    ]


def test_the_distance_to_a_teacher_is_told() -> None:
    assert "kl 0.004  teacher kl 0.250  version" in "  ".join(learning(replace(PROGRESS, teacher_kl=0.25)))


def test_requests_are_told_of_beside_the_busy_shares() -> None:
    told = "   ".join(flow(replace(PROGRESS, running={"fast": 120, "heavy": 16}, waiting=8)))
    assert "trainer 61 %   requests 136 running, 8 waiting   left 1:24" in told


def test_an_activity_is_logged_once() -> None:
    out = io.StringIO()
    view = PlainView(out, time_of_day=lambda: "12:00:00")
    view.start(replace(PROGRESS, step=0, activity="starting engines"))
    view.update(replace(PROGRESS, step=0, activity="starting engines"))
    assert out.getvalue().count("starting engines") == 1


@pytest.mark.parametrize(
    ("terminal", "live", "kind"), [(True, True, LiveView), (True, False, PlainView), (False, True, PlainView)]
)
def test_the_view_fits_the_output(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, live: bool, kind: type[object]
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    out = io.StringIO()
    monkeypatch.setattr(out, "isatty", lambda: terminal)
    assert isinstance(make_view(out, live), kind)


def test_a_terminal_that_cannot_be_redrawn_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    out = io.StringIO()
    monkeypatch.setattr(out, "isatty", lambda: True)
    assert isinstance(make_view(out, live=True), PlainView)

"""What `rljob samples` prints."""

import io
import json
import os
import sys
from pathlib import Path

import pytest
import yaml

from rljob_runtime.cli import main
from rljob_runtime.trace.record.evaluation_log import EVALUATION_SAMPLES_FILE
from rljob_runtime.trace.record.sample_log import SAMPLES_FILE, SampleLine, SampleLog
from tests.support.jobs import job
from tests.support.runtime.said import line


def run_of(folder: Path, *rows: SampleLine, kept: int = 32) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / ".lock").touch()
    (folder / "job.yaml").write_text(yaml.safe_dump(job({"training.profiling.samplesPerStep": kept})))
    log = SampleLog(folder)
    log.begin(0)
    for row in rows:
        log.write([row])
    return folder


STEPS = [
    line(step, uid=4 * step + group, row=group, index=index, reward=0.25 * index, tokens=3 + step + index)
    for step in (0, 1, 2, 5)
    for group in range(4)
    for index in range(3)
]


def printed(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(["samples", *map(str, arguments)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(["samples", *map(str, arguments)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    return err


def headings(text: str) -> list[str]:
    return [row for row in text.splitlines() if row.startswith("step ")]


def test_one_response(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    said = line(128, uid=7, row=3, response="one\n  two" + " x" * 50 + "<eos>", advantage=1.25, tokens=1042)
    assert printed(capsys, run_of(tmp_path / "run", said)) == (
        "step 129 · best · reward 1 · advantage +1.25 · 1,042 tokens, ended by itself · prompt 7 (row 3,\n"
        "  response 0) · fast-0 · version 2 to 3, trained with 3 · 1.5 s\n"
        "  prompt │ <bos>ab<sep>\n"
        "  says   │ one⏎\n"
        "         │   two" + " x" * 42 + "\n"
        "         │ " + " x" * 8 + "<eos>\n"
    )


def test_the_parts_of_a_reward(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parts, metrics = {"correct": 1.0, "format": 0.25, "brief": -0.0}, {"steps": 12.0, "depth": None}
    run = run_of(tmp_path / "run", line(0, reward=1.25, reward_parts=parts, reward_metrics=metrics))
    words = " ".join(printed(capsys, run).split())
    assert "reward 1.25 (correct 1, format 0.25, brief 0) · steps 12, depth none · advantage" in words
    (row,) = map(json.loads, printed(capsys, run, "--json").splitlines())
    assert (row["reward_parts"], row["reward_metrics"]) == (parts, metrics)


def test_a_run_of_an_older_release_has_no_parts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_of(tmp_path / "run", line(0))
    file = run / SAMPLES_FILE
    row = json.loads(file.read_text())
    del row["reward_parts"], row["reward_metrics"]
    file.write_text(json.dumps(row) + "\n")
    assert "reward 1 · advantage" in printed(capsys, run)


def test_a_response_without_a_reward(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = line(
        0, reward=None, failure="error: Key\n\x1b[31mError", tokens=1, finish="length", first_version=3
    )
    text = printed(capsys, run_of(tmp_path / "run", said))
    for words in (
        "no reward (error: Key \\x1b[31mError)",
        "1 token, cut off at the limit",
        "version 3, trained",
    ):
        assert words in " ".join(text.split())


def test_the_newest_step_at_a_glance(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_of(tmp_path / "run", *STEPS)
    kinds = [heading.split(" · ")[:2] for heading in headings(printed(capsys, run))]
    assert kinds == [["step 6", kind] for kind in ("best", "worst", "longest", "random", "random")]
    assert len(headings(printed(capsys, run, "--count", 9))) == 9
    assert len(headings(printed(capsys, run, "--count", 1))) == 1
    assert {heading[:6] for heading in headings(printed(capsys, run, "--step", 2))} == {"step 2"}


def test_orders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_of(tmp_path / "run", *STEPS)
    rewards = {
        order: [
            json.loads(row)["reward"] for row in printed(capsys, run, f"--{order}", "--json").splitlines()
        ]
        for order in ("best", "worst", "longest", "random")
    }
    assert rewards["best"] == rewards["longest"] == [0.5] * 4 + [0.25] * 4 + [0.0] * 4
    assert rewards["worst"] == rewards["best"][::-1]
    assert sorted(rewards["random"]) == rewards["worst"]


def test_prompts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_of(tmp_path / "run", *STEPS)
    group = printed(capsys, run, "--prompt", 6)
    assert len(headings(group)) == 3 and group.count("│ <bos>ab<sep>") == 1, "the prompt once"
    over_time = headings(printed(capsys, run, "--row", 2))
    assert [heading.split(" · ")[0] for heading in over_time] == [
        f"step {s}" for s in (1, 2, 3, 6) for _ in "abc"
    ]
    best = headings(printed(capsys, run, "--row", 2, "--best", "--count", 4))
    assert len(best) == 4 and all("reward 0.5" in heading for heading in best)


def test_json_is_what_stands_in_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_of(tmp_path / "run", *STEPS)
    lines = printed(capsys, run, "--step", 2, "--random", "--json").splitlines()
    in_file = (run / SAMPLES_FILE).read_text().splitlines()
    assert len(lines) == 12 and set(lines) <= set(in_file)


HOSTILE = "\x1b[2J\x1b]0;owned\x07\r\u202e\x00\x9b</script>\nstep 9 · best"


@pytest.mark.parametrize("columns", [40, 60, 80, 100, 120])
@pytest.mark.parametrize("field", ["prompt", "response", "engine", "failure"])
def test_the_terminal_does_nothing_that_a_model_says(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    field: str,
    columns: int,
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    rewarded = {"reward": None} if field == "failure" else {}
    text = printed(capsys, run_of(tmp_path / "run", line(0, **{field: HOSTILE}, **rewarded)))
    assert not any((ord(char) < 32 and char != "\n") or 127 <= ord(char) < 160 for char in text)
    assert "\u202e" not in text and "\\x1b" in text
    assert not [row for row in text.splitlines()[1:] if row.startswith("step ")], "no heading of its own"


def test_wide_characters_take_two_cells(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the terminal would break the lines anew, into what looks like no part of the box."""
    monkeypatch.setenv("COLUMNS", "31")
    said = line(0, prompt="日" * 11, response="a" + "🙂" * 12)
    rows = printed(capsys, run_of(tmp_path / "run", said)).splitlines()
    assert rows[-4:] == [
        "  prompt │ " + "日" * 10,
        "         │ 日",
        "  says   │ a" + "🙂" * 9,
        "         │ " + "🙂" * 3,
    ]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (b'{"step": 3, "ti', "1 line is no response, and is left out"),
        (b"\xff\n[]\n{}\n", "3 lines are no responses, and are left out"),
    ],
)
@pytest.mark.parametrize("options", [[], ["--json"], ["--row", "0"]])
def test_lines_that_are_damaged_are_told_beside_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: bytes, words: str, options: list[str]
) -> None:
    run = run_of(tmp_path / "run", line(0), line(1))
    whole = printed(capsys, run, *options)
    with (run / SAMPLES_FILE).open("ab") as file:
        file.write(damage)
    assert main(["samples", str(run), *options]) == 0
    assert capsys.readouterr() == (whole, f"rljob: {run / SAMPLES_FILE}: {words}.\n")


@pytest.mark.parametrize("char", ["\x9b", "\x7f", "\u202e", "\x1b", "\u2028"])
def test_json_does_nothing_to_a_terminal_either(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], char: str
) -> None:
    """Some take U+009B for the beginning of a command."""
    text = printed(capsys, run_of(tmp_path / "run", line(0, response=f"a{char}2J")), "--json")
    assert char not in text
    assert json.loads(text)["response"] == f"a{char}2J"


def test_a_reader_that_has_read_enough_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(tmp_path / "run", *STEPS)
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        assert main(["samples", str(run)]) == 0


def test_an_old_terminal_gets_what_it_has_characters_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, shown = run_of(tmp_path / "run", line(0, response="日\n")), io.BytesIO()
    with io.TextIOWrapper(shown, encoding="ascii") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        assert main(["samples", str(run)]) == 0
        assert b"\\u65e5\\u23ce" in shown.getvalue()


def test_errors_say_what_there_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_of(tmp_path / "run", *STEPS)
    assert refused(capsys, tmp_path / "none").startswith(
        f"rljob: {tmp_path / 'none'} holds no run; give the "
    )
    assert (
        refused(capsys, run, "--step", 9)
        == f"rljob: {run} has samples of 4 steps, 1 to 6, and not of step 9.\n"
    )
    assert refused(capsys, run, "--step", 4) == (
        f"rljob: {run} has samples of 4 steps, 1 to 6 (of older ones not all are kept; nearest: 3 and 6), "
        "and not of step 4.\n"
    )
    assert refused(capsys, run, "--prompt", 999) == (
        f"rljob: {run}: nothing is kept of --prompt 999; there are 0, 1, 2, 3, 4, 5, 6, 7, ….\n"
    )
    assert "--row 9; there are 0, 1, 2, 3.\n" in refused(capsys, run, "--row", 9)
    none = run_of(tmp_path / "off", kept=0)
    assert refused(capsys, none) == (
        f"rljob: {none} keeps no samples: training.profiling.samplesPerStep is 0 in {none / 'job.yaml'}.\n"
    )
    early = run_of(tmp_path / "early")
    assert refused(capsys, early) == (
        f"rljob: {early} has no samples yet: samples.jsonl is written once a step is trained.\n"
    )
    for option, name in ((), "samples.jsonl"), (("--evaluation",), "evaluation_samples.jsonl"):
        (early / name).write_text('{"step": 0}\n{"step": 1}\n')
        assert refused(capsys, early, *option) == (
            f"rljob: {early / name} has 2 lines, and none is a response as this release writes them: the "
            "file is damaged, or of another release.\n"
        )


@pytest.mark.parametrize(
    "arguments", [["--step", "-1"], ["--step", "x"], ["--best", "--worst"], ["--count", "0"]]
)
def test_arguments_that_mean_nothing(tmp_path: Path, arguments: list[str]) -> None:
    with pytest.raises(SystemExit):
        main(["samples", str(tmp_path), *arguments])


def evaluated(folder: Path) -> Path:
    run = run_of(folder, line(9))
    log = SampleLog(folder, file=EVALUATION_SAMPLES_FILE)
    log.begin(0)
    for step in (0, 10):
        log.write([line(step, uid=uid, evaluation=name) for uid, name in enumerate(("easy", "easy", "hard"))])
    return run


def test_evaluations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = evaluated(tmp_path / "run")
    (found,) = headings(printed(capsys, run, "--evaluation", "hard"))
    assert " ".join(found.split()).startswith(
        "step 10 · best · reward 1 · evaluation of hard · 3 tokens, ended"
    )
    text = printed(capsys, run, "--evaluation", "--json", "--worst", "--step", "0")
    rows = [json.loads(row) for row in text.splitlines()]
    assert sorted((row["step"], row["uid"], row["evaluation"]) for row in rows) == [
        (0, 0, "easy"), (0, 1, "easy"), (0, 2, "hard"),
    ]  # fmt: skip
    over_time = printed(capsys, run, "--evaluation", "easy", "--row", "1", "--json")
    assert [json.loads(row)["step"] for row in over_time.splitlines()] == [0, 10]
    assert [json.loads(row)["step"] for row in printed(capsys, run, "--json").splitlines()] == [9]
    assert "trained with" not in printed(capsys, run, "--evaluation")


def test_evaluations_that_are_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_of(tmp_path / "run", line(9))
    assert "has no samples of evaluations: evaluation_samples.jsonl is written" in refused(
        capsys, run, "--evaluation"
    )
    run = evaluated(tmp_path / "other")
    assert "has no samples of an evaluation set odd; there are easy, hard." in refused(
        capsys, run, "--evaluation", "odd"
    )

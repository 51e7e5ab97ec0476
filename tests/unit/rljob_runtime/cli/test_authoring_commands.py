"""Commands that write a manifest: what is printed where, what is written, and exit codes."""

import json
import sys
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rljob_runtime.authoring.answers import EXAMPLE_TASKS
from rljob_runtime.cli import main
from rljob_runtime.manifest.load import read

SCRIPT = """\
MODEL=$HOME/models/qwen
python3 -m verl.trainer.main_ppo \\
    data.train_files=/data/train.parquet \\
    actor_rollout_ref.model.path=$MODEL \\
    trainer.n_gpus_per_node=2
"""


def script(folder: Path, text: str | bytes = SCRIPT) -> Path:
    path = folder / "train.sh"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_from_verl_prints_the_manifest_and_lists_the_rest(tmp_path, capsys):
    path = script(tmp_path)
    assert main(["from-verl", str(path), "--set", "HOME=/home/me"]) == 0
    out, err = capsys.readouterr()
    (tmp_path / "job.yaml").write_text(out)
    assert read(tmp_path / "job.yaml").job.spec.training.model.path == "/home/me/models/qwen"
    assert err.startswith(f"{path}: 2 of 3 keys became fields.\n\nTo look at, ")
    assert f"\n{path}:5  trainer.n_gpus_per_node=2: trainer and engines have devices of their own" in err


def test_from_verl_reads_standard_input_and_prints(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(SCRIPT.encode())))
    monkeypatch.chdir(tmp_path)
    assert main(["from-verl", "-", "--output", "-"]) == 0
    out, err = capsys.readouterr()
    assert list(tmp_path.iterdir()) == []
    assert "Made by `rljob from-verl -`" in out
    assert err.startswith("<stdin>: ")
    assert "\n<stdin>:4  actor_rollout_ref.model.path=" in err


def test_from_verl_names_the_line_of_what_it_cannot_know(tmp_path, capsys):
    path = script(tmp_path)
    assert main(["from-verl", str(path)]) == 0
    out, err = capsys.readouterr()
    assert "path: TO-BE-SET" in out
    assert f"{path}:4  actor_rollout_ref.model.path=$HOME/models/qwen: left out: HOME has no value" in err


def test_from_verl_leaves_a_file_as_it_is_unless_told(tmp_path, capsys):
    path, output = script(tmp_path), tmp_path / "job.yaml"
    output.write_text("mine")
    arguments = ["from-verl", str(path), "--output", str(output), "--set", "HOME=/home/me"]
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert (out, output.read_text()) == ("", "mine")
    assert err == f"rljob: {output} exists already: name another file with --output, or add --force.\n"
    assert main([*arguments, "--force"]) == 0
    assert read(output).job.metadata.name == "from-verl"
    assert capsys.readouterr().err.startswith(f"{output}: written. Next: rljob validate {output}\n")


def test_from_verl_into_a_folder_that_is_not_there(tmp_path, capsys):
    folder = tmp_path / "none"
    assert main(["from-verl", str(script(tmp_path)), "--output", str(folder / "job.yaml")]) == 2
    assert capsys.readouterr().err.startswith(f"rljob: the folder {folder} is not there: make it, or")


@pytest.mark.parametrize("command", ["new", "from-verl"])
@pytest.mark.parametrize("force", [[], ["--force"]])
def test_a_folder_is_told_as_such_where_a_file_is_to_be_written(
    tmp_path, capsys, monkeypatch, command, force
):
    monkeypatch.setattr(sys, "stdin", StringIO())
    what = [str(script(tmp_path))] if command == "from-verl" else ["--task", "copy", "--accelerator", "cpu"]
    assert main([command, *what, "--output", str(tmp_path), *force]) == 2
    assert capsys.readouterr().err == (
        f"rljob: {tmp_path} is a folder: name a file with --output, as {tmp_path / 'job.yaml'}.\n"
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "cannot be read: No such file or directory."),
        ("echo", "train.sh:1  no launch of verl found"),
        (
            "python3 -m verl.trainer.main_generation data.path=/d",
            "train.sh:1  verl.trainer.main_generation: it generates responses and trains nothing",
        ),
        (b"#\n# caf\xe9\n", "train.sh:2  is not UTF-8 text."),
        ("echo\n".encode("utf-16"), "train.sh:1  is UTF-16 text: write it as UTF-8."),
        ("\nx='", "train.sh:2  not a shell script: the ' that begins here is not closed."),
    ],
)
def test_from_verl_of_no_script(tmp_path, capsys, text, words):
    path = script(tmp_path, text) if text is not None else tmp_path / "train.sh"
    assert main(["from-verl", str(path)]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("value", ["HOME", "1=x", "=x"])
def test_a_variable_needs_a_name_and_a_value(tmp_path, capsys, value):
    with pytest.raises(SystemExit) as ended:
        main(["from-verl", str(script(tmp_path)), "--set", value])
    assert ended.value.code == 2
    assert f"must be NAME=VALUE (found {value})" in capsys.readouterr().err


class Terminal(StringIO):
    """Standard input of a person who types these lines."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("task", EXAMPLE_TASKS)
def test_new_writes_a_manifest_that_rljob_validate_accepts(tmp_path, capsys, monkeypatch, task):
    monkeypatch.setattr(sys, "stdin", StringIO())
    output = tmp_path / "job.yaml"
    assert main(["new", "--task", task, "--accelerator", "cpu", "--output", str(output)]) == 0
    assert capsys.readouterr() == ("", f"{output}: written. Next: rljob validate {output}\n")
    assert main(["validate", str(output)]) == 0


def test_new_asks_on_a_terminal_for_what_is_not_said(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", Terminal("cpu\n3\n\n"))
    assert main(["new", "--task", "reverse", "--name", "mine"]) == 0
    out, err = capsys.readouterr()
    (tmp_path / "job.yaml").write_text(out)
    job = read(tmp_path / "job.yaml").job
    assert (job.metadata.name, job.spec.pools.fast_rollout.replicas) == ("mine", 2)
    assert err.count("]: ") == 3


@pytest.mark.parametrize(
    ("task", "row", "typed", "fields"),
    [
        ("math", {"question": "1+1", "solution": "2"}, ["a", "question", "solution"],
         ("question", "solution")),
        ("math", {"question": "1+1", "answer": "2"}, ["question"], ("question", "answer")),
        ("math", {"prompt": "1+1", "answer": "2"}, [], ("prompt", "answer")),
        ("own", {"question": "1+1", "solution": "2"}, ["question"], ("question", "answer")),
    ],
)  # fmt: skip
def test_new_asks_for_fields_that_the_data_calls_otherwise(
    tmp_path, capsys, monkeypatch, task, row, typed, fields
):
    (tmp_path / "d.jsonl").write_text(json.dumps(row) + "\n")
    monkeypatch.setattr(
        sys, "stdin", Terminal("".join(f"{each}\n" for each in ["cpu", "2", "machine", *typed]))
    )
    output = tmp_path / "job.yaml"
    reward = ["--reward", "mine:right"] if task == "own" else []
    flags = ["--task", task, *reward, "--model", "m", "--data", "d.jsonl", "--output", str(output)]
    assert main(["new", *flags]) == 0
    data = read(output).job.spec.training.data
    assert (data.prompt_field, data.answer_field) == fields
    err = capsys.readouterr().err
    assert ("Field of the data that holds the prompt [question, " in err) == ("question" in typed)
    assert "--data d.jsonl" not in err


def test_new_without_a_terminal_says_what_it_needs(capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", StringIO("math\n"))
    assert main(["new", "--task", "math"]) == 2
    assert capsys.readouterr() == (
        "",
        "rljob: without a terminal nothing can be asked: give --model MODEL, --data DATA.\n",
    )


def test_new_without_any_standard_input(capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    assert main(["new"]) == 2
    assert "give --task TASK" in capsys.readouterr().err


def test_new_at_the_end_of_the_input_writes_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", Terminal("copy\n"))
    output = tmp_path / "job.yaml"
    assert main(["new", "--output", str(output)]) == 2
    assert capsys.readouterr().err.endswith("rljob: no more input; nothing was written.\n")
    assert not output.exists()


def test_new_asks_nothing_where_the_file_is_there(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", Terminal(""))
    output = tmp_path / "job.yaml"
    output.write_text("mine")
    assert main(["new", "--output", str(output)]) == 2
    assert capsys.readouterr().err.endswith(
        "exists already: name another file with --output, or add --force.\n"
    )
    assert output.read_text() == "mine"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (
            ["--task", "chess"],
            "rljob: --task must be one of math, own, copy, repeat, count, reverse (found chess).",
        ),
        (["--task", "copy", "--data", "x"], "rljob: leave --data out: it is for --task math and own."),
        (["--task", "copy", "--claim", "x"], "rljob: leave --claim out: it is for --where cluster."),
        (
            ["--task", "copy", "--where", "cluster", "--claim", "x", "--accelerators", "1"],
            "rljob: --where cluster needs --accelerators 2 or more: trainer and engine are pods of their "
            "own.",
        ),
    ],
)
def test_new_refuses_what_cannot_be(capsys, monkeypatch, flags, words):
    monkeypatch.setattr(sys, "stdin", StringIO())
    assert main(["new", *flags]) == 2
    assert capsys.readouterr().err == f"{words}\n"


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "qwen3", "max_position_embeddings": 128},
        {"model_type": "gemma3", "text_config": {"max_position_embeddings": 128}},
    ],
    ids=lambda config: config["model_type"],
)
def test_new_keeps_to_the_length_that_the_model_takes(tmp_path, capsys, monkeypatch, config):
    monkeypatch.setattr(sys, "stdin", StringIO())
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text(json.dumps(config))
    (tmp_path / "m" / "model.safetensors").touch()
    output = tmp_path / "job.yaml"
    assert main(["new", "--task", "math", "--model", "m", "--data", "d.jsonl", "--output", str(output)]) == 0
    assert read(output).job.spec.training.longest_sample_tokens == 128


def write_rows(folder: Path, kind: str, rows: int) -> str:
    """Data of so many rows; its name."""
    columns = {"prompt": ["1+1"] * rows, "answer": ["2"] * rows}
    path = folder / f"d.{kind}"
    if kind == "saved":
        datasets.Dataset.from_dict(columns).save_to_disk(path)
    elif kind == "folder":
        path.mkdir()
        pq.write_table(pa.table(columns), path / "train.parquet")
    elif kind == "jsonl":
        path.write_text('{"prompt": "1+1", "answer": "2"}\n' * rows)
    else:
        pq.write_table(pa.table(columns), path)
    return path.name


def new_math(folder: Path, data: str, *more: str) -> tuple[int, Path]:
    output = folder / "job.yaml"
    flags = ["--task", "math", "--model", "m", "--data", data, "--output", str(output), *more]
    return main(["new", *flags]), output


@pytest.mark.parametrize(
    ("kind", "rows", "batch", "steps"),
    [
        *((kind, 12, 12, 200) for kind in ("jsonl", "parquet", "saved", "folder")),
        ("jsonl", 0, 64, None),
        ("jsonl", 70, 64, 200),
        ("jsonl", 6399, 64, 200),
        ("jsonl", 6400, 64, None),
        ("jsonl", 7000, 64, None),
    ],
)
def test_new_trains_small_data_for_some_hundred_steps(tmp_path, monkeypatch, kind, rows, batch, steps):
    monkeypatch.setattr(sys, "stdin", StringIO())
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    code, output = new_math(tmp_path, write_rows(tmp_path, kind, rows))
    schedule = read(output).job.spec.training.schedule
    assert (code, schedule.prompts_per_batch, schedule.total_steps) == (0, batch, steps)
    assert schedule.epochs == (1 if steps is None else None)
    text = " ".join(output.read_text().replace("#", "").split())
    assert ("one epoch is" in text) == (steps is not None)
    if rows == 12:
        assert "the data has 12 prompts, so that one epoch is 1 step: too little to learn from." in text
        assert "trains each prompt about 200 times" in text


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "saved"])
def test_new_warns_of_fields_that_the_data_lack(tmp_path, capsys, monkeypatch, kind):
    monkeypatch.setattr(sys, "stdin", StringIO())
    data = write_rows(tmp_path, kind, 3)
    code, output = new_math(tmp_path, data, "--prompt-field", "promt")
    assert code == 0 and output.exists()
    told = [line for line in capsys.readouterr().err.splitlines() if f"--data {data}" in line]
    assert len(told) == 1 and told[0].startswith("rljob: warning: ")
    assert ' "promt". Did you mean prompt? It has: prompt, answer' in told[0]
    output.unlink()
    assert new_math(tmp_path, data, "--answer-field", "solution")[0] == 0
    assert f'rljob: warning: --data {data}: no field "solution". It has: prompt, answer.' in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize("data", ["d.jsonl", "./d", "a/b/c"])
def test_new_warns_of_paths_that_are_not_there(tmp_path, capsys, monkeypatch, data):
    monkeypatch.setattr(sys, "stdin", StringIO())
    code, _ = new_math(tmp_path, data)
    told = capsys.readouterr().err.splitlines()
    assert code == 0
    assert told[0].startswith("rljob: warning: --model m: ") and told[1].startswith(
        f"rljob: warning: --data {data}: "
    )


@pytest.mark.parametrize("name", ["d.JSONL", "d.Jsonl"])
def test_new_reads_a_file_whose_name_has_capitals(tmp_path, capsys, monkeypatch, name):
    """Some systems write the endings of names so."""
    monkeypatch.setattr(sys, "stdin", StringIO())
    (tmp_path / name).write_text('{"question": "1+1", "answer": "2"}\n')
    code, output = new_math(tmp_path, name)
    data = read(output).job.spec.training.data
    assert (code, data.jsonl is not None and data.jsonl.path) == (0, name)
    assert f"--data {name}: " in capsys.readouterr().err, "its field is called question"


@pytest.mark.parametrize("name", ["prompts", "d.ndjson", "d.jsonl.gz"])
def test_new_warns_of_a_file_that_no_format_is_known_of(tmp_path, capsys, monkeypatch, name):
    """It would be looked for on the hub."""
    monkeypatch.setattr(sys, "stdin", StringIO())
    (tmp_path / name).write_text('{"prompt": "1+1", "answer": "2"}\n')
    code, _ = new_math(tmp_path, name)
    assert code == 0
    assert f"rljob: warning: --data {name}: a file whose name ends in neither .jsonl nor .parquet" in (
        capsys.readouterr().err
    )


def test_new_does_not_warn_of_a_name_on_the_hub_or_of_what_is_there(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", StringIO())
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text('{"model_type": "qwen3"}')
    (tmp_path / "m" / "model.safetensors").touch()
    for data in ("org/name", write_rows(tmp_path, "jsonl", 3)):
        assert new_math(tmp_path, data, "--force")[0] == 0
    assert "warning" not in capsys.readouterr().err


def test_new_for_a_cluster_names_the_command_that_follows(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", StringIO())
    output = tmp_path / "job.yaml"
    flags = ["--task", "math", "--model", "m", "--data", "d.jsonl", "--where", "cluster", "--claim", "runs"]
    assert main(["new", *flags, "--output", str(output)]) == 0
    assert capsys.readouterr().err == f"{output}: written. Next: kubectl apply -f {output}\n"


def test_validate_refuses_what_is_still_to_be_set(tmp_path, capsys):
    output = tmp_path / "job.yaml"
    assert main(["from-verl", str(script(tmp_path)), "--output", str(output)]) == 0
    capsys.readouterr()
    line = next(n for n, text in enumerate(output.read_text().splitlines(), 1) if "TO-BE-SET" in text)
    assert main(["validate", str(output)]) == 2
    out, err = capsys.readouterr()
    assert f"{output}:{line}  spec.training.model.path: is still TO-BE-SET: set it" in out + err

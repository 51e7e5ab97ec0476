"""Commands that write a manifest: what is printed where, what is written, and exit codes."""

from pathlib import Path

import pytest

from rljob_runtime.cli import main
from rljob_runtime.manifest.load import read

SCRIPT = """\
MODEL=$HOME/models/qwen
python3 -m verl.trainer.main_ppo \\
    data.train_files=/data/train.parquet \\
    actor_rollout_ref.model.path=$MODEL \\
    trainer.n_gpus_per_node=2
"""


def script(folder: Path, text: str = SCRIPT) -> Path:
    path = folder / "train.sh"
    path.write_text(text)
    return path


def test_from_verl_prints_the_manifest_and_lists_the_rest(tmp_path, capsys):
    path = script(tmp_path)
    assert main(["from-verl", str(path), "--set", "HOME=/home/me"]) == 0
    out, err = capsys.readouterr()
    (tmp_path / "job.yaml").write_text(out)
    assert read(tmp_path / "job.yaml").job.spec.training.model.path == "/home/me/models/qwen"
    assert err.startswith(f"{path}: 3 of 3 keys became fields.") or f"{path}: " in err


def test_from_verl_names_the_line_of_what_it_cannot_know(tmp_path, capsys):
    path = script(tmp_path)
    assert main(["from-verl", str(path)]) == 0
    out, err = capsys.readouterr()
    assert "path: TO-BE-SET" in out
    assert f"{path}:4  actor_rollout_ref.model.path=$HOME/models/qwen: left out: HOME has no value" in err


def test_from_verl_leaves_a_file_as_it_is_unless_told(tmp_path, capsys):
    path, output = script(tmp_path), tmp_path / "job.yaml"
    output.write_text("mine")
    arguments = ["from-verl", str(path), "--output", str(output)]
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert (out, output.read_text()) == ("", "mine")
    assert err == f"rljob: {output} exists already: name another file with --output, or add --force.\n"
    assert main([*arguments, "--force"]) == 0
    assert read(output).job.metadata.name == "from-verl"
    assert capsys.readouterr().err.startswith(f"{output}: written. Next: rljob validate {output}\n")


def test_from_verl_into_a_folder_that_is_not_there(tmp_path, capsys):
    assert main(["from-verl", str(script(tmp_path)), "--output", str(tmp_path / "none" / "job.yaml")]) == 1
    assert capsys.readouterr().err.endswith("job.yaml cannot be written: No such file or directory.\n")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "cannot be read: No such file or directory."),
        ("echo", "train.sh:1  no launch of verl found"),
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

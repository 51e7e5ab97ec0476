"""Files of a verl launch whose place a variable says, and loggers."""

import pytest

from rljob_runtime.authoring.verl.convert import Conversion, convert
from rljob_runtime.authoring.verl.launch import read_launch
from tests.support.runtime.verl_launch import fields, told

HOME = "left out: HOME has no value in the script: give it with --set HOME=VALUE"


def from_home(*overrides: str, home: str | None = None) -> Conversion:
    """A launch whose files are below $HOME."""
    words = " ".join(f'"{override}"' for override in overrides)
    variables = {} if home is None else {"HOME": home}
    return convert(read_launch(f"python3 -m verl.trainer.main_ppo {words}\n", variables), "train.sh")


def test_files_below_a_variable_of_the_environment_are_told_with_the_flag_that_gives_it():
    overrides = ["data.train_files=$HOME/a.parquet", "data.val_files=$HOME/b.parquet", "trainer.test_freq=5"]
    conversion = from_home(*overrides)
    found = [(remark.subject, remark.words, remark.decide) for remark in conversion.remarks]
    assert ("data.train_files=$HOME/a.parquet", HOME, True) in found
    assert ("data.train_files=$HOME/a.parquet", "set spec.training.data.parquet.path", True) in found
    assert ("data.val_files=$HOME/b.parquet", HOME, True) in found
    assert all(decide for subject, _, decide in found if "_files" in subject)
    assert fields(conversion)["training.data.parquet.path"] == "TO-BE-SET"
    mended = from_home(*overrides, home="/home/me")
    assert fields(mended)["training.data.parquet.path"] == "/home/me/a.parquet"
    sets = fields(mended)["training.evaluation.sets"]
    assert [each["data"]["parquet"] for each in sets] == [{"path": "/home/me/b.parquet"}]
    assert not [subject for subject in told(mended) if "_files" in subject]


@pytest.mark.parametrize(
    ("name", "kind"),
    [("a.parquet", "parquet"), ("a.jsonl", "jsonl"), ("a.JSON", "jsonl"), ("a.JSONL", "jsonl")],
)
def test_a_file_is_in_the_field_that_its_name_says(name, kind):
    assert fields(from_home(f"data.train_files=/d/{name}"))[f"training.data.{kind}.path"] == f"/d/{name}"


def test_a_value_that_is_not_known_is_never_said_to_be_without_effect():
    (remark,) = [
        each for each in from_home("data.val_files=$HOME/b.parquet").remarks if "val_files" in each.subject
    ]
    assert (remark.words, remark.decide) == (HOME, True)


@pytest.mark.parametrize(("logger", "field"), [("wandb", "wandb.project"), ("mlflow", "mlflow.experiment")])
@pytest.mark.parametrize("project", [[], ["trainer.project_name=$PROJECT"]])
def test_a_logger_without_a_project_is_told(logger: str, field: str, project: list[str]):
    conversion = from_home(f"trainer.logger={logger}", *project)
    assert fields(conversion)[f"training.loggers.{field}"] == "TO-BE-SET"
    assert told(conversion)[f"trainer.logger={logger}"] == (
        f"set spec.training.loggers.{field}: no trainer.project_name is known"
    )
    if project:
        assert "--set PROJECT=VALUE" in told(conversion)[project[0]]

"""Data with images: refused by row and field, whatever form they have."""

import json
from pathlib import Path
from typing import Any

import datasets
import pyarrow
import pytest
from pyarrow import parquet

from rljob_api.data import Data
from rljob_runtime.data.errors import DataError
from rljob_runtime.data.sources import open_source

PART = {"type": "text", "text": "what is this?"}


def rows(value: Any) -> list[dict[str, Any]]:
    return [{"prompt": "a", "images": None}, {"prompt": "b", "images": value}]


def write(folder: Path, kind: str, records: list[dict[str, Any]]) -> Data:
    if kind == "jsonl":
        (folder / "p").write_text("".join(json.dumps(record) + "\n" for record in records))
    elif kind == "parquet":
        parquet.write_table(pyarrow.Table.from_pylist(records), folder / "p")
    else:
        datasets.Dataset.from_list(records).save_to_disk(folder / "p")
    return Data.model_validate({kind: {"name" if kind == "huggingFace" else "path": "p"}})


@pytest.mark.parametrize(
    ("kind", "place"), [("jsonl", "p:2"), ("parquet", "p row 1"), ("huggingFace", "row 1")]
)
@pytest.mark.parametrize("value", [["cat.png"], [{"bytes": "x", "path": None}]])
def test_a_column_of_images(tmp_path: Path, kind: str, place: str, value: Any) -> None:
    config = write(tmp_path, kind, rows(value))
    with pytest.raises(DataError, match=rf'{place}: field "images" has an image or alike: models of text'):
        open_source(config, tmp_path, 0, "")


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "huggingFace"])
def test_an_empty_column_and_one_for_the_reward_are_right(tmp_path: Path, kind: str) -> None:
    config = write(tmp_path, kind, rows([]))
    assert len(open_source(config, tmp_path, 0, "")) == 2
    (tmp_path / "named").mkdir()
    config = write(tmp_path / "named", kind, [{"prompt": "a", "image_url": "cat.png"}])
    named = config.model_copy(update={"reward_fields": ["image_url"]})
    assert open_source(named, tmp_path / "named", 0, "").row(0).fields == {"image_url": "cat.png"}


@pytest.mark.parametrize(
    ("part", "what"),
    [
        ({"type": "image_url", "image_url": {"url": "x"}}, "an image"),
        ({"type": "image"}, "an image"),
        ({"type": "input_audio"}, "an audio"),
        ({"type": "video"}, "a video"),
    ],
)
def test_a_message_with_an_image(tmp_path: Path, part: dict[str, Any], what: str) -> None:
    message = {"role": "user", "content": [PART, part]}
    (tmp_path / "p").write_text(json.dumps({"prompt": [message]}) + "\n")
    with pytest.raises(DataError, match=rf'p:1: field "prompt", message 0: field "content" has {what}: '):
        open_source(Data.model_validate({"jsonl": {"path": "p"}}), tmp_path, 0, "")

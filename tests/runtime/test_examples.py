"""The examples in folders: with the model and the data that they make, every manifest is valid."""

import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rljob_runtime.data.prompts import PromptSource
from rljob_runtime.data.tokenizer import build_tokenizer
from rljob_runtime.driver.held_out import held_out_sets
from rljob_runtime.manifest.checks import check
from rljob_runtime.manifest.load import read

EXAMPLES = Path(__file__).parents[2] / "examples"
MANIFESTS = sorted(path.relative_to(EXAMPLES).as_posix() for path in EXAMPLES.glob("*/*.yaml"))


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the examples, after the preparations that their pages name."""
    folder = tmp_path_factory.mktemp("user") / "examples"
    shutil.copytree(EXAMPLES, folder)
    for script in sorted(folder.glob("*/prepare.py")):
        command = [sys.executable, script.name]
        done = subprocess.run(
            command, cwd=script.parent, capture_output=True, text=True, check=False, timeout=240
        )
        assert done.returncode == 0, done.stderr
    # In place of the downloads that the manifests for GPUs name, which have rows for many steps.
    gsm8k, small = folder / "gsm8k", folder / "gsm8k" / "small"
    (gsm8k / "Qwen3-0.6B").symlink_to(small / "model")
    (folder / "lora" / "Qwen3-8B").symlink_to(small / "model")
    (gsm8k / "gsm8k" / "main").mkdir(parents=True)
    for split, times in (("train", 20), ("test", 1)):
        downloaded = gsm8k / "gsm8k" / "main" / f"{split}-00000-of-00001.parquet"
        pq.write_table(pa.concat_tables([pq.read_table(small / f"{split}.parquet")] * times), downloaded)
    return folder


@pytest.mark.parametrize("name", MANIFESTS)
def test_the_manifest_is_valid(prepared: Path, name: str) -> None:
    document = read(prepared / name)
    assert check(document) == ([], [])
    # What `check` looks at the first rows of, the job's start looks at as a whole.
    training, folder = document.job.spec.training, (prepared / name).parent
    tokenizer = build_tokenizer(training.tokenizer, folder, folder / (training.model.path or "."))
    trained = PromptSource(training.data, tokenizer, training.seed, folder)
    sets = held_out_sets(training, trained, tokenizer, folder)
    assert len(sets) == (len(training.evaluation.sets) if training.evaluation else 0)

"""Files of assumptions: what they may say, and what is told of a mistake."""

from pathlib import Path

import pytest

from rljob_runtime.manifest.assumptions import read_assumptions
from rljob_runtime.manifest.load import ManifestError
from rljob_runtime.simulate.assumptions import Assumptions


def write(folder: Path, text: str) -> Path:
    file = folder / "assume.yaml"
    file.write_text(text)
    return file


def test_what_is_not_said_has_its_default(tmp_path: Path) -> None:
    found, _ = read_assumptions(write(tmp_path, "engines: {fast: {fixedSeconds: 0.02}, lockstep: true}\n"))
    assert found.engines.fast.fixed_seconds == 0.02
    assert found.engines.lockstep
    assert found.trainer == Assumptions().trainer
    assert read_assumptions(write(tmp_path, "{}\n"))[0] == Assumptions()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lengths: {mean: 0}\n", ":1  lengths.mean: 0 is below the smallest allowed value 1"),
        ("trainer:\n  secondsPerTokens: 1e-4\n", ":2  trainer.secondsPerTokens: "),
        ("engines:\n  fast:\n    graphs: [8, 4]\n", ":3  engines.fast.graphs: graphs must be ascending"),
        ("engines: {fast: {kvTokens: 1000000000001}}\n", ":1  engines.fast.kvTokens: 1000000000001 is above"),
        ("engines: {fast: {graphs: [8, 1048577]}}\n", ":1  engines.fast.graphs[1]: 1048577 is above"),
        ("[1, 2]\n", ":1  the file must hold fields with values"),
        ("engines: [1]\n", ":1  engines: "),
        ("# Nothing yet.\n", ":1  the file is empty"),
        ("lengths: {mean: 5\n", "not YAML"),
        ("tools: {everyTokens: 5}\n", ":1  tools.seconds: must be set"),
        (
            "moves: {}\ntools:\n",
            ":2  tools: nothing is written behind it: write its everyTokens and seconds, or",
        ),
        ("engines:\n  heavy:\n", ":2  engines.heavy: nothing is written behind it"),
        ("engines:\n", ":1  engines: must be a mapping with fast, heavy, "),
    ],
)
def test_errors_name_file_line_and_field(tmp_path: Path, text: str, message: str) -> None:
    file = write(tmp_path, text)
    with pytest.raises(ManifestError) as error:
        read_assumptions(file)
    assert str(error.value).startswith(str(file))
    assert message in str(error.value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"none.yaml:1  cannot be read: No such file"):
        read_assumptions(tmp_path / "none.yaml")
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ManifestError, match="is UTF-16 text: write it as UTF-8"):
        read_assumptions(binary)


def test_the_file_of_the_documentation_says_what_the_defaults_are(tmp_path: Path) -> None:
    page = (Path(__file__).parents[4] / "docs" / "operations.md").read_text()
    block = page[page.index("## Simulate") :].split("```yaml\n")[1].split("```")[0]
    (found, _), default = read_assumptions(write(tmp_path, block)), Assumptions()
    assert found.trainer == default.trainer and found.moves == default.moves
    assert found.weight_sync_seconds == default.weight_sync_seconds and found.tools is None
    # Shortened there: the graphs; by the job: the lengths.
    assert found.engines.fast.model_copy(update={"graphs": None}) == default.engines.fast
    assert found.lengths.model_copy(update={"mean": None, "prompt_tokens": None}) == default.lengths

"""Folders of models: which are none, what they hold, and how many parameters a model has."""

import errno
import struct

import pytest
import yaml
from safetensors import SafetensorError

from rljob_api.model import RandomExperts
from rljob_runtime.job_errors import UnsupportedModel
from rljob_runtime.manifest.checks import model_parameters, random_parameters
from rljob_runtime.manifest.load import read
from rljob_runtime.manifest.model_trial import check_computation
from rljob_runtime.weights.model_files import ModelFolderError, folder_parameters, loading, read_config
from tests.support.jobs import job
from tests.support.runtime.manifest_files import config, make


def test_parameters_of_a_folder(tmp_path):
    make(tmp_path / "model.safetensors")
    assert folder_parameters(tmp_path) == 3 * 4 + 5


def with_size(header: bytes) -> bytes:
    return struct.pack("<Q", len(header)) + header


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x05",
        struct.pack("<Q", 100) + b"{",
        with_size(b"[1]"),
        with_size(b'{"a": {}}'),
        with_size(b'{"a": 1}'),
        with_size(b'{"a": {"shape": 3}}'),
        with_size(b'{"a": {"shape": ["x"]}}'),
        with_size(b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}') + bytes(7),
        b"version https://git-lfs.github.com/spec/v1\n",
    ],
)
def test_a_broken_weights_file_is_named(tmp_path, content):
    (tmp_path / "x.safetensors").write_bytes(content)
    with pytest.raises(ModelFolderError, match=r"x\.safetensors is not a safetensors file"):
        folder_parameters(tmp_path)


def test_parameters_of_a_random_model(tmp_path):
    manifest = tmp_path / "job.yaml"
    manifest.write_text(yaml.safe_dump(job()))
    found = read(manifest).job
    shape = found.spec.training.model.random
    assert shape is not None
    # 2 layers of 64 x (12 heads x 32 + 3 x 192), and two embeddings of 64 for each token.
    assert random_parameters(shape, 40) == 2 * 64 * (12 * 32 + 3 * 192) + 2 * 40 * 64
    assert model_parameters(found, tmp_path) == random_parameters(shape, 40), "36 letters and 4 more"
    experts = RandomExperts(count=8, intermediate_size=64)
    mixture = shape.model_copy(update={"architecture": "qwen3_moe", "experts": experts})
    # In each layer 8 experts of width 64 and their router take the place of the MLP.
    more = 2 * 64 * (3 * 8 * 64 + 8 - 3 * 192)
    assert random_parameters(mixture, 40) == random_parameters(shape, 40) + more


INDEX = "model.safetensors.index.json"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"config.json": "{}"}, r"config\.json names no model_type"),
        ({"config.json": '{"model_type": 3}'}, r"config\.json names no model_type"),
        ({"config.json": "[]"}, r"config\.json holds no JSON object"),
        ({"config.json": "{"}, r"config\.json is not JSON: .*: copy it from the model again"),
        ({"config.json": ""}, r"config\.json is empty: copy it from the model again"),
        ({"config.json": "[" * 100_000}, r"config\.json is nested too deeply"),
        (
            {"config.json": '\ufeff{"model_type": "qwen3"}'},
            r"config\.json: it begins with a byte order mark, which transformers does not read: write it",
        ),
        ({"config.json": "{}".encode("utf-16")}, r"config\.json: it is UTF-16 text: write it as UTF-8"),
        ({"config.json": "version https://git-lfs.github.com/spec/v1\n"}, "config.json: .* git lfs pull"),
        (
            {"model.safetensors": None},
            "has neither model.safetensors nor .*, only part.safetensors: copy the",
        ),
        ({"model.safetensors": None, INDEX: "{}"}, "index.json has no weight_map"),
        (
            {
                "model.safetensors": None,
                INDEX: '{"weight_map": {"a": "part.safetensors", "b": "2.safetensors"}}',
            },
            r"has no 2\.safetensors, which model\.safetensors\.index\.json names \(1 such file\)",
        ),
        ({"model.safetensors": None, INDEX: '{"weight_map": {"a": "part.safetensors"}}'}, None),
        ({}, None),
    ],
)
def test_the_files_of_a_model(tmp_path, files, message):
    whole = {"config.json": '{"model_type": "qwen3"}', "model.safetensors": "", "part.safetensors": ""}
    for name, content in (whole | files).items():
        if content is not None:
            (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    if message is None:
        assert read_config(tmp_path) == {"model_type": "qwen3"}
        return
    with pytest.raises(ModelFolderError, match=message) as error:
        read_config(tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "part.safetensors", INDEX])
def test_a_link_to_a_file_that_is_not_there_is_told(tmp_path, name):
    """A snapshot of Hugging Face's cache that was copied, or mounted, alone has nothing but such links."""
    whole = {
        "config.json": '{"model_type": "qwen3"}',
        "part.safetensors": "",
        INDEX: '{"weight_map": {"a": "part.safetensors"}}',
    }
    for file, content in whole.items():
        (tmp_path / file).write_text(content)
    (tmp_path / name).unlink(missing_ok=True)
    (tmp_path / name).symlink_to("../../blobs/1234")
    with pytest.raises(
        ModelFolderError, match=rf"{name} is a link to ../../blobs/1234, which is not there: "
    ):
        read_config(tmp_path)


@pytest.mark.parametrize(
    ("error", "refused"),
    [
        (OSError("no file named model.safetensors"), True),
        (ValueError("Unrecognized model"), True),
        (KeyError("hidden_size"), True),
        (SafetensorError("header too small"), True),
        (OSError(errno.EIO, "Input/output error"), False),
        (RuntimeError("out of memory"), False),
    ],
)
def test_what_a_model_that_does_not_load_is(tmp_path, error, refused):
    with pytest.raises(UnsupportedModel if refused else type(error)), loading(tmp_path):
        raise error
    with pytest.raises(type(error)), loading(tmp_path / "gone"):
        raise error


def test_a_model_whose_config_has_a_value_of_another_kind_is_refused(tmp_path):
    """Of that transformers raises what is no ValueError."""
    (tmp_path / "config.json").write_bytes(config("qwen3", vocab_size="many"))
    with pytest.raises(UnsupportedModel, match=r"does not load: .*vocab_size.*expected int, got str"):
        check_computation(tmp_path, 8)


def test_a_model_that_does_not_load_over_its_generation_config_says_so(tmp_path):
    (tmp_path / "generation_config.json").write_text("[]")
    told = r"generation_config\.json holds no JSON object"
    with pytest.raises(UnsupportedModel, match=told), loading(tmp_path):
        raise TypeError("'list' object is not a mapping")

"""Tokenizers: ids, special tokens, and the same ids through Hugging Face."""

import json
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer, ByT5Tokenizer

from rljob_api.model import Tokenizer
from rljob_runtime.data.errors import DataError
from rljob_runtime.data.tokenizer import (
    CharacterTokenizer,
    FolderTokenizer,
    build_tokenizer,
    check_vocabulary,
)

ALPHABET = "abc xyz\n0189é<>日"
TEXTS = ["", "a", "ab c\nx", "é0 1  8", "<a>", "日日", " \n "]
TEMPLATE = (
    "{% for m in messages %}{{ m.role[0] }}{{ m.content }}<eos>{% endfor %}"
    "{% if add_generation_prompt %}a{% endif %}"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    CharacterTokenizer(ALPHABET).save_pretrained(tmp_path)
    return tmp_path


def edit(folder: Path, **changes: object) -> None:
    path = folder / "tokenizer_config.json"
    config = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


def test_character_ids() -> None:
    tokenizer = CharacterTokenizer("abc")
    assert tokenizer.encode("cab").tolist() == [1, 6, 4, 5, 3]
    assert tokenizer.encode("cab").dtype == np.int32
    assert tokenizer.encode("cab", rendered=True).tolist() == [6, 4, 5]
    assert tokenizer.vocabulary_size == 7
    assert (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id, tokenizer.stop_ids) == (0, 1, 2, (2,))


def test_character_decode_is_one_character_per_token() -> None:
    tokenizer = CharacterTokenizer("abc")
    assert tokenizer.decode(np.array([4, 3, 6, 31, 5], dtype=np.int32)) == "a\ufffdc\ufffdb"


def test_a_transcript_has_the_special_tokens_by_their_names(folder: Path) -> None:
    tokens = np.array([1, 4, 5, 3, 6, 2, 0], dtype=np.int32)
    text = "<bos>ab<sep>c<eos><pad>"
    assert CharacterTokenizer(ALPHABET).transcribe(tokens) == text
    assert FolderTokenizer(folder).transcribe(tokens) == text
    beyond = np.array([900, 4, 901, 902, 5, 900], dtype=np.int32)
    assert CharacterTokenizer(ALPHABET).transcribe(beyond) == "\ufffda\ufffd\ufffdb\ufffd"
    assert FolderTokenizer(folder).transcribe(beyond) == "\ufffda\ufffd\ufffdb\ufffd"
    assert FolderTokenizer(folder).transcribe(beyond[:0]) == ""


def test_unknown_character_is_named_with_its_place() -> None:
    with pytest.raises(DataError, match=r"character 'Z' at position 2 is not in the tokenizer's alphabet"):
        CharacterTokenizer("abc").encode("abZ")


def test_saved_folder_gives_the_same_ids(folder: Path) -> None:
    ours, theirs = CharacterTokenizer(ALPHABET), AutoTokenizer.from_pretrained(folder)
    for text in TEXTS:
        assert theirs(text)["input_ids"] == ours.encode(text).tolist()
        assert theirs.decode(ours.encode(text).tolist(), skip_special_tokens=True) == text
    assert len(theirs) == ours.vocabulary_size


def test_folder_tokenizer_agrees_with_the_character_tokenizer(folder: Path) -> None:
    ours, theirs = CharacterTokenizer(ALPHABET), FolderTokenizer(folder)
    for text in TEXTS:
        for rendered in (False, True):
            got = theirs.encode(text, rendered=rendered)
            assert got.dtype == np.int32
            assert got.tolist() == ours.encode(text, rendered=rendered).tolist()
        assert theirs.decode(ours.encode(text)) == text
    for name in ("vocabulary_size", "pad_id", "bos_id", "eos_id", "stop_ids"):
        assert getattr(theirs, name) == getattr(ours, name)
    with pytest.raises(DataError, match="the tokenizer refuses the text"):
        theirs.encode("Q")


@pytest.mark.parametrize(("eos", "stops"), [(7, (2, 7)), ([9, 2], (2, 9)), (None, (2,))])
def test_stop_ids_include_the_generation_config(folder: Path, eos: object, stops: tuple[int, ...]) -> None:
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": eos}))
    assert FolderTokenizer(folder).stop_ids == stops


def test_folder_without_end_token(folder: Path) -> None:
    edit(folder, eos_token=None)
    with pytest.raises(DataError, match="the tokenizer has no end token: set eos_token"):
        FolderTokenizer(folder)


def test_pad_falls_back_to_the_end_token(folder: Path) -> None:
    edit(folder, pad_token=None)
    assert FolderTokenizer(folder).pad_id == 2


def test_chat(folder: Path) -> None:
    messages = [{"role": "user", "content": "xyz"}]
    with pytest.raises(DataError, match="has no chat template"):
        FolderTokenizer(folder).chat(messages)
    edit(folder, chat_template=TEMPLATE)
    tokenizer = FolderTokenizer(folder)
    assert tokenizer.chat([{"role": "c", "content": "xyz"}]) == "cxyz<eos>a"
    assert tokenizer.encode("cxyz<eos>a", rendered=True).tolist() == [6, 8, 9, 10, 2, 4]
    edit(folder, chat_template="{{ raise_exception('roles must alternate') }}")
    with pytest.raises(DataError, match="the chat template refuses the messages: roles must alternate"):
        FolderTokenizer(folder).chat(messages)


@pytest.mark.parametrize(
    ("template", "told"),
    [
        ("{{ messages[0].content + 1 }}", "TypeError: can only concatenate str"),
        ("{{ 1 / 0 }}", "ZeroDivisionError: division by zero"),
        ([{"name": "tools", "template": "x"}], "ValueError: .* multiple chat templates with no default"),
    ],
)
def test_a_chat_template_that_fails_is_told(folder: Path, template: object, told: str) -> None:
    edit(folder, chat_template=template)
    with pytest.raises(DataError, match=rf"{folder}: the chat template fails on the messages \({told}"):
        FolderTokenizer(folder).chat([{"role": "user", "content": "a"}])


def test_missing_and_broken_folders(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nothing: no such folder"):
        FolderTokenizer(tmp_path / "nothing")
    (tmp_path / "tokenizer.json").write_text('{"model": 3}')
    with pytest.raises(DataError, match="no usable Hugging Face tokenizer") as error:
        FolderTokenizer(tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"{", " is not JSON: Expecting "),
        (b"", " is empty: copy it from the model again"),
        (b"[]", " holds no JSON object: copy it from the model again"),
        (b"\xef\xbb\xbf{}", ": it begins with a byte order mark"),
        ("{}".encode("utf-16"), ": it is UTF-16 text: write it as UTF-8"),
        (b"version https://git-lfs.github.com/spec/v1\n", ": .* git lfs pull does it"),
    ],
)
def test_the_file_that_is_broken_is_named(folder: Path, name: str, content: bytes, told: str) -> None:
    (folder / name).write_bytes(content)
    with pytest.raises(DataError, match=rf"/{name}{told}"):
        FolderTokenizer(folder)


@pytest.mark.parametrize("files", [[], ["config.json"], ["config.json", "tokenizer_config.json"]])
def test_a_tokenizer_that_is_not_there_is_not_made_up(tmp_path: Path, files: list[str]) -> None:
    for name in files:
        (tmp_path / name).write_text('{"model_type": "qwen3"}')
    with pytest.raises(DataError, match=r"no tokenizer in it: copy tokenizer\.json there"):
        FolderTokenizer(tmp_path)


def test_a_tokenizer_without_files_of_its_own(tmp_path: Path) -> None:
    ByT5Tokenizer().save_pretrained(str(tmp_path))
    assert FolderTokenizer(tmp_path).encode("a").tolist() == [100, 1]


def test_a_generation_config_that_is_no_object(folder: Path) -> None:
    (folder / "generation_config.json").write_text("[1]")
    with pytest.raises(DataError, match=r"generation_config\.json holds no JSON object"):
        FolderTokenizer(folder)


@pytest.mark.parametrize("value", ['"abc"', "[1, null]", '{"a": 1}', "[[2]]"])
def test_end_tokens_that_are_no_numbers(folder: Path, value: str) -> None:
    (folder / "generation_config.json").write_text(f'{{"eos_token_id": {value}}}')
    with pytest.raises(DataError) as error:
        FolderTokenizer(folder)
    assert str(error.value) == (
        f"{folder}/generation_config.json: eos_token_id must be the number of a token, or a list of such "
        f"(found {value}): copy the file from the model again"
    )


def test_which_tokenizer_a_manifest_gets(folder: Path) -> None:
    characters = Tokenizer.model_validate({"characters": {"alphabet": "ab"}})
    path = Tokenizer.model_validate({"path": folder.name})
    assert build_tokenizer(characters, folder, folder).vocabulary_size == 6
    assert build_tokenizer(path, folder.parent, None).vocabulary_size == 4 + len(ALPHABET)
    assert build_tokenizer(None, folder.parent, folder).vocabulary_size == 4 + len(ALPHABET)
    with pytest.raises(DataError, match="set tokenizer"):
        build_tokenizer(None, folder, None)


def test_tokens_that_the_vocabulary_lacks_are_refused(folder: Path) -> None:
    """A model has no row for them, and an engine's process would end by a prompt with one."""
    file = folder / "tokenizer.json"
    content = json.loads(file.read_text())
    for special in content["post_processor"]["special_tokens"].values():
        special["ids"] = [number + 1000 for number in special["ids"]]
    file.write_text(json.dumps(content))
    tokenizer = FolderTokenizer(folder)
    assert tokenizer.encode("ab", rendered=True).tolist() == [4, 5]
    told = rf"gives token 1003, and its vocabulary ends with {len(ALPHABET) + 3}: correct .*tokenizer\.json"
    with pytest.raises(DataError, match=told):
        tokenizer.encode("ab")


def test_vocabulary_of_model_and_tokenizer() -> None:
    tokenizer = CharacterTokenizer("abcd")
    check_vocabulary(tokenizer, 8)
    check_vocabulary(tokenizer, 32)
    with pytest.raises(DataError, match=r"tokenizer has 8 tokens but the model's vocabulary has 7"):
        check_vocabulary(tokenizer, 7)

"""Text to tokens and back.

Guarantees: token ids are int32 arrays; encoding is a pure function of the text; nothing is fetched over the
network (a Hugging Face tokenizer comes from a folder).
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from rljob_api.model import Tokenizer
from rljob_runtime.data.errors import DataError, not_expanded, one_line
from rljob_runtime.data.json_file import NoJsonObject, read_object
from rljob_runtime.samples import Tokens

Messages = Sequence[dict[str, str]]
"""A chat: each message has `role` and `content`."""

NOT_A_CHARACTER = "\ufffd"
"""What stands for a token that stands for no character."""
_TOKENIZER_FILES = ("tokenizer*.json", "*.model", "vocab.*", "*.tiktoken", "tekken.json")
"""Under these names the common kinds of tokenizers keep their vocabulary."""
_READ = (
    "config.json",
    "tokenizer_config.json",
    "tokenizer.json",
    "special_tokens_map.json",
    "added_tokens.json",
)
"""What transformers reads of a folder for its tokenizer, where it is there, and is JSON."""
_NO_TOKENIZER = "{folder}: no tokenizer in it: copy tokenizer.json there, or name another in tokenizer.path"


class TextTokenizer(Protocol):
    """What the runtime needs of a tokenizer."""

    @property
    def vocabulary_size(self) -> int:
        """Highest token id plus one."""
        ...

    def vocabulary(self) -> dict[str, int]:
        """The number of each token, by the token's own name."""
        ...

    @property
    def pad_id(self) -> int: ...

    @property
    def bos_id(self) -> int | None: ...

    @property
    def eos_id(self) -> int: ...

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Tokens that end a response, ascending; `eos_id` is one of them."""
        ...

    @property
    def letters(self) -> str:
        """The characters that generated tasks draw from."""
        ...

    def encode(self, text: str, *, rendered: bool = False) -> Tokens:
        """Tokens of a prompt, with the special tokens of the tokenizer around it; a `rendered` text comes
        from `chat` and already has them. Raises `DataError` for text that has no tokens."""
        ...

    def encode_many(self, texts: Sequence[str], *, rendered: bool = False) -> list[Tokens]:
        """`encode` of each."""
        ...

    def decode(self, tokens: Tokens) -> str:
        """The text, without special tokens where the tokenizer knows them."""
        ...

    def transcribe(self, tokens: Tokens) -> str:
        """The text with every token in it, special ones by their names, such as <eos>: for people to read."""
        ...

    def chat(self, messages: Messages) -> str:
        """The chat as one text that ends where the answer begins. Raises `DataError`."""
        ...

    def save_pretrained(self, folder: Path) -> None:
        """Write the tokenizer's files, in Hugging Face format."""
        ...


class CharacterTokenizer:
    """One token per character, after <pad>=0, <bos>=1, <eos>=2, <sep>=3; a prompt is <bos> characters <sep>.

    Decoding gives one character per token (U+FFFD for a token that stands for none), so that positions in
    the text are positions in the tokens.
    """

    pad_id = 0
    bos_id = 1
    eos_id = 2
    sep_id = 3
    stop_ids = (2,)

    def __init__(self, alphabet: str) -> None:
        self.letters = alphabet
        self._ids = {char: index for index, char in enumerate(alphabet, start=4)}
        self._chars = {index: char for char, index in self._ids.items()}

    @property
    def vocabulary_size(self) -> int:
        return 4 + len(self.letters)

    def vocabulary(self) -> dict[str, int]:
        return {**self._special, **self._ids}

    @property
    def _special(self) -> dict[str, int]:
        return {"<pad>": self.pad_id, "<bos>": self.bos_id, "<eos>": self.eos_id, "<sep>": self.sep_id}

    def encode(self, text: str, *, rendered: bool = False) -> Tokens:
        try:
            ids = [self._ids[char] for char in text]
        except KeyError:
            position, char = next((at, char) for at, char in enumerate(text) if char not in self._ids)
            raise DataError(
                f"character {char!r} at position {position} is not in the tokenizer's alphabet: add it to "
                "tokenizer.characters.alphabet, or take it out of the prompt"
            ) from None
        if not rendered:
            ids = [self.bos_id, *ids, self.sep_id]
        return np.array(ids, dtype=np.int32)

    def encode_many(self, texts: Sequence[str], *, rendered: bool = False) -> list[Tokens]:
        return [self.encode(text, rendered=rendered) for text in texts]

    def decode(self, tokens: Tokens) -> str:
        return "".join(self._chars.get(int(token), NOT_A_CHARACTER) for token in tokens)

    def transcribe(self, tokens: Tokens) -> str:
        shown = {token: name for name, token in self._special.items()} | self._chars
        return "".join(shown.get(int(token), NOT_A_CHARACTER) for token in tokens)

    def chat(self, messages: Messages) -> str:
        raise DataError(
            "the character tokenizer has no chat template, which lists of messages and data.systemPrompt "
            "need: use string prompts alone, or a tokenizer with one"
        )

    def save_pretrained(self, folder: Path) -> None:
        """Write it so that `AutoTokenizer.from_pretrained` gives a tokenizer with the same ids."""
        from tokenizers import Regex, models, pre_tokenizers, processors
        from tokenizers import Tokenizer as Backend
        from tokenizers.decoders import Fuse
        from transformers import PreTrainedTokenizerFast

        backend = Backend(models.WordLevel(self.vocabulary()))
        # The model looks up whole words: cut so, each character is one, line breaks too.
        backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        # Without a decoder tokens are joined with spaces between them.
        backend.decoder = Fuse()
        backend.post_processor = processors.TemplateProcessing(
            single="<bos> $A <sep>", special_tokens=[("<bos>", self.bos_id), ("<sep>", self.sep_id)]
        )
        fast = PreTrainedTokenizerFast(
            tokenizer_object=backend,
            pad_token="<pad>",
            bos_token="<bos>",
            eos_token="<eos>",
            sep_token="<sep>",
            # It would take out spaces before punctuation, and positions would shift.
            clean_up_tokenization_spaces=False,
        )
        fast.save_pretrained(str(folder))


class FolderTokenizer:
    """The Hugging Face tokenizer of a folder."""

    letters = "abcdefghijklmnopqrstuvwxyz0123456789"

    def __init__(self, folder: Path) -> None:
        """Raises `DataError` when the folder holds no tokenizer that can end a response."""
        self._folder = folder
        self._inner = _load_auto_tokenizer(folder)
        # Not the number of tokens: ids may have gaps.
        self.vocabulary_size = max(self._inner.get_vocab().values()) + 1
        # Some chat models end their turns by a token that only generation_config.json names.
        stops = set(_generation_stops(folder))
        if self._inner.eos_token_id is not None:
            stops.add(int(self._inner.eos_token_id))
        if not stops:
            raise DataError(
                f"{folder}: the tokenizer has no end token: set eos_token in tokenizer_config.json, or "
                "eos_token_id in generation_config.json"
            )
        self.stop_ids = tuple(sorted(stops))
        eos, pad, bos = self._inner.eos_token_id, self._inner.pad_token_id, self._inner.bos_token_id
        self.eos_id = self.stop_ids[0] if eos is None else int(eos)
        # Many tokenizers have no padding token; the end token is the usual stand-in.
        self.pad_id = self.eos_id if pad is None else int(pad)
        self.bos_id = None if bos is None else int(bos)

    def vocabulary(self) -> dict[str, int]:
        return dict(self._inner.get_vocab())

    def encode(self, text: str, *, rendered: bool = False) -> Tokens:
        return self.encode_many([text], rendered=rendered)[0]

    def encode_many(self, texts: Sequence[str], *, rendered: bool = False) -> list[Tokens]:
        if not texts:
            return []
        try:
            encoded = self._inner(list(texts), add_special_tokens=not rendered, return_attention_mask=False)
        except Exception as error:  # `tokenizers` raises plain `Exception`s
            raise DataError(f"{self._folder}: the tokenizer refuses the text: {one_line(error)}") from error
        found = [np.array(ids, dtype=np.int32) for ids in encoded["input_ids"]]
        for tokens in found:
            self._check_known(tokens)
        return found

    def _check_known(self, tokens: Tokens) -> None:
        """A model has no row for a token beyond the vocabulary: an engine's process would end by the prompt.
        Raises `DataError`."""
        if (largest := int(tokens.max(initial=0))) >= self.vocabulary_size:
            raise DataError(
                f"{self._folder}: the tokenizer gives token {largest}, and its vocabulary ends with "
                f"{self.vocabulary_size - 1}: correct the special tokens under post_processor in "
                "tokenizer.json, or copy the tokenizer's files from the model again"
            )

    def decode(self, tokens: Tokens) -> str:
        return str(self._inner.decode(tokens.tolist(), skip_special_tokens=True))

    def transcribe(self, tokens: Tokens) -> str:
        # Models have more tokens than their tokenizers; of the rest `decode` would say nothing.
        first, *others = np.split(tokens, np.flatnonzero(tokens >= self.vocabulary_size))
        return NOT_A_CHARACTER.join(self._whole(part) for part in [first, *(part[1:] for part in others)])

    def _whole(self, tokens: Tokens) -> str:
        # Spaces before punctuation stay where the model wrote them.
        return str(
            self._inner.decode(tokens.tolist(), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        )

    def chat(self, messages: Messages) -> str:
        from jinja2 import TemplateError

        if not self._inner.chat_template:
            raise DataError(
                f"{self._folder}: the tokenizer has no chat template, which lists of messages and "
                "data.systemPrompt need: add chat_template.jinja to the folder, or use string prompts alone"
            )
        try:
            text = self._inner.apply_chat_template(list(messages), add_generation_prompt=True, tokenize=False)
        except TemplateError as error:
            raise DataError(f"the chat template refuses the messages: {one_line(error)}") from error
        except Exception as error:  # a template computes, and any of that may fail
            raise DataError(
                f"{self._folder}: the chat template fails on the messages ({type(error).__name__}: "
                f"{one_line(error)}): correct chat_template.jinja, or chat_template in tokenizer_config.json"
            ) from error
        return str(text)

    def save_pretrained(self, folder: Path) -> None:
        self._inner.save_pretrained(str(folder))


def build_tokenizer(config: Tokenizer | None, base: Path, model_folder: Path | None) -> TextTokenizer:
    """The tokenizer of a manifest in folder `base`; without `config`, the one in the model's folder."""
    if config is not None and config.characters is not None:
        return CharacterTokenizer(config.characters.alphabet)
    if config is not None and config.path is not None:
        return FolderTokenizer(base / config.path)
    if model_folder is None:
        raise DataError("a random model has no tokenizer of its own: set tokenizer")
    return FolderTokenizer(model_folder)


def folder_vocabulary(folder: Path) -> dict[str, int]:
    """The number of each token of the Hugging Face tokenizer in a model's folder. Raises `DataError`."""
    if not _has_tokenizer(folder, ()):
        raise DataError(f"{folder}: no tokenizer in it: copy the files of the model's tokenizer there")
    return dict(_load_auto_tokenizer(folder).get_vocab())


def check_vocabulary(tokenizer: TextTokenizer, model_vocabulary_size: int) -> None:
    """Raise `DataError` when the tokenizer makes ids that the model does not have.

    A model with more is right: embeddings are commonly padded to a round number of rows.
    """
    if tokenizer.vocabulary_size > model_vocabulary_size:
        raise DataError(
            f"the tokenizer has {tokenizer.vocabulary_size} tokens but the model's vocabulary has "
            f"{model_vocabulary_size}: use the tokenizer that belongs to the model, or a model with a "
            f"vocabulary of at least {tokenizer.vocabulary_size}"
        )


def _load_auto_tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    if folder.is_file():
        raise DataError(f"{folder} is a file: name the folder that has the tokenizer ({folder.parent}?)")
    if not folder.is_dir():
        advice = not_expanded(folder) or "; it must hold a Hugging Face tokenizer (tokenizer.json)"
        raise DataError(f"{folder}: no such folder{advice}")
    try:
        found = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except Exception as error:  # of what is in the files, `tokenizers` raises plain `Exception`s
        if not _has_tokenizer(folder, ()):
            raise DataError(_NO_TOKENIZER.format(folder=folder)) from error
        _check_json(folder)
        raise DataError(f"{folder}: no usable Hugging Face tokenizer: {one_line(error)}") from error
    # Without its files, transformers makes an empty one of the kind that config.json names.
    files = found.vocab_files_names.values()
    if files and not _has_tokenizer(folder, files):
        raise DataError(_NO_TOKENIZER.format(folder=folder))
    return found


def _has_tokenizer(folder: Path, names: Iterable[str]) -> bool:
    """Whether a folder has a tokenizer's files: under their common names, or one of `names`."""
    patterns = (*_TOKENIZER_FILES, *names)
    found = (path.name for pattern in patterns for path in folder.glob(pattern))
    return any(name != "tokenizer_config.json" for name in found)


def _check_json(folder: Path) -> None:
    """Raise `DataError` for a file that transformers reads for a tokenizer and that holds no JSON object."""
    for path in (folder / name for name in _READ):
        try:
            if path.is_file():
                read_object(path)
        except NoJsonObject as error:
            raise DataError(str(error)) from error


def _generation_stops(folder: Path) -> list[int]:
    path = folder / "generation_config.json"
    if not path.is_file():
        return []
    try:
        value = read_object(path).get("eos_token_id")
    except NoJsonObject as error:
        raise DataError(str(error)) from error
    if value is None:
        return []
    try:
        return [int(item) for item in value] if isinstance(value, list) else [int(value)]
    except (TypeError, ValueError) as error:
        raise DataError(
            f"{path}: eos_token_id must be the number of a token, or a list of such (found "
            f"{json.dumps(value)}): copy the file from the model again"
        ) from error

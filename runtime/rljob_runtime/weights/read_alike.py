"""Whether all that load a model read the same weights of its folder.

transformers, and so the trainer, reads model.safetensors where there is one, else what the index names; vLLM
reads what the index names where there is one, else every *.safetensors.

Guarantees: a folder of which both read the same files is looked at no further; of others a few blocks of each
tensor are compared, as `sampled_digest` says.
"""

from collections.abc import Iterable
from pathlib import Path

from rljob_runtime.weights.contents import TIED_HEAD, tensor_shapes
from rljob_runtime.weights.model_files import INDEX, WEIGHTS, ModelFolderError, indexed_files
from rljob_runtime.weights.safetensors_header import read_header
from rljob_runtime.weights.sampled_digest import tensor_digests

_OF_INDEX = f"those that {INDEX} names"


def check_read_alike(folder: Path, tied: bool, vllm: bool) -> None:
    """Raise `ModelFolderError` where the trainer lacks a tensor of the folder, and where vLLM, if that is the
    job's engine, would begin with other weights than the trainer. `tied`: whether the model's head is its
    input embedding, which the trainer takes where files lack it."""
    every = {path.name for path in folder.glob("*.safetensors")}
    has_index = (folder / INDEX).is_file()
    whole = WEIGHTS in every
    files = {WEIGHTS} if whole else indexed_files(folder)
    if every == files and not (whole and has_index):
        return
    trained = tensor_digests([folder / name for name in sorted(files)])
    lacking = sorted(tensor_shapes(folder).keys() - trained.keys() - ({TIED_HEAD} if tied else set()))
    if lacking:
        where = WEIGHTS if whole else _OF_INDEX
        raise ModelFolderError(
            f"{folder}: {lacking[0]} is not in {where}, which the trainer reads: copy the whole model to a "
            "folder of its own"
        )
    # Without that file both read what the index names.
    if vllm and whole:
        read = indexed_files(folder) if has_index else every
        _check_same(folder, trained, read - {WEIGHTS}, _OF_INDEX if has_index else "every *.safetensors")


def _check_same(folder: Path, trained: dict[str, bytes], read: Iterable[str], words: str) -> None:
    formats = {each.name: each.dtype for each in read_header(folder / WEIGHTS)}
    for file in sorted(read):
        # The same weights in another number format cannot be told from others by a digest.
        alike = {each.name for each in read_header(folder / file) if formats.get(each.name) == each.dtype}
        for name, digest in tensor_digests([folder / file]).items():
            if name in alike and trained[name] != digest:
                raise ModelFolderError(
                    f"{folder}: {name} is another one in {file} than in {WEIGHTS}. The trainer reads that "
                    f"alone, and vLLM {words}: take the files out of the folder that are not of the model"
                )

"""A step's groups, from rank 0, which has them, to the ranks that train them.

Guarantees: every rank gets the outlines of all groups, and the tokens of those responses alone that it
trains, bit for bit; all ranks make each call together. The default process group carries both, in main
memory.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from rljob_runtime.samples import Group, LogProbs, Tokens
from rljob_runtime.trainer.outline import GroupOutline, decode_outlines, encode_outlines, outline_of

Key: TypeAlias = tuple[int, int]
"""A response: its group's uid and its place in the group."""


class Content(NamedTuple):
    """The tokens of a response."""

    prompt: Tokens
    tokens: Tokens
    log_probs: LogProbs
    """As the engines gave them."""
    teacher: LogProbs | None = None
    """As a served teacher gave them; None without one."""


def broadcast_outlines(groups: Sequence[Group] | None) -> tuple[GroupOutline, ...] | None:
    """The outlines of rank 0's groups, on every rank; None where rank 0 gives None. What other ranks give is
    ignored."""
    if dist.get_world_size() == 1:
        return None if groups is None else tuple(map(outline_of, groups))
    first = dist.get_rank() == 0
    data = b""
    if first and groups is not None:
        data = encode_outlines([outline_of(group) for group in groups])
    # Even no groups have an outline of one byte, so that 0 can stand for None.
    size = torch.tensor([len(data)])
    dist.broadcast(size, src=0)
    if not size.item():
        return None
    buffer = torch.frombuffer(bytearray(data), dtype=torch.uint8) if first else _empty(int(size), torch.uint8)
    dist.broadcast(buffer, src=0)
    return decode_outlines(buffer.numpy().tobytes())


def scatter_contents(
    wanted: Sequence[Sequence[Key]],
    outlines: Sequence[GroupOutline],
    groups: Sequence[Group],
    taught: bool = False,
) -> dict[Key, Content]:
    """The responses in `wanted[rank]`, which are ascending and the same on all ranks. Rank 0 has the `groups`
    of the `outlines`. `taught`: with the log-probabilities of a served teacher, which each of them must have:
    ValueError on rank 0."""
    by_uid = {group.uid: group for group in groups}
    rank = dist.get_rank()
    if rank == 0:
        arrays = [_packed(keys, by_uid, taught) for keys in wanted[1:]]
        sending = [
            dist.isend(torch.from_numpy(array), dst)
            for dst, array in enumerate(arrays, start=1)
            if len(array)
        ]
        for each in sending:
            if each is not None:  # as it is for a rank outside the group
                each.wait()
        return {(uid, index): _content(by_uid[uid], index, taught) for uid, index in wanted[0]}
    lengths = {outline.uid: outline for outline in outlines}
    array = _empty(_words(wanted[rank], lengths, taught), torch.int32)
    if len(array):
        dist.recv(array, src=0)
    return _unpacked(wanted[rank], lengths, array.numpy(), taught)


def _content(group: Group, index: int, taught: bool) -> Content:
    sample = group.samples[index]
    if not taught:
        return Content(group.prompt, sample.tokens, sample.log_probs)
    if sample.teacher_log_probs is None:
        raise ValueError(f"response {index} of group {group.uid} has no log-probabilities of the teacher")
    return Content(group.prompt, sample.tokens, sample.log_probs, sample.teacher_log_probs)


def _packed(keys: Sequence[Key], groups: Mapping[int, Group], taught: bool) -> NDArray[np.int32]:
    """Responses in one array, with a group's prompt once, before its first response; log-probabilities as
    the int32 of the same bits."""
    parts: list[NDArray[np.int32]] = [np.empty(0, np.int32)]
    before = None
    for uid, index in keys:
        content = _content(groups[uid], index, taught)
        if uid != before:
            parts.append(content.prompt)
        parts += [content.tokens, content.log_probs.view(np.int32)]
        if content.teacher is not None:
            parts.append(content.teacher.view(np.int32))
        before = uid
    return np.concatenate(parts)


def _words(keys: Sequence[Key], outlines: Mapping[int, GroupOutline], taught: bool) -> int:
    """Length of what `_packed` makes."""
    prompts = sum(outlines[uid].prompt_length for uid in {uid for uid, _ in keys})
    each = 3 if taught else 2
    return prompts + sum(each * outlines[uid].samples[index].length for uid, index in keys)


def _unpacked(
    keys: Sequence[Key], outlines: Mapping[int, GroupOutline], array: NDArray[np.int32], taught: bool
) -> dict[Key, Content]:
    contents: dict[Key, Content] = {}
    position, before = 0, None
    prompt = array[:0]

    def take(length: int) -> NDArray[np.int32]:
        nonlocal position
        position += length
        return array[position - length : position]

    for uid, index in keys:
        if uid != before:
            prompt = take(outlines[uid].prompt_length)
        length = outlines[uid].samples[index].length
        tokens, log_probs = take(length), take(length).view(np.float32)
        teacher = take(length).view(np.float32) if taught else None
        contents[uid, index] = Content(prompt, tokens, log_probs, teacher)
        before = uid
    return contents


def _empty(size: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(size, dtype=dtype)

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._dynamo.testing import CompileCounter

from rljob_runtime.trainer.hdp_attention import Method
from rljob_runtime.trainer.hdp_groups import Members
from rljob_runtime.trainer.hdp_shard import shard, zigzag
from rljob_runtime.trainer.packing import pack

CPU = torch.device("cpu")
SAMPLES = st.lists(st.tuples(st.integers(1, 20), st.integers(1, 40)), min_size=1, max_size=5)


def test_zigzag() -> None:
    cut = zigzag(np.array([8, 3]), 2)
    assert cut.padded.tolist() == [8, 4]
    assert cut.samples.tolist() == [[0, 0, 1, 0, 0, 1]] * 2
    assert cut.positions.tolist() == [[0, 1, 0, 6, 7, 3], [2, 3, 1, 4, 5, 2]]


@given(SAMPLES, st.sampled_from([2, 4, 8]), st.sampled_from(["allGather", "ulysses"]))
@settings(deadline=None, max_examples=60)
def test_members_have_all_of_every_sample_together(
    samples: list[tuple[int, int]], degree: int, kind: Any
) -> None:
    lengths = [sum(sample) for sample in samples]
    tokens = np.arange(sum(lengths), dtype=np.int32)
    parts = np.split(tokens, np.cumsum([n for sample in samples for n in sample])[:-1])
    packed = pack(parts[::2], parts[1::2], CPU)
    shards = [
        shard(packed, lengths, [n for _, n in samples], Members(degree, position, None), Method(kind))
        for position in range(degree)
    ]
    assert {each.local.size for each in shards} == {sum(-(-n // (2 * degree)) * 2 for n in lengths)}, (
        "all members have as many tokens, with no more padding than there must be"
    )
    assert set(torch.cat([each.local.input_ids[0] for each in shards]).tolist()) == set(tokens.tolist())
    starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
    for each in shards:
        ids = each.local.input_ids[0].numpy()
        # Tokens are numbered through: a token's position is its number less that of its sample's first.
        assert (each.local.position_ids[0].numpy() == ids - starts[ids]).all()
        # What predicts a response token is the token before it.
        assert (ids[each.local.predicting.numpy()] + 1 == each.local.targets.numpy()).all()
    # As the gathering does it, with `most` numbers of each member.
    gathered = torch.cat(
        [
            torch.nn.functional.pad(each.local.targets, (0, each.most - len(each.local.targets)), value=-1)
            for each in shards
        ]
    )
    for each in shards:
        assert torch.equal(gathered[each.order], packed.targets)


def test_layers_are_not_compiled_anew_for_a_part_of_a_sample() -> None:
    """Of a layer's arguments the positions come from here; what differs to a compiler is also whether a
    tensor is a view."""
    counter = CompileCounter()
    compiled = torch.compile(lambda positions: 2 * positions, backend=counter, dynamic=True)
    tokens = [np.arange(n, dtype=np.int32) for n in (3, 5, 2, 7)]
    packed = pack(tokens[::2], tokens[1::2], CPU)
    part = shard(packed, [8, 9], [5, 7], Members(2, 0, None), Method("ulysses")).local
    for each in (packed, part):
        compiled(each.position_ids)
    assert counter.frame_count == 1


@pytest.mark.parametrize("degree", [2, 4, 8])
def test_members_have_equally_much_to_attend(degree: int) -> None:
    lengths = np.array([128, 256])
    cut = zigzag(lengths, degree)
    assert len(set((cut.positions + 1).sum(axis=1).tolist())) == 1

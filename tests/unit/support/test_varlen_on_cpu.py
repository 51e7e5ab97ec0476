"""A kernel for CPUs that tests put in for torch's is gone after them."""

import pytest
import torch

from rljob_runtime.trainer.varlen import Varlen, varlen_attention
from tests.support.runtime import varlen_on_cpu

CPU = torch.device("cpu")


def attend() -> torch.Tensor:
    one = torch.ones(3, 2, 4)
    runs = Varlen.of([1, 2], CPU).runs
    return varlen_attention(one, one, one, runs, runs, None, None, told=False)


def test_torch_has_a_kernel_for_cpus_within_the_body_alone() -> None:
    for _ in range(2):
        with pytest.raises(NotImplementedError, match="CPU"):
            attend()
        with varlen_on_cpu.installed():
            assert torch.equal(attend(), torch.ones(3, 2, 4))
    with pytest.raises(NotImplementedError, match="CPU"):
        attend()

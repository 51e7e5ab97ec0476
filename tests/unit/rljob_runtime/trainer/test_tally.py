"""What a step counts: sums over micro-batches, without a transfer before its end."""

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from rljob_runtime.trainer.loss import TokenLoss
from rljob_runtime.trainer.tally import Tally


@pytest.fixture(autouse=True)
def _one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "get_world_size", lambda: 1)


def add(tally: Tally, gap: list[float], compared: list[bool], scale: float = 1.0) -> None:
    values = torch.arange(1.0, len(gap) + 1) * scale
    each = TokenLoss(values, values, 2 * values, -values, 3 * values, 4 * values)
    weights = torch.full_like(values, 0.5)
    loss = values.sum().requires_grad_()
    tally.add(loss, each, weights, 5 * values, torch.tensor(gap), torch.tensor(compared), tokens=10)


def test_sums_are_those_of_all_micro_batches() -> None:
    tally = Tally()
    add(tally, [0.25, 4.0, 0.5], [True, False, True])
    add(tally, [8.0, 1.0], [False, True], scale=10.0)
    tally.add_update(2.0)
    tally.add_update(3.0)
    totals = tally.totals()
    assert totals.sums == {
        "loss": 36.0, "policy_loss": 18.0, "kl": 72.0, "teacher_kl": -36.0, "clipped": 108.0,
        "importance": 144.0, "entropy": 180.0, "parity": 1.75, "parity_tokens": 3.0,
        "response_tokens": 5.0, "tokens": 20.0,
    }  # fmt: skip
    assert (totals.parity_max, totals.updates, totals.grad_norm) == (1.0, 2, 5.0)


def test_nothing_compared_has_no_largest_difference() -> None:
    tally = Tally()
    add(tally, [float("nan"), 4.0], [False, False])
    totals = tally.totals()
    assert totals.parity_max is None
    assert (totals.sums["parity"], totals.sums["parity_tokens"]) == (0.0, 0.0)


def test_no_micro_batch_gives_zeros() -> None:
    totals = Tally().totals()
    assert set(totals.sums.values()) == {0.0}
    assert (totals.parity_max, totals.updates, totals.grad_norm) == (None, 0, 0.0)


class _Reads(TorchDispatchMode):
    """Counts the operations that wait for a device."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):  # type: ignore[no-untyped-def]
        if function in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default):
            self.count += 1
        return function(*arguments, **(options or {}))


def test_adding_reads_nothing_from_the_device() -> None:
    tally = Tally()
    with _Reads() as reads:
        add(tally, [0.25, 4.0], [True, False])
    assert reads.count == 0
    with _Reads() as reads:
        gap: Tensor = torch.tensor([0.25, 4.0])
        float(gap[gap > 1.0].max())
    assert reads.count >= 1, "the count sees what reads"

"""AdamW with moments in bfloat16: torch's AdamW but for the rounding, which has no direction."""

import pytest
import torch

from rljob_runtime.trainer.adamw_bfloat16 import AdamWBfloat16, round_stochastically

SETTINGS = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.1}


@pytest.fixture(autouse=True)
def seeded():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def both(shape: tuple[int, ...]) -> tuple[torch.nn.Parameter, torch.nn.Parameter]:
    values = torch.randn(shape)
    return torch.nn.Parameter(values.clone()), torch.nn.Parameter(values.clone())


@pytest.mark.parametrize("shape", [(), (5,), (3, 4), (2, 3, 4), (0, 4)])
def test_the_first_update_is_that_of_adamw(shape):
    """Moments that begin at 0 have not been rounded yet."""
    ours, theirs = both(shape)
    optimizers = AdamWBfloat16([ours], **SETTINGS), torch.optim.AdamW([theirs], **SETTINGS)
    ours.grad = torch.randn(shape)
    theirs.grad = ours.grad.clone()
    for optimizer in optimizers:
        optimizer.step()
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)


def test_rows_by_parts_are_all_rows(monkeypatch):
    ours, theirs = both((10, 4))
    ours.grad = torch.randn(10, 4)
    theirs.grad = ours.grad.clone()
    torch.optim.AdamW([theirs], **SETTINGS).step()
    monkeypatch.setattr("rljob_runtime.trainer.adamw_bfloat16._PART", 12)
    AdamWBfloat16([ours], **SETTINGS).step()
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)


def test_moments_follow_gradients_that_become_small():
    """Of a second moment that falls by a thousandth in each update, rounding to the nearest keeps all."""
    ours, theirs = both((4_000,))
    optimizers = AdamWBfloat16([ours], **SETTINGS), torch.optim.AdamW([theirs], **SETTINGS)
    for update in range(300):
        gradient = torch.full_like(ours, 1.0 if update < 100 else 0.01)
        for parameter, optimizer in zip((ours, theirs), optimizers, strict=True):
            parameter.grad = gradient.clone()
            optimizer.step()
    found, expected = (opt.state[p] for opt, p in zip(optimizers, (ours, theirs), strict=True))
    for name in ("exp_avg", "exp_avg_sq"):
        assert found[name].dtype == torch.bfloat16
        mean = float(expected[name].mean())
        assert float(found[name].float().mean()) == pytest.approx(mean, rel=0.01), name
    moved = (theirs - ours).abs().mean() / 300
    assert float(moved) < 0.02 * SETTINGS["lr"], "a share of an update's length"


def test_rounding_has_no_direction():
    values = torch.tensor([1.0, 1.001, -1.001, 3.14159, 1e-20, -7e20, 0.0]).repeat(40_000, 1)
    rounded = round_stochastically(values, torch.Generator().manual_seed(0))
    assert rounded.dtype == torch.bfloat16
    step = values[0].abs() * 2**-7
    assert ((rounded.float() - values).abs() <= step).all()
    torch.testing.assert_close(rounded.double().mean(dim=0), values[0].double(), rtol=1e-4, atol=0)
    assert (rounded[:, 0] == 1).all() and (rounded[:, 6] == 0).all(), "what needs no rounding stays"


def test_copies_of_a_model_stay_equal():
    """As ranks hold them that each have generators of their own, in whatever state those are."""
    ours, others = both((50, 40))
    second = torch.nn.Parameter(ours.detach().clone())
    optimizers = AdamWBfloat16([ours, second], **SETTINGS), AdamWBfloat16([others], **SETTINGS)
    for _ in range(5):
        gradient = torch.randn(50, 40)
        for parameter in (ours, second, others):
            parameter.grad = gradient.clone()
        for seed, optimizer in enumerate(optimizers):
            torch.manual_seed(seed)
            optimizer.step()
    assert torch.equal(ours, others)
    for name in ("exp_avg", "exp_avg_sq"):
        moment, other = (each.state[p][name] for each, p in zip(optimizers, (ours, others), strict=True))
        assert torch.equal(moment, other)
        assert not torch.equal(moment, optimizers[0].state[second][name]), "each parameter's noise is its own"


def test_a_parameter_without_a_gradient_stays():
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = AdamWBfloat16([parameter], **SETTINGS)
    optimizer.step()
    assert torch.equal(parameter, torch.ones(3)) and not optimizer.state

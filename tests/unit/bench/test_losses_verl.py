"""The comparison of losses, where there is nothing to compare with, and with what is known."""

import sys
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from rljob_runtime.objective.tokens import Tokens
from rljob_runtime.trainer.loss import token_loss
from tests.bench import losses_verl
from tests.bench.figures import RESULTS
from tests.bench.losses_compared import RESPONSES, Batch, algorithm_of, compared


def test_without_sources_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("MAXRL_SOURCE", raising=False)
    monkeypatch.delenv("VERL_SOURCE", raising=False)
    monkeypatch.setenv("TRL_SOURCE", "/nowhere")
    monkeypatch.setattr(losses_verl.importlib, "import_module", _not_there)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", ["losses_verl", "--file", "never_written"])
    losses_verl.main()
    assert capsys.readouterr().out.splitlines() == [
        "MaxRL's authors are left out: MAXRL_SOURCE does not say where the source is",
        "verl is left out: VERL_SOURCE does not say where the source is",
        "TRL is left out: trl cannot be imported from /nowhere: no trl",
    ]
    assert not (RESULTS / "never_written.json").exists()


def _not_there(name: str) -> None:
    raise ImportError(f"no {name}")


@pytest.mark.parametrize("off", [0.0, 0.25])
def test_differences_are_found(off: float) -> None:
    """A loss of the same formula, and one whose advantages are off by so much."""
    algorithm = algorithm_of({"truncatedReinforce": {"weightCap": 2.0}})

    def theirs(given: Batch, new: Tensor) -> Tensor:
        moved = replace(given, advantages=given.advantages + off)
        rows = torch.arange(RESPONSES)[:, None].expand_as(new)[given.mask]
        tokens = Tokens(new[given.mask], given.engine[given.mask], moved.advantages[rows], rows, None)
        return token_loss(algorithm, tokens).total.mean()

    figures = list(compared("it", algorithm, theirs))
    assert [each.name for each in figures] == ["it: loss", "it: gradient"]
    assert all((each.value > 1e-3) is bool(off) for each in figures)
    assert off or all(each.value < 1e-15 for each in figures)

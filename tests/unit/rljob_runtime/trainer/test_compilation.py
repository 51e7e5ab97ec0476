"""Which layers of a model are compiled."""

import pytest
import torch

from rljob_runtime.job_errors import UnsupportedModel
from rljob_runtime.trainer.compilation import Compilations, compile_layers


class _Layer(torch.nn.Linear):
    pass


class _Model(torch.nn.Module):
    def __init__(self, kinds: list[str] | None) -> None:
        super().__init__()
        self._no_split_modules = kinds
        self.layers = torch.nn.ModuleList([_Layer(2, 2), _Layer(2, 2)])
        self.head = torch.nn.Linear(2, 2)


def test_layers_are_compiled_and_nothing_else() -> None:
    model = _Model(["_Layer"])
    names = [name for name, _ in model.named_parameters()]
    compile_layers(model)
    assert all("forward" in vars(layer) for layer in model.layers)
    assert "forward" not in vars(model.head) and "forward" not in vars(model)
    assert [name for name, _ in model.named_parameters()] == names


def test_compilations_are_counted_those_of_backward_parts_too() -> None:
    count = Compilations()
    # Without a compiler of machine code, which takes seconds.
    function = torch.compile(lambda x: (x * x).sum(), backend="aot_eager", dynamic=True)
    counts = []
    for size in (2, 3, 4):
        x = torch.ones(size, requires_grad=True)
        loss = function(x)
        counts.append(count())
        loss.backward()
        counts.append(count())
    assert counts[0] >= 1, "the first call compiles"
    assert counts[2:] == [counts[1]] * 4, "later ones do not"
    count.close()
    count.close()
    torch.compile(lambda x: x + 1, backend="aot_eager")(torch.ones(2))
    assert count() == counts[-1]


@pytest.mark.parametrize("kinds", [None, [], ["Other"]])
def test_a_model_without_known_layers_is_refused(kinds: list[str] | None) -> None:
    with pytest.raises(UnsupportedModel, match=r"_Model has no layers .* set training\.compute"):
        compile_layers(_Model(kinds))

"""Which layers of a model are compiled."""

import re

import pytest
import torch

from rljob_runtime.job_errors import UnsupportedModel
from rljob_runtime.trainer.compilation import OPTIONS, Compilations, compile_layers


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


def test_this_torch_has_the_options_that_layers_are_compiled_with() -> None:
    from torch._inductor import list_options

    assert set(OPTIONS) <= set(list_options()), "without them shorter passes compile anew on a GPU"


def test_time_of_compilations_is_told_that_of_backward_parts_too() -> None:
    compiling = Compilations()
    # Without a compiler of machine code, which takes seconds.
    function = torch.compile(lambda x: (x * x).sum(), backend="aot_eager", dynamic=True)
    told = []
    for size in (2, 3, 4):
        x = torch.ones(size, requires_grad=True)
        loss = function(x)
        told.append(compiling())
        loss.backward()
        told.append(compiling())
    assert told[0] > 0, "the first call compiles"
    assert told[2:] == [told[1]] * 4, "later ones do not"
    assert compiling.why() == [], "and nothing was compiled before"
    compiling.close()
    compiling.close()
    torch.compile(lambda x: x + 1, backend="aot_eager")(torch.ones(2))
    assert compiling() == told[-1]


def test_why_something_is_compiled_anew_is_told_once() -> None:
    compiling = Compilations()
    function = torch.compile(_shifted, backend="aot_eager", dynamic=True)
    function(torch.ones(3), None)
    function(torch.ones(3), torch.ones(3))
    [why] = compiling.why()
    assert re.fullmatch(r"_shifted \(test_compilation\.py:\d+\) anew: \d+/0: y is None", why)
    assert compiling.why() == []
    compiling.close()


def _shifted(x: torch.Tensor, y: torch.Tensor | None) -> torch.Tensor:
    return x * x if y is None else x + y


@pytest.mark.parametrize("kinds", [None, [], ["Other"]])
def test_a_model_without_known_layers_is_refused(kinds: list[str] | None) -> None:
    with pytest.raises(UnsupportedModel, match=r"_Model has no layers .* set training\.compute"):
        compile_layers(_Model(kinds))

"""One rank with a model of vLLM's, without an engine: versions go into it by a second set of weights, and the
same ones by vLLM's own loaders; both must leave it the same.

    python -m tests.support.runtime.staged_model RANK RANKS PORT FOLDER FAMILY...

`FOLDER` has two folders for each family, which `tiny_models` has made: FAMILY, and FAMILY-new. Prints a line
of JSON for each family.
"""

import json
import os
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

os.environ |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1"}
os.environ |= {"TORCH_COMPILE_DISABLE": "1", "VLLM_NO_USAGE_STATS": "1"}
# Set by a test that ran an engine, whose end removed the folder.
os.environ.pop("VLLM_RPC_BASE_PATH", None)

import torch
from safetensors.torch import load_file
from vllm import _custom_ops
from vllm.config import set_current_vllm_config
from vllm.distributed import init_distributed_environment, initialize_model_parallel
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod
from vllm.model_executor.model_loader import get_model
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from rljob_runtime.engines.second_set import SecondSet
from rljob_runtime.engines.vllm_layout import NotPlain, find_layout

PACKED = "packed-"
"""Before the name of a family: its weights are packed, as vLLM does it on CPUs."""


def use_plain_layers(plain: bool) -> None:
    """Whether weights stay as they were loaded, as on an accelerator. Experts are then multiplied by nothing:
    the model is not run."""
    _custom_ops._supports_onednn = plain is False
    if plain:
        UnquantizedFusedMoEMethod.process_weights_after_loading = lambda self, layer: None  # type: ignore[method-assign]


def parameters(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: each.data.clone() for name, each in model.named_parameters()}


def check(model: torch.nn.Module, config: Any, old: Path, new: Path) -> dict[str, Any]:
    """What the second set made of `new` in a model that has `old`."""
    before, places = parameters(model), [each.data_ptr() for each in model.parameters()]
    layout = obstacle = None
    try:
        layout = find_layout(model, old)
    except NotPlain as error:
        obstacle = str(error)
    assert [each.data_ptr() for each in model.parameters()] == places
    assert same(before, parameters(model)), "looking for the layout has changed the model"
    if layout is None:
        return {"obstacle": obstacle}
    second, done = SecondSet(layout, 2**24), threading.Event()
    told: list[str] = []

    def tell(why: str) -> None:
        told.append(why)
        done.set()

    second.start(1, lambda: second.from_folder(new), tell)
    assert done.wait(60)
    assert told == [""], told
    assert same(before, parameters(model)), "a version that arrives has changed the model"
    second.place(1)
    placed = parameters(model)
    initialize_layerwise_reload(model)
    model.load_weights(load_file(new / "model.safetensors").items())  # type: ignore[operator]
    finalize_layerwise_reload(model, config.model_config)
    return {"same": same(placed, parameters(model)), "moved": not same(before, placed)}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def main() -> None:
    rank, ranks, port, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Path(sys.argv[4])
    begun = False
    for name in sys.argv[5:]:
        family = name.removeprefix(PACKED)
        use_plain_layers(family == name)
        old, new = folder / family, folder / f"{family}-new"
        config = EngineArgs(
            model=str(old), skip_tokenizer_init=True, dtype="float32", enforce_eager=True, max_model_len=128,
            tensor_parallel_size=ranks, distributed_executor_backend="mp",
        ).create_engine_config()  # fmt: skip
        config.parallel_config.rank = rank
        with set_current_vllm_config(config):
            if not begun:
                init_distributed_environment(ranks, rank, f"tcp://127.0.0.1:{port}", rank, "gloo")
                initialize_model_parallel(ranks, 1)
                begun = True
            model = get_model(vllm_config=config)
            print(json.dumps({"family": name, **check(model, config, old, new)}), flush=True)


if __name__ == "__main__":
    main()
    with suppress(BrokenPipeError):
        sys.stdout.flush()
    # vLLM's groups wait for each other at the end, which nobody needs.
    os._exit(0)

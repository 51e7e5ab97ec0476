"""What runs in vLLM's workers, on a worker that has no more than Ascend's."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import save_file

from rljob_runtime.engines.vllm_extension import WeightLoader


class Runner:
    """The part of vLLM's model runners that an update needs."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model
        self.configuration: Any = None
        """vLLM's current one while weights were loaded."""

    def get_model(self) -> torch.nn.Module:
        return self.model

    def reload_weights(self, weights_iterator: Any = None, is_checkpoint_format: bool = True) -> None:
        from vllm.config import get_current_vllm_config

        assert is_checkpoint_format
        self.configuration = get_current_vllm_config()
        with torch.no_grad():
            for name, tensor in weights_iterator:
                self.model.get_parameter(name).copy_(tensor)


def test_an_update_needs_no_method_of_the_worker_s_own(tmp_path: Path) -> None:
    model, new = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    save_file(new.state_dict(), tmp_path / "model.safetensors")
    configuration, runner = SimpleNamespace(), Runner(model)
    worker = SimpleNamespace(device=torch.device("cpu"), model_runner=runner, vllm_config=configuration)
    WeightLoader.load_folder(worker, str(tmp_path))
    assert torch.equal(model.weight, new.weight) and torch.equal(model.bias, new.bias)
    assert runner.configuration is configuration

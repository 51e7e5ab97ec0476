"""How vLLM gets to know a model's class, where nothing is in its cache: in a new pod."""

from pathlib import Path

import pytest
from vllm import envs
from vllm.model_executor.models import registry

from rljob_runtime.engines.vllm_inspection import inspect_here

ARCHITECTURE = "Qwen3ForCausalLM"


def test_a_model_is_looked_at_without_one_more_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path))
    assert str(tmp_path) in envs.VLLM_CACHE_ROOT
    # Kept, so that it is as before when the test has ended.
    monkeypatch.setattr(registry, "_run_in_subprocess", registry._run_in_subprocess)

    monkeypatch.setattr(registry, "_SUBPROCESS_COMMAND", ["false"])
    inspect_here()
    found = registry.ModelRegistry.models[ARCHITECTURE].inspect_model_cls()
    assert found.architecture == ARCHITECTURE and found.is_text_generation_model
    # What vLLM keeps of it for the next time is there as well.
    assert list((tmp_path / "modelinfos").iterdir())

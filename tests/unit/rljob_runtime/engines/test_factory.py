"""What an engine is built with: room for adapters, whether it keeps KV."""

from typing import Any

import msgspec
import pytest

from rljob_api import RLJob
from rljob_runtime.engines.factory import EngineSpec, adapter_room, make
from rljob_runtime.engines.joint import JointEngine
from rljob_runtime.engines.protocol import Sampling
from rljob_runtime.engines.torch import TorchEngine
from rljob_runtime.engines.vllm import VllmEngine
from rljob_runtime.engines.vllm_shape import AdapterRoom
from tests.support.jobs import job


@pytest.mark.parametrize(
    ("staleness", "running"), [(0.0, 2), (0.5, 3), (1.0, 3), (4.0, 6), (6.0, 8), (1000.0, 8)]
)
def test_room_for_the_versions_that_run_beside_each_other(staleness: float, running: int) -> None:
    changes = {"training.adapter": {"rank": 12}, "training.async.maxStaleness": staleness}
    assert adapter_room(RLJob.model_validate(job(changes))) == AdapterRoom(12, running, kept=16)


def test_a_job_without_an_adapter_needs_none() -> None:
    with pytest.raises(ValueError, match="no adapter"):
        adapter_room(RLJob.model_validate(job()))


@pytest.mark.parametrize("kind", ["torch", "vllm"])
@pytest.mark.parametrize(
    ("weight_sync", "keeps"),
    [
        ({"push": {"kvAfterUpdate": "keep"}}, True),
        ({"push": {"kvAfterUpdate": "recompute"}}, False),
        ({"push": {}}, False),
        ({"pull": {}}, False),
    ],
)
def test_whether_it_keeps_the_kv_of_earlier_weights(
    kind: str, weight_sync: dict[str, Any], keeps: bool
) -> None:
    changes = {"training.rollout.engine": {kind: {}}, "training.async.weightSync": weight_sync}
    text = RLJob.model_validate(job(changes)).model_dump_json(by_alias=True)
    engine = make("e", msgspec.msgpack.encode(EngineSpec(text, "fast_rollout", "model", Sampling(), 0)))
    assert isinstance(engine, TorchEngine | VllmEngine)
    assert engine.keeps_kv == keeps


@pytest.mark.parametrize("adapter", [{}, {"training.adapter": {}, "training.model.dtype": "bfloat16"}])
def test_engines_that_share_an_accelerator_share_its_memory_and_the_requests(adapter: dict[str, Any]) -> None:
    changes = {
        "accelerator": "nvidia",
        "pools.fastRollout.enginesPerAccelerator": 4,
        "training.rollout": {"maxRunningRequests": 10, "engine": {"vllm": {"gpuMemoryUtilization": 0.8}}},
        **adapter,
    }
    text = RLJob.model_validate(job(changes)).model_dump_json(by_alias=True)
    joint = make("e", msgspec.msgpack.encode(EngineSpec(text, "fast_rollout", "model", Sampling(), 7)))
    assert isinstance(joint, JointEngine)
    shapes = [each._shape for each in joint.engines if isinstance(each, VllmEngine)]
    assert [(shape.max_running, shape.options.gpu_memory_utilization) for shape in shapes] == [(3, 0.2)] * 4
    assert len({shape.seed for shape in shapes}) == 4
    assert all((shape.adapters is not None) == bool(adapter) for shape in shapes)
    alone = make("e", msgspec.msgpack.encode(EngineSpec(text, "heavy_rollout", "model", Sampling(), 7)))
    assert isinstance(alone, VllmEngine)

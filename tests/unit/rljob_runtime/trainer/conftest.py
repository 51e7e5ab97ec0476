"""What several tests of the trainer need."""

from collections.abc import Iterator

import pytest
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from rljob_runtime.parallel.rank_layout import TENSOR


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    """Of two ranks, of which the other one does not exist."""
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)  # type: ignore[no-untyped-call]
    yield init_device_mesh("cpu", (2,), mesh_dim_names=(TENSOR,))
    dist.destroy_process_group()

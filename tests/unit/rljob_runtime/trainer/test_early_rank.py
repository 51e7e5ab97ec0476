"""A rank of the trainer that is begun before it is known what it is to train, without Ray."""

import json

import msgspec
import pytest

from rljob_runtime.net.auth import Endpoint
from rljob_runtime.net.keys import Keyring
from rljob_runtime.trainer import early_rank, rank_actor
from tests.support.jobs import job


@pytest.mark.parametrize("missing", [False, True], ids=["all there", "something cannot be imported"])
def test_it_imports_and_then_is_the_rank_that_it_is_told(
    monkeypatch: pytest.MonkeyPatch, missing: bool
) -> None:
    def imports() -> None:
        if missing:
            raise ImportError("libfoo.so is too old")

    monkeypatch.setattr(rank_actor, "import_needed", imports)
    rank = early_rank.TrainerActor(1)
    rank.begin([spec(0), spec(1)])
    assert rank._spec.rank == 1
    assert [each.part for each in rank._start.parts] == ["process", "imports"]
    if missing:
        # It is told where it is needed.
        with pytest.raises(ImportError, match="libfoo"):
            rank.prepare()
        return
    assert rank.prepare() is None, "it is not the one at which the others meet"


def spec(rank: int) -> bytes:
    _, keys = Keyring().pair("queue")
    return msgspec.msgpack.encode(
        rank_actor.TrainerSpec(
            job=json.dumps(job()), model_folder="/nowhere", model=None, code_folder="/nowhere",
            checkpoint_root="/nowhere", weights_root=None, serve=None, events_folder=None, events_rank=0,
            rank=rank, world_size=2, total_updates=1, keep_versions=2,
            endpoint=Endpoint("tcp://127.0.0.1:1", ""), keys=keys,
        )
    )  # fmt: skip

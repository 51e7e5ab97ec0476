"""Jobs for tests of trainer ranks: also where the machine has not what they run on."""

from tests.support.runtime.trainer_ranks import trainer_job


def test_a_job_on_accelerators_is_valid() -> None:
    made = trainer_job(ranks=2, accelerator="nvidia", compute={"compile": False})
    assert made.spec.accelerator == "nvidia"
    assert made.spec.pools.trainer.replicas == 2

"""From the job's fields to its policy."""

from typing import Any

import pytest

from rljob_api import RLJob
from rljob_runtime.routing.adaptive import Adaptive
from rljob_runtime.routing.choose import policy_of
from rljob_runtime.routing.fixed import Adjacent, Interleaved
from rljob_runtime.routing.policy import Policy
from rljob_runtime.routing.probe import ProbePolicy, ProbeSettings
from rljob_runtime.routing.requests import EngineShape, GroupRequest, Place
from rljob_runtime.routing.router import Router
from tests.support.jobs import job

HEAVY = {"pools.heavyRollout.replicas": 2}


@pytest.mark.parametrize(
    ("routing", "kind"),
    [
        ({"adjacent": {}}, Adjacent),
        ({"interleaved": {}}, Interleaved),
        ({"leastInFlight": {}}, Policy),
        ({"probe": {"heavyShare": 0.5}}, ProbePolicy),
        ({"adaptive": {}}, Adaptive),
    ],
)
def test_each_policy(routing: dict[str, Any], kind: type[Policy]) -> None:
    spec = RLJob.model_validate(job({"training.rollout.routing": routing, **HEAVY})).spec
    assert type(policy_of(spec)) is kind
    assert policy_of(spec) is not policy_of(spec)


@pytest.mark.parametrize(("routing", "engines"), [("adjacent", [0, 0, 1, 1]), ("interleaved", [0, 1, 0, 1])])
def test_fixed_places_are_those_of_the_prompts_of_a_step(routing: str, engines: list[int]) -> None:
    """Four prompts, two engines."""
    spec = RLJob.model_validate(job({"training.rollout.routing": {routing: {}}})).spec
    router = Router(policy_of(spec))
    for number in range(2):
        router.join(number, EngineShape("fast", 8))
    for uid in range(4):
        router.dispatch(GroupRequest(uid, uid, 10, 1), 0.0)
    placed = {each.request.uid: each.engine for each in router.decide(0.0) if isinstance(each, Place)}
    assert [placed[uid] for uid in range(4)] == engines


@pytest.mark.parametrize(("fast", "heavy"), [(1, 0), (2, 0), (0, 1), (1, 1)])
def test_work_is_divided_by_length_whatever_the_sizes_are(fast: int, heavy: int) -> None:
    """They may be scaled at any time, and a job keeps its policy."""
    sizes = {"pools.fastRollout.replicas": fast, "pools.heavyRollout.replicas": heavy}
    assert type(policy_of(RLJob.model_validate(job(sizes)).spec)) is Adaptive


def test_adaptive_routing_knows_what_a_step_trains() -> None:
    changes = {"training.schedule.promptsPerBatch": 8, **HEAVY}
    policy = policy_of(RLJob.model_validate(job(changes)).spec)
    assert isinstance(policy, Adaptive) and policy.order._groups_per_step == 8


@pytest.mark.parametrize(("stale", "urgent"), [("wait", 0), ("mask", None)])
def test_a_deadline_is_urgent_where_a_step_waits_for_it(stale: str, urgent: int | None) -> None:
    policy = policy_of(RLJob.model_validate(job({"training.async.staleTokens": stale, **HEAVY})).spec)
    assert isinstance(policy, Adaptive)
    router = Router(policy)
    for uid in range(2):
        router.dispatch(GroupRequest(uid, uid, 10, 1, deadline=uid), 0.0)
    assert policy.urgent == urgent


@pytest.mark.parametrize(
    ("fields", "settings"),
    [
        ({"heavyShare": 0.25}, ProbeSettings(4, 1, 0.25, 1.5, restart=True)),
        (
            {"probes": 2, "cohortPrompts": 64, "heavyShare": 0.1, "capFactor": 3.0, "onTrip": "move"},
            ProbeSettings(64, 2, 0.1, 3.0, restart=False),
        ),
    ],
    ids=["as published, the prompts of a step", "every field"],
)
def test_every_constant_of_the_probe_policy_is_a_field(
    fields: dict[str, Any], settings: ProbeSettings
) -> None:
    spec = RLJob.model_validate(job({"training.rollout.routing": {"probe": fields}, **HEAVY})).spec
    policy = policy_of(spec)
    assert isinstance(policy, ProbePolicy) and policy.settings == settings

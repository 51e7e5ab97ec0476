"""A job that Kueue queues: what its RayCluster carries, and what it does not."""

import argparse

import pytest
import yaml

from rljob_api import RLJob
from rljob_operator.plan.observed import Queue
from rljob_operator.render import ray_cluster
from rljob_operator.render.command import RenderCommand
from rljob_operator.render.labels import queue_of
from tests.support.jobs import job
from tests.support.operator.rendered import GROUPS, KEY, NEW, cluster, group, spec

NAME, PRIORITY = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/priority-class"

LABELS = {
    "none": ({}, None),
    "others": ({"team": "rl", PRIORITY: "high"}, None),
    "an empty name": ({NAME: ""}, None),
    "a queue": ({NAME: "team-a", "team": "rl"}, Queue("team-a")),
    "a queue and a priority": ({NAME: "team-a", PRIORITY: "high"}, Queue("team-a", "high")),
}


@pytest.mark.parametrize(("labels", "queue"), LABELS.values(), ids=LABELS)
def test_the_queue_is_read_from_the_jobs_labels(labels, queue):
    assert queue_of(labels) == queue


@pytest.mark.parametrize(
    ("queue", "labels"),
    [
        (Queue("team-a"), {NAME: "team-a"}),
        (Queue("team-a", "high"), {NAME: "team-a", PRIORITY: "high"}),
    ],
)
def test_a_queued_cluster_is_suspended_and_labelled_and_nothing_else_differs(queue, labels):
    plain, queued = cluster(), ray_cluster(KEY, spec(), 1, NEW, queue)
    assert "suspend" not in plain["spec"] and queued["spec"].pop("suspend") is True
    assert queued["metadata"].pop("labels") == {**plain["metadata"].pop("labels"), **labels}
    assert queued == plain


def test_pods_and_groups_are_not_queued_by_themselves():
    queued = ray_cluster(KEY, spec(), 1, NEW, Queue("team-a", "high"))
    for name in ["head", *GROUPS]:
        assert "suspend" not in group(queued, name)
        assert not {NAME, PRIORITY} & group(queued, name)["template"]["metadata"]["labels"].keys()


@pytest.mark.parametrize(("labels", "suspend"), [({}, None), ({NAME: "team-a"}, True)])
def test_rljob_render_shows_it(capsys, labels, suspend):
    manifest = RLJob.model_validate(job({"image": "rljob/runtime:1", "/metadata.labels": labels}))
    parser = argparse.ArgumentParser()
    RenderCommand().add_arguments(parser)
    assert RenderCommand().run(manifest, parser.parse_args([])) == []
    [*_, made] = yaml.safe_load_all(capsys.readouterr().out)
    assert made["kind"] == "RayCluster" and made["spec"].get("suspend") is suspend
    assert labels.items() <= made["metadata"]["labels"].items()

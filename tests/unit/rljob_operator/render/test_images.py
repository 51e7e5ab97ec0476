"""The image of jobs that name none."""

import argparse

import msgspec
import pytest

from rljob_operator.controller.items import RLJobItem
from rljob_operator.controller.jobs import JobStore
from rljob_operator.render import ray_cluster, refusals
from rljob_operator.render.images import add_option, runtime_image, with_runtime_image
from tests.support.jobs import job
from tests.support.operator.rendered import KEY, NEW, NVIDIA, spec

IMAGES = {"cpu": "site/runtime:cpu", "nvidia": "site/runtime:cuda"}


def images(rendered):
    groups = [rendered["spec"]["headGroupSpec"], *rendered["spec"]["workerGroupSpecs"]]
    return {each["image"] for group in groups for each in group["template"]["spec"]["containers"]}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"image": None}, {"site/runtime:cpu"}),
        ({"image": None, **NVIDIA}, {"site/runtime:cuda"}),
        ({"image": "own:1"}, {"own:1"}),
    ],
)
def test_a_job_without_an_image_gets_that_of_its_accelerator(changes, expected):
    found = with_runtime_image(spec(changes), IMAGES)
    assert refusals(found) == []
    assert images(ray_cluster(KEY, found, 1, NEW)) == expected


@pytest.mark.parametrize("defaults", [{}, {"nvidia": "site/runtime:cuda"}])
def test_without_one_for_its_accelerator_it_is_refused_with_the_ways_out(defaults):
    [problem] = refusals(with_runtime_image(spec({"image": None}), defaults))
    assert str(problem).startswith("spec.image: must be set to an image that holds the runtime")
    assert "by --runtime-image cpu=IMAGE" in str(problem)


def test_a_template_may_name_the_image_instead_of_the_default():
    named = {"spec": {"containers": [{"name": "ray-worker", "image": "own:2"}]}}
    found = with_runtime_image(spec({"image": None, "pools.trainer.template": named}), IMAGES)
    rendered = ray_cluster(KEY, found, 1, NEW)
    assert rendered["spec"]["workerGroupSpecs"][0]["template"]["spec"]["containers"][0]["image"] == "own:2"
    assert images(rendered) == {"own:2", "site/runtime:cpu"}


def test_the_operator_reads_jobs_with_its_default():
    document = job({"image": None})
    document["metadata"] |= {
        "namespace": "n", "uid": "u", "generation": 1, "resourceVersion": "7",
        "creationTimestamp": "2026-01-01T00:00:00Z",
    }  # fmt: skip
    ref = ("n", document["metadata"]["name"])
    store, bare = JobStore(lambda _: None, IMAGES), JobStore(lambda _: None, {})
    for each in (store, bare):
        each.seen(ref, each.read(msgspec.convert(document, RLJobItem)))
    assert with_runtime_image(store.get(ref).job.spec, IMAGES).image == "site/runtime:cpu"
    assert store.get(ref).job.spec.image is None, "what attempts are compared with is what the user wrote"
    assert store.get(ref).job.invalid is None
    assert "spec.image" in bare.get(ref).job.invalid


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cpu=a", ("cpu", "a")),
        ("ascend=reg.example:5000/a/b@sha256:00", ("ascend", "reg.example:5000/a/b@sha256:00")),
        ("nvidia=a=b", ("nvidia", "a=b")),
        ("cpu", None),
        ("cpu=", None),
        ("=a", None),
        ("gpu=a", None),
        ("cpu=a b", None),
        ("", None),
    ],
)
def test_how_an_image_is_written(text, expected):
    if expected is not None:
        assert runtime_image(text) == expected
        return
    with pytest.raises(ValueError, match="one of nvidia, ascend, cpu") as error:
        runtime_image(text)
    assert repr(text) in str(error.value)


def parsed(*arguments):
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_option(parser)
    return parser.parse_args(arguments).runtime_images


def test_the_option_may_be_given_for_each_accelerator():
    assert parsed() == {}
    assert parsed("--runtime-image", "cpu=a", "--runtime-image=nvidia=b") == {"cpu": "a", "nvidia": "b"}
    assert parsed() == {}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--runtime-image=cpu=a", "--runtime-image=cpu=b"], "is given twice for cpu"),
        (["--runtime-image=gpu=a"], "must be ACCELERATOR=IMAGE"),
    ],
)
def test_wrong_options_are_named(arguments, words):
    with pytest.raises(argparse.ArgumentError, match=words):
        parsed(*arguments)

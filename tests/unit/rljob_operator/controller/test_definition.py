"""What the operator says and does about a cluster's definition of RLJobs of another release."""

import logging
from copy import deepcopy

import msgspec
import pytest

from rljob_api.crd import custom_resource_definition
from rljob_api.status import Status
from rljob_operator.controller.definition import Definition

STATUS = Status(attempt=2, spec_digest="d", phase="Restarting")


class Server:
    """Serves definitions one after the other, a newer one with each look."""

    def __init__(self, *schemas):
        self.schemas = list(schemas)

    async def send(self, call, seconds):
        kind = {"group": "rljob.dev", "version": "v1alpha1", "kind": "RLJob"}
        schema = {**self.schemas.pop(0), "x-kubernetes-group-version-kind": [kind]}
        return msgspec.json.encode({"components": {"schemas": {"RLJob": schema}}})


def schema(*removed, **added):
    """This release's, without these fields of the status, and with these fields of the spec."""
    [version] = custom_resource_definition()["spec"]["versions"]
    made = deepcopy(version["schema"]["openAPIV3Schema"])
    for name in removed:
        del made["properties"]["status"]["properties"][name]
    made["properties"]["spec"]["properties"] |= added
    return made


async def seen(*schemas):
    """The definition after as many looks, and how often jobs were to be looked at anew."""
    changes = []
    server = Server(*schemas)
    definition = Definition(server, lambda: changes.append(1), 0.0, 0.0)
    # Where no more are served.
    with pytest.raises(IndexError):
        await definition.run()
    return definition, len(changes)


async def test_one_of_this_release_takes_all(caplog):
    definition, changes = await seen(schema(), schema())
    assert definition.storable(STATUS) is STATUS
    assert (definition.trouble, changes, caplog.records) == (None, 0, [])


async def test_an_older_one_gets_what_it_knows_and_that_is_said_once(caplog):
    definition, changes = await seen(schema("specDigest"), schema("specDigest"))
    assert definition.storable(STATUS) == STATUS.model_copy(update={"spec_digest": None})
    assert (definition.trouble, changes) == (None, 1)
    [said] = caplog.records
    assert said.levelno == logging.WARNING
    assert "it lacks status.specDigest, which is left out of what is written" in said.getMessage()


async def test_once_it_is_replaced_all_is_written(caplog):
    definition, changes = await seen(schema("specDigest"), schema())
    assert definition.storable(STATUS) is STATUS
    assert changes == 2


async def test_one_without_what_is_needed_stops_the_operator(caplog):
    definition, changes = await seen(schema("headPod", "specDigest"))
    assert "lacks status.specDigest, status.headPod" in definition.trouble
    assert "nothing is done about RLJobs" in definition.trouble and changes == 0
    mended, changes = await seen(schema("headPod", "specDigest"), schema())
    assert (mended.trouble, changes) == (None, 1)


async def test_what_a_newer_one_has_besides_is_said_once(caplog):
    newer = schema(audit={"type": "object", "default": {}})
    definition, changes = await seen(newer, newer)
    assert (definition.trouble, changes) == (None, 0)
    [said] = caplog.records
    assert "newer than this operator, which leaves out spec.audit." in said.getMessage()


async def test_the_runtimes_part_is_not_touched():
    definition, _ = await seen(schema("specDigest"))
    training = {"step": 1, "totalSteps": 2, "weightVersion": 1}
    status = Status.model_validate({"training": training})
    assert definition.storable(status).training is status.training

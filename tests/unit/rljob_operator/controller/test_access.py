"""The objects that last as long as the job, against an API server that is a table of objects."""

import pytest

from rljob_client.errors import AlreadyExists, Forbidden, Invalid, NotFound, Refusal, WebhookFailed
from rljob_operator.controller.access import CreationError, Refused, Taken, as_rendered, ensure, restore
from rljob_operator.render import JobKey, access_objects, key_secret
from tests.support.operator.observations import spec

KEY = JobKey("team", "math", "job-uid")
SECRET = key_secret(KEY, lambda size: b"x" * size)
OBJECTS = access_objects(KEY, spec({"image": "i"}))
ACCOUNT = ("ServiceAccount", "math-driver")
BINDING = ("RoleBinding", "math-driver")
ALL = [(each["kind"], each["metadata"]["name"]) for each in OBJECTS]


class Server:
    """Has objects, and refuses what it is told to."""

    def __init__(self, *objects):
        self.objects = {}
        self.writes = []
        self.refused = {}
        for each in objects:
            self.put(each)

    def put(self, manifest):
        name = manifest["kind"], manifest["metadata"]["name"]
        metadata = {**manifest["metadata"], "uid": f"uid-{name[0]}"}
        self.objects[name] = {**manifest, "metadata": metadata}

    async def get(self, resource, namespace, name, kind):
        if (resource.kind, name) not in self.objects:
            raise NotFound("get", "not found", Refusal(404))
        return self.objects[resource.kind, name]

    async def create(self, manifest):
        name = manifest["kind"], manifest["metadata"]["name"]
        self.writes.append(("create", *name))
        if name in self.refused:
            raise self.refused[name]
        if name in self.objects:
            raise AlreadyExists("create", "exists", Refusal(409, "AlreadyExists"))
        self.put(manifest)

    async def apply(self, manifest, force):
        name = manifest["kind"], manifest["metadata"]["name"]
        self.writes.append(("apply", *name))
        assert force and manifest["metadata"]["uid"] == self.objects[name]["metadata"]["uid"]
        self.put(manifest)


def owned(manifest, **owner):
    reference = {"kind": "RLJob", "name": "math", "uid": "job-uid", "controller": True, **owner}
    return {**manifest, "metadata": {**manifest["metadata"], "ownerReferences": [reference]}}


USERS = {
    "a user's": ({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "math-driver"}}, 30.0),
    "another controller's": (owned(OBJECTS[0], kind="Helm", uid="other"), 30.0),
    "an earlier job's": (owned(OBJECTS[0], uid="earlier"), 2.0),
    "another RLJob's": (owned(OBJECTS[0], name="other", uid="other"), 30.0),
    "the job's, but not by control": (owned(OBJECTS[0], controller=False), 30.0),
}


@pytest.mark.parametrize("new", [True, False], ids=["new", "known"])
@pytest.mark.parametrize(("there", "seconds"), USERS.values(), ids=USERS)
async def test_what_is_not_the_jobs_is_left_alone(there, seconds, new):
    server = Server(there)
    before = dict(server.objects[ACCOUNT])
    with pytest.raises(Taken) as raised:
        await ensure(server, KEY, SECRET, OBJECTS, new)
    assert server.objects[ACCOUNT] == before
    assert "apply" not in [verb for verb, *_ in server.writes]
    assert raised.value.again_seconds == seconds and raised.value.reason == "NameTaken"
    assert str(raised.value).startswith("ServiceAccount math-driver ")


@pytest.mark.parametrize("new", [True, False], ids=["new", "known"])
async def test_what_is_missing_is_made_and_what_is_right_is_not_written(new):
    server = Server()
    await ensure(server, KEY, SECRET, OBJECTS, new)
    assert set(ALL) < set(server.objects)
    assert server.writes[-1] == ("create", *BINDING), "before what it refers to"
    server.writes.clear()
    await ensure(server, KEY, SECRET, OBJECTS, new=False)
    assert server.writes == [("create", "Secret", SECRET["metadata"]["name"])]


@pytest.mark.parametrize("new", [True, False], ids=["new", "known"])
async def test_what_was_changed_is_set_right(new):
    server = Server(*OBJECTS)
    role = server.objects["Role", "math-driver"]
    server.put({**role, "rules": []})
    await ensure(server, KEY, SECRET, OBJECTS, new)
    assert [each for each in server.writes if each[0] == "apply"] == [("apply", "Role", "math-driver")]
    assert as_rendered(server.objects["Role", "math-driver"], OBJECTS[1])


@pytest.mark.parametrize("missing", [(), (BINDING,), ALL], ids=["nothing", "a RoleBinding", "everything"])
async def test_only_what_was_deleted_is_made_again(missing):
    server = Server(*OBJECTS)
    server.objects[ACCOUNT]["automountServiceAccountToken"] = True  # a change stands until the next attempt
    for each in missing:
        del server.objects[each]
    await restore(server, OBJECTS)
    assert set(server.writes) == {("create", *each) for each in missing}
    assert set(server.objects) == set(ALL)


REFUSALS = {
    "by a policy": Forbidden("create", "denied the request: no bindings here.", Refusal(403, "Forbidden")),
    "by its schema": Invalid("create", "denied the request: no bindings here.", Refusal(422, "Invalid")),
    "for a webhook that fails": WebhookFailed("create", "denied the request: no bindings here."),
}


@pytest.mark.parametrize("error", REFUSALS.values(), ids=REFUSALS)
async def test_what_the_api_server_refuses_is_told_in_its_words(error):
    server = Server()
    server.refused[BINDING] = error
    for make in (ensure(server, KEY, SECRET, OBJECTS, True), restore(server, OBJECTS)):
        with pytest.raises(Refused) as raised:
            await make
        assert str(raised.value) == (
            "The API server refuses RoleBinding math-driver: denied the request: no bindings here."
        )


async def test_a_namespace_that_goes_refuses_nothing():
    server = Server()
    going = Forbidden("create", "terminating", Refusal(403, "Forbidden", "", (("NamespaceTerminating", ""),)))
    server.refused[ACCOUNT] = going
    with pytest.raises(Forbidden) as raised:
        await ensure(server, KEY, SECRET, OBJECTS, True)
    assert not isinstance(raised.value, CreationError)


RENDERED = OBJECTS[1]
SAME = {
    "as it was made": ({}, True),
    "with more labels": ({"metadata": {"labels": {**RENDERED["metadata"]["labels"], "more": "1"}}}, True),
    "with a field of somebody's": ({"aggregationRule": {}}, True),
    "without its labels": ({"metadata": {}}, False),
    "with another rule": ({"rules": [*RENDERED["rules"], {"verbs": ["*"]}]}, False),
    "without its rules": ({"rules": None}, False),
}


@pytest.mark.parametrize(("change", "same"), SAME.values(), ids=SAME)
def test_what_counts_as_rendered(change, same):
    assert as_rendered({**RENDERED, **change}, RENDERED) is same

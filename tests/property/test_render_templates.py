"""Whatever a template holds, it is refused in words or rendered: neither ends in an exception."""

import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rljob_operator.render import JobKey, KubeRay, objects, refusals
from tests.support.depth import examples
from tests.support.operator.refused_specs import spec

KEY = JobKey("default", "test", "an-uid")
POOLS = ("head", "trainer", "heavyRollout")
NAMES = (
    "ray-head", "ray-worker", "driver", "rewards", "own", "runs", "shared-memory", "scratch", "token",
    "RAY_ADDRESS", "RLJOB_NAME", "/dev/shm", "/rljob", "a/b", "Never", "", "1Gi",
)  # fmt: skip
KEYS = (
    "metadata", "spec", "labels", "annotations", "containers", "initContainers", "volumes", "volumeMounts",
    "env", "envFrom", "name", "image", "resources", "requests", "limits", "memory", "mountPath", "lifecycle",
    "preStop", "livenessProbe", "exec", "command", "ports", "containerPort", "protocol", "tolerations",
    "securityContext", "imagePullSecrets", "hostAliases", "claims", "serviceAccountName", "restartPolicy",
    "terminationGracePeriodSeconds", "shareProcessNamespace", "hostNetwork",
)  # fmt: skip
SCALARS = st.none() | st.booleans() | st.integers(-1, 2) | st.floats(0, 1) | st.sampled_from(NAMES)
KEY_NAMES = st.sampled_from(KEYS) | st.text(max_size=2)
ANY = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEY_NAMES, inner, max_size=4),
    max_leaves=12,
)
ITEM = st.dictionaries(KEY_NAMES, ANY, max_size=4).flatmap(
    lambda fields: st.sampled_from(NAMES).map(lambda name: {**fields, "name": name})
)
ITEMS = st.lists(ITEM, max_size=3) | ANY
POD = st.fixed_dictionaries(
    {}, optional={"containers": ITEMS, "initContainers": ITEMS, "volumes": ITEMS, "imagePullSecrets": ITEMS}
).flatmap(lambda lists: st.dictionaries(KEY_NAMES, ANY, max_size=3).map(lambda more: {**more, **lists}))
METADATA = st.fixed_dictionaries({}, optional={"labels": ANY, "annotations": ANY})
TEMPLATE = st.fixed_dictionaries({}, optional={"metadata": METADATA, "spec": POD}) | st.dictionaries(
    KEY_NAMES, ANY, max_size=3
)


@settings(max_examples=examples(300))
@example("head", {"spec": {"securityContext": 1}}, {})
@given(st.sampled_from(POOLS), TEMPLATE, st.dictionaries(KEY_NAMES, ANY, max_size=2))
def test_it_is_refused_or_rendered(pool, template, volume):
    found = spec({f"pools.{pool}.template": template, "storage.volume": volume})
    problems = refusals(found)
    assert all(str(problem) for problem in problems)
    if not problems:
        msgspec.json.encode(objects(KEY, found, 1, KubeRay(True)))

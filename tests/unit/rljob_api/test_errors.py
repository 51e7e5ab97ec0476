"""What people are told about fields that are wrong by themselves."""

import pytest
from pydantic import ValidationError

from rljob_api import RLJob
from rljob_api.base import Model
from rljob_api.errors import dotted, nearest, problems, unwrap, yaml_fields
from rljob_api.schedule import Schedule
from tests.support.jobs import REMOVED, job


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"training.async.maxStalenes": 1},
            "spec.training.async.maxStalenes: unknown field. Did you mean maxStaleness?",
        ),
        (
            {"training.schedule": {"total_steps": 4}},
            "spec.training.schedule.total_steps: unknown field. Did you mean totalSteps?",
        ),
        ({"training.async_": {}}, "spec.training.async_: unknown field. Did you mean async?"),
        (
            {"pools.fast_rollout": {}},
            "spec.pools.fast_rollout: unknown field. Did you mean fastRollout?",
        ),
        (
            {"training.profiling.zzz": 1},
            "spec.training.profiling.zzz: unknown field (known here: entropy, events, maxEventsMiB, "
            "samplesPerStep).",
        ),
        (
            {"accelerator": "cpus"},
            "spec.accelerator: 'cpus' is not allowed; it must be one of nvidia, ascend, cpu. "
            "Did you mean cpu?",
        ),
        (
            {"training.maxResponseTokens": 8},
            "spec.training.maxResponseTokens: unknown field here: it is "
            "spec.training.rollout.maxResponseTokens.",
        ),
        (
            {"replicas": 2},
            "spec.replicas: unknown field here: it is spec.pools.trainer.replicas, "
            "spec.pools.fastRollout.replicas or spec.pools.heavyRollout.replicas.",
        ),
        ({"/suspend": True}, "suspend: unknown field here: it is spec.suspend."),
        (
            {"training.reward.weight": 1},
            "spec.training.reward.weight: unknown field here: it is spec.training.data.sources[].weight or "
            "spec.training.reward.functions[].weight.",
        ),
        # The trainer's field of that name is not meant.
        *(
            (
                {path: value},
                f"spec.{path}{more}: unknown field: an engine splits the model's layers over all "
                "accelerators of its worker, spec.pools.fastRollout.acceleratorsPerWorker and "
                "spec.pools.heavyRollout.acceleratorsPerWorker.",
            )
            for path, value, more in (
                ("pools.heavyRollout.tensorParallel", 4, ""),
                ("training.rollout.tensor_parallel_size", 4, ""),
                ("training.rollout.engine", {"vllm": {"tensorParallelSize": 2}}, ".vllm.tensorParallelSize"),
            )
        ),
        (
            {"pools.trainer.tensorParallel": 2},
            "spec.pools.trainer.tensorParallel: unknown field here: it is "
            "spec.training.parallel.tensorParallel.",
        ),
        # Of many places none is likelier than what is known here.
        (
            {"training.profiling.path": "x"},
            "spec.training.profiling.path: unknown field (known here: entropy, events, maxEventsMiB, "
            "samplesPerStep).",
        ),
        # What the operator writes is nothing that is put elsewhere.
        (
            {"training.profiling.phase": "x"},
            "spec.training.profiling.phase: unknown field (known here: entropy, events, maxEventsMiB, "
            "samplesPerStep).",
        ),
        (
            {"training.reward": {"functions": [{"name": "a", "function": "a:b", "wieght": 1}]}},
            "spec.training.reward.functions[0].wieght: unknown field. Did you mean weight?",
        ),
        ({"/kind": "Job"}, "kind: 'Job' is not allowed; it must be RLJob."),
        (
            {"training.data.generated.task": REMOVED},
            "spec.training.data.generated.task: must be set to one of copy, repeat, count, reverse.",
        ),
        (
            {"pools.trainer.replicas": 0},
            "spec.pools.trainer.replicas: 0 is below the smallest allowed value 1.",
        ),
        (
            {"pools.trainer.replicas": 5000},
            "spec.pools.trainer.replicas: 5000 is above the largest allowed value 4096.",
        ),
        (
            {"training.rollout.temperature": 0},
            "spec.training.rollout.temperature: must be above 0 (found 0).",
        ),
        (
            {"training.algorithm.policyLoss": {"clip": {"low": 1}}},
            "spec.training.algorithm.policyLoss.clip.low: must be below 1 (found 1).",
        ),
        (
            {"pools.trainer.replicas": "two"},
            "spec.pools.trainer.replicas: must be a whole number (found 'two').",
        ),
        (
            {"pools.trainer.replicas": "2"},
            "spec.pools.trainer.replicas: must be a whole number (found '2'): write it without quotes.",
        ),
        (
            {"training.schedule.totalSteps": 60.0},
            "spec.training.schedule.totalSteps: must be a whole number (found 60.0): write it as 60.",
        ),
        (
            {"training.schedule.totalSteps": 1e2},
            "spec.training.schedule.totalSteps: must be a whole number (found 100.0): write it as 100.",
        ),
        (
            {"training.schedule.totalSteps": 1.5},
            "spec.training.schedule.totalSteps: must be a whole number (found 1.5).",
        ),
        (
            {"training.schedule.totalSteps": 1e30},
            "spec.training.schedule.totalSteps: must be a whole number (found 1e+30).",
        ),
        (
            {"training.schedule.totalSteps": float("nan")},
            "spec.training.schedule.totalSteps: must be a whole number (found nan).",
        ),
        (
            {"training.data": REMOVED},
            "spec.training.data: must be set by one of jsonl, parquet, huggingFace, generated, sources "
            "(The prompts).",
        ),
        (
            {"pools.trainer.replicas": True},
            "spec.pools.trainer.replicas: must be a whole number (found true).",
        ),
        (
            {"training.optimizer.learningRate": "1e-3"},
            "spec.training.optimizer.learningRate: must be a number (found '1e-3').",
        ),
        (
            {"training.optimizer.learningRate": float("nan")},
            "spec.training.optimizer.learningRate: must be a finite number (found nan).",
        ),
        (
            {"training.data.shuffle": "yes"},
            "spec.training.data.shuffle: must be true or false (found 'yes').",
        ),
        (
            {"pools": [1]},
            "spec.pools: must be a mapping with head, trainer, fastRollout, heavyRollout (found a list).",
        ),
        (
            {"training.async": None},
            "spec.training.async: must be a mapping with maxStaleness, stepsPerVersion, staleTokens, "
            "weightSync, queueCapacity (found nothing).",
        ),
        ({"training": 3}, "spec.training: must be a mapping (found 3)."),
        (
            {"training.rollout.routing": {"adaptive": True}},
            "spec.training.rollout.routing.adaptive: must be {}, for it has no fields (found true).",
        ),
        (
            {"training.parallel.cpuOffload": True},
            "spec.training.parallel.cpuOffload: training.parallel.cpuOffload is for accelerator: nvidia and "
            "ascend: CPUs compute in main memory (training.parallel.cpuOffload is true, accelerator is cpu).",
        ),
        (
            {"training.algorithm": {"kl": 0.1}},
            "spec.training.algorithm.kl: must be a mapping with coefficient, estimator (found 0.1).",
        ),
        (
            {"training.algorithm": {"policyLoss": "GSPO"}},
            "spec.training.algorithm.policyLoss: must be a mapping with one of clip, decoupledClip, "
            "truncatedReinforce, gspo, cispo, dppoTv, sapo, custom (found 'GSPO'): write {gspo: {}}.",
        ),
        ({"training.reward.arguments": 3}, "spec.training.reward.arguments: must be a mapping (found 3)."),
        ({"training.data.promptField": ""}, "spec.training.data.promptField: must not be empty."),
        ({"/metadata.name": "a" * 41}, "metadata.name: has more than 40 characters."),
        (
            {"/metadata.name": "Copy_1"},
            "metadata.name: must be a name of a-z, 0-9 and -, with a letter first and no - at the end "
            "(found 'Copy_1').",
        ),
        (
            {"pools.trainer.sharedMemory": "1GB"},
            "spec.pools.trainer.sharedMemory: must be a quantity such as 512Mi or 16Gi (found '1GB').",
        ),
        (
            {"storage.mountPath": "rljob"},
            "spec.storage.mountPath: must be an absolute path without colons, such as /rljob "
            "(found 'rljob').",
        ),
        (
            {"training.reward.function": "score"},
            "spec.training.reward.function: must be module:function, such as my_rewards:score "
            "(found 'score').",
        ),
        (
            {"rayVersion": "2.60"},
            "spec.rayVersion: must be a whole version, such as 2.60.0 (found '2.60').",
        ),
        (
            {"accelerator": "nvidia", "resourceName": "gpu"},
            "spec.resourceName: must be a resource with its vendor, such as nvidia.com/gpu (found 'gpu').",
        ),
        ({"/metadata.namespace": 5}, "metadata.namespace: must be a string (found 5): quote it."),
        (
            {"/metadata.labels": {"team": True}},
            "metadata.labels.team: must be a string (found true): quote it.",
        ),
        # Quotes alone would lead to the next error.
        (
            {"rayVersion": 2.6},
            "spec.rayVersion: must be a string, a whole version, such as 2.60.0 (found 2.6).",
        ),
        (
            {"/metadata.name": 123},
            "metadata.name: must be a string, a name of a-z, 0-9 and -, with a letter first and no - at the "
            "end (found 123).",
        ),
        ({"rayVersion": [2]}, "spec.rayVersion: must be a string (found a list)."),
        (
            {"pools.head.resources": {"limits": "all"}},
            "spec.pools.head.resources.limits: must be a mapping (found 'all').",
        ),
    ],
)
def test_one_line_says_it_all(changes, told):
    with pytest.raises(ValidationError) as caught:
        RLJob.model_validate(job(changes))
    assert [str(problem) for problem in problems(caught.value, RLJob)] == [told]


@pytest.mark.parametrize("side", ["requests", "limits"])
def test_each_quantity_has_a_line_of_its_own(side):
    amounts = {"cpu": 0.5, "memory": "16GB", "a.b/c": -1, "d": True, "e": "1\n", "good": "0.5", "count": 4}
    amounts |= {"f": "9" * 33, "g": "9" * 5000, "h": 10**32, "fits": "9" * 30 + "Gi", "fits too": 10**32 - 1}
    with pytest.raises(ValidationError) as caught:
        RLJob.model_validate(job({"pools.trainer.resources": {side: amounts}}))
    form = "must be a quantity such as 4, 500m, '0.5' (quoted) or 16Gi, of at most 32 characters"
    long = "9" * 56
    assert [str(problem) for problem in problems(caught.value, RLJob)] == [
        f"spec.pools.trainer.resources.{side}.{name}: {form} (found {found})."
        for name, found in (
            ("a.b/c", "-1"), ("cpu", "0.5"), ("d", "true"), ("e", "'1\\n'"), ("f", f"'{'9' * 33}'"),
            ("g", f"'{long}..."), ("h", f"1{'0' * 32}"), ("memory", "'16GB'"),
        )
    ]  # fmt: skip


def test_every_pattern_is_told_in_words():
    def untold(model):
        for name, field in yaml_fields(model).items():
            below = unwrap(field.annotation)
            if isinstance(below, type) and issubclass(below, Model):
                yield from untold(below)
            patterns = [bound for bound in field.metadata if getattr(bound, "pattern", None)]
            if patterns and "form" not in (field.json_schema_extra or {}):
                yield name

    assert list(untold(RLJob)) == []


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("maxStalenes", "maxStaleness"),
        ("maxstaleness", "maxStaleness"),
        ("max_staleness", "maxStaleness"),
        ("stepsPerVersions", "stepsPerVersion"),
        ("qqq", None),
    ],
)
def test_nearest(word, meant):
    assert nearest(word, ["maxStaleness", "stepsPerVersion", "weightSync", "queueCapacity"]) == meant


@pytest.mark.parametrize(
    ("path", "text"), [((), ""), (("spec",), "spec"), (("spec", "items", 3, "name"), "spec.items[3].name")]
)
def test_dotted(path, text):
    assert dotted(path) == text


def test_python_names_construct_and_are_no_fields_of_a_document():
    assert Schedule(total_steps=3) == Schedule.model_validate({"totalSteps": 3})
    with pytest.raises(ValidationError) as caught:
        Schedule.model_validate({"total_steps": 3})
    assert "total_steps" in str(caught.value)

"""`rljob render`."""

from importlib.metadata import EntryPoint

import pytest
import yaml

from rljob_api import RLJob
from rljob_operator.render import JobKey, KubeRay, objects
from rljob_operator.render.command import NO_UID
from rljob_runtime.cli import extensions, main
from tests.support.jobs import job

CLUSTER = {"image": "rljob/runtime:1", "/metadata.namespace": "research"}


def write(tmp_path, changes=None):
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(job(changes or CLUSTER)))
    return str(path)


@pytest.mark.parametrize(
    ("options", "attempt", "version"),
    [([], 1, "1.6.2"), (["--attempt", "7"], 7, "1.6.2"), (["--kuberay", "1.4.2"], 1, "1.4.2")],
)
def test_prints_what_is_applied(tmp_path, capsys, options, attempt, version):
    assert main(["render", *options, write(tmp_path)]) == 0
    out, err = capsys.readouterr()
    key = JobKey("research", "test", NO_UID)
    spec = RLJob.model_validate(job(CLUSTER)).spec
    assert list(yaml.safe_load_all(out)) == objects(key, spec, attempt, KubeRay.of_version(version))
    assert "&id" not in out
    assert err == ""


def test_a_job_without_an_image_is_rendered_with_the_one_that_is_given(tmp_path, capsys):
    path = write(tmp_path, {"image": None})
    assert main(["render", path]) == 2
    assert "--runtime-image cpu=IMAGE" in capsys.readouterr().err
    assert main(["render", "--runtime-image", "cpu=site/runtime:2", path]) == 0
    assert capsys.readouterr().out.count("image: site/runtime:2\n") == 6


def test_says_what_is_wrong_and_where(tmp_path, capsys):
    wrong = {"pools.trainer.template": {"spec": {"hostNetwork": True}}}
    path = write(tmp_path, wrong)
    assert main(["render", path]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert lines[0].startswith(f"{path}:5  spec.image: must be set")
    assert lines[1].startswith(f"{path}:11  spec.pools.trainer.template.spec.hostNetwork: must not be set: ")
    assert lines[2].startswith("2 errors.")


def test_validate_tells_the_same_of_pods_but_not_what_a_cluster_alone_needs(tmp_path, capsys):
    wrong = {
        "pools.trainer.template": {"spec": {"hostNetwork": True}},
        "pools.head": {"template": {"metadata": {"labels": {"a": 1}}}, "sharedMemory": "5Gi"},
        "pools.fastRollout.resources": {"limits": {"gpu": 1}},
        "storage.mountPath": "/tmp",
        # An image and a volume are missing, and pods share no memory: nothing to one machine.
        "image": None,
        "pools.trainer.replicas": 2,
        "training.async.weightSync": {"push": {}, "transport": "shm"},
    }
    path = write(tmp_path, wrong)
    assert main(["render", path]) == 2
    rendered = capsys.readouterr().err.splitlines()
    assert main(["validate", path]) == 2
    validated = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("warning: ")]
    assert len(validated) == 6 and validated[-1].startswith("5 errors.")
    alone = [line for line in rendered[:-1] if line not in validated]
    assert [line.split()[1] for line in alone] == [
        "spec.image:",
        "spec.storage.volume:",
        "spec.training.async.weightSync.transport:",
    ]


def test_what_the_file_says_is_told_of_templates(tmp_path, capsys):
    path = tmp_path / "job.yaml"
    labels = {"pools.trainer.template": {"metadata": {"labels": {"team": "TEAM"}}}}
    path.write_text(yaml.safe_dump(job(CLUSTER | labels)).replace("TEAM", "0123"))
    assert main(["render", str(path)]) == 2
    assert (
        "labels.team: must be a string: put it in quotes (found 83). The file says 0123, "
        "which YAML reads as 83.\n"
    ) in capsys.readouterr().err


def test_what_is_in_the_cluster_is_not_looked_for(tmp_path, capsys):
    changes = {**CLUSTER, "training.model": {"path": "/models/of-the-cluster"}, "training.tokenizer": None}
    assert main(["render", write(tmp_path, changes)]) == 0
    assert "kind: RayCluster" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--kuberay", "1.2.0"], "KubeRay 1.2.0 is too old"),
        (["--attempt", "0"], "must be a number from 1"),
        (["--attempt", "x"], "must be a number from 1"),
    ],
)
def test_wrong_options(tmp_path, capsys, options, words):
    with pytest.raises(SystemExit) as ended:
        main(["render", write(tmp_path), *options])
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def test_help_lists_it(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    assert "print the Kubernetes objects" in capsys.readouterr().out


GONE = EntryPoint("render", "rljob_gone.render:Command", extensions.GROUP)


@pytest.mark.parametrize("installed", [[], [GONE]], ids=["no entry point", "no package"])
def test_without_the_operator_it_says_what_to_install(tmp_path, capsys, monkeypatch, installed):
    monkeypatch.setattr(extensions, "entry_points", lambda group: installed)
    assert main(["render", write(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        "rljob: render is a command of the operator, which is not installed: from the checkout, "
        "pip install '.[operator]'.\n"
    )


@pytest.mark.parametrize("installed", [[], [GONE]], ids=["no entry point", "no package"])
def test_without_the_operator_validate_tells_which_templates_nobody_has_looked_at(
    tmp_path, capsys, monkeypatch, installed
):
    monkeypatch.setattr(extensions, "entry_points", lambda group: installed)
    path = write(tmp_path, {"pools.head.template": {"spec": {"hostPID": True}}})
    assert main(["validate", path]) == 0
    [said] = [line for line in capsys.readouterr().err.splitlines() if "template" in line]
    assert said.endswith(
        "spec.pools.head.template: is checked by the operator, which is not installed: from the checkout, "
        "pip install '.[operator]'."
    )


def test_other_commands_need_no_operator(capsys, monkeypatch):
    monkeypatch.setattr(extensions, "entry_points", lambda group: [GONE])
    assert main(["crd"]) == 0
    assert capsys.readouterr().err == ""
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "render" not in capsys.readouterr().out

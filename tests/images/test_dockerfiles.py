"""All Dockerfiles: rules as hadolint has them, each as a row, and the files that they name."""

import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tools.cluster.image_settings import NAMES, ROOT, context_files, install_settings, version


@dataclass(frozen=True)
class Step:
    """An instruction, with its lines joined and without comments."""

    word: str
    text: str


def steps(text: str) -> list[Step]:
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    split = (line.split(maxsplit=1) for line in joined.splitlines() if line.strip())
    return [Step(word, rest) for word, rest in split]


def each(word: str, wanted: Callable[[str], bool]) -> Callable[[list[Step]], bool]:
    return lambda found: all(wanted(step.text) for step in found if step.word == word)


def last(word: str, wanted: Callable[[str], bool]) -> Callable[[list[Step]], bool]:
    return lambda found: wanted([step.text for step in found if step.word == word][-1])


def apt_is_clean(text: str) -> bool:
    return "apt-get install" not in text or (
        all(part in text for part in ("apt-get update", "--yes", "--no-install-recommends"))
        and "rm -rf /var/lib/apt/lists/*" in text
    )


def installs_are_pinned(text: str) -> bool:
    return "pip install" not in text or bool(re.search(r"-r \S+\.txt|/(share|dist)/\*\.whl", text))


RULES: dict[str, Callable[[list[Step]], bool]] = {
    "known instructions": lambda found: (
        {step.word for step in found}
        <= {"ARG", "FROM", "RUN", "COPY", "WORKDIR", "ENV", "USER", "EXPOSE", "ENTRYPOINT", "CMD", "LABEL"}
    ),
    "the base is an argument": lambda found: (
        found[0].word == "ARG" and found[0].text.startswith("BASE_IMAGE=")
    ),
    "stages start from the base or from a stage": lambda found: all(
        step.text.split()[0] in {"${BASE_IMAGE}", *stages(found)} for step in found if step.word == "FROM"
    ),
    "the base has a tag, and not latest": lambda found: bool(
        re.search(r":(?!latest)[\w.-]+$", found[0].text)
    ),
    "several stages": lambda found: len([step for step in found if step.word == "FROM"]) > 1,
    "the last user is 1000": last("USER", lambda text: text == "1000:1000"),
    "programs are in exec form": lambda found: all(
        step.text.startswith("[") for step in found if step.word in ("ENTRYPOINT", "CMD")
    ),
    "folders are absolute": each("WORKDIR", lambda text: text.startswith("/")),
    "apt leaves nothing behind": each("RUN", apt_is_clean),
    "no sudo, no pipe to a shell": each("RUN", lambda text: not re.search(r"\bsudo\b|\|\s*(ba)?sh\b", text)),
    "packages are pinned": each("RUN", installs_are_pinned),
    "no index is named": lambda found: (
        not re.search(r"index-url|--index|INDEX|https?://", " ".join(step.text for step in found))
    ),
    "secrets are optional": each(
        "RUN", lambda text: text.count("type=secret") == text.count("required=false")
    ),
    "steps that install get the secrets": each(
        "RUN",
        lambda text: (
            "--offline" in text or "pip install" not in text or text.count("--mount=type=secret") == 2
        ),
    ),
    "nothing is copied from an image that is not named": lambda found: all(
        source in stages(found) for step in found for source in re.findall(r"--from=(\S+)", step.text)
    ),
    "labels come last, so that they invalidate nothing": lambda found: found[-1].word == "LABEL",
}


def stages(found: list[Step]) -> set[str]:
    return {name for step in found if step.word == "FROM" for name in re.findall(r" AS (\S+)", step.text)}


def dockerfile(name: str) -> Path:
    return ROOT / "images" / name / "Dockerfile"


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", NAMES)
def test_rule(name, rule):
    assert RULES[rule](steps(dockerfile(name).read_text()))


GOOD = """\
ARG BASE_IMAGE=debian:bookworm
FROM ${BASE_IMAGE} AS one
RUN true
FROM one
USER 1000:1000
CMD ["sh"]
LABEL a=b
"""


@pytest.mark.parametrize(
    ("old", "new", "rule"),
    [
        ("RUN true", "ADD x /x", "known instructions"),
        ("ARG BASE_IMAGE=debian:bookworm", "ARG X=1", "the base is an argument"),
        ("FROM one", "FROM debian:bookworm", "stages start from the base or from a stage"),
        ("debian:bookworm", "debian:latest", "the base has a tag, and not latest"),
        ("debian:bookworm", "registry:5000/debian", "the base has a tag, and not latest"),
        ("FROM one\n", "", "several stages"),
        ("1000:1000", "root", "the last user is 1000"),
        ('["sh"]', "sh", "programs are in exec form"),
        ("RUN true", "WORKDIR x", "folders are absolute"),
        ("RUN true", "RUN apt-get install --yes x", "apt leaves nothing behind"),
        ("RUN true", "RUN wget x | sh", "no sudo, no pipe to a shell"),
        ("RUN true", "RUN pip install x", "packages are pinned"),
        ("RUN true", "RUN pip install --index-url=x -r y.txt", "no index is named"),
        ("RUN true", "RUN --mount=type=secret,id=x true", "secrets are optional"),
        ("RUN true", "RUN pip install -r x.txt", "steps that install get the secrets"),
        ("RUN true", "COPY --from=other /x /x", "nothing is copied from an image that is not named"),
        ("LABEL a=b", "RUN true", "labels come last, so that they invalidate nothing"),
    ],
)
def test_a_rule_can_be_broken(old, new, rule):
    assert RULES[rule](steps(GOOD))
    assert not RULES[rule](steps(GOOD.replace(old, new)))


@pytest.mark.parametrize("name", NAMES)
def test_a_shell_can_read_the_steps(name):
    for step in steps(dockerfile(name).read_text()):
        if step.word == "RUN":
            script = re.sub(r"^(--\S+\s+)+", "", step.text)
            done = subprocess.run(["sh", "-n", "-c", script], capture_output=True, text=True)
            assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", NAMES)
def test_what_is_copied_is_there(name):
    context = {str(path.relative_to(ROOT)) for path in context_files()}
    for step in steps(dockerfile(name).read_text()):
        if step.word == "COPY" and "--from" not in step.text:
            sources = [source for source in step.text.split()[:-1] if source != "."]
            assert set(sources) <= context


@pytest.mark.parametrize("name", NAMES)
def test_its_version_is_the_projects(name):
    assert f"\nARG VERSION={version()}\n" in dockerfile(name).read_text()


def test_builds_get_the_sources_and_no_more():
    tops = {path.relative_to(ROOT).parts[0] for path in context_files()}
    assert tops == {
        "LICENSE",
        "README.md",
        "pyproject.toml",
        "constraints",
        "crds",
        "client",
        "operator",
        "runtime",
    }
    assert not [path for path in context_files() if "__pycache__" in path.parts]


@pytest.mark.parametrize(
    ("environment", "index", "exported"),
    [
        ({}, None, []),
        ({"PIP_INDEX_URL": "a"}, "b", ["PIP_INDEX_URL=a", "UV_DEFAULT_INDEX=a"]),
        ({}, "it's", ["PIP_INDEX_URL='it'\"'\"'s'", "UV_DEFAULT_INDEX='it'\"'\"'s'"]),
        ({"UV_INDEX_URL": "u"}, "b", ["PIP_INDEX_URL=b", "UV_INDEX_URL=u"]),
        ({"HOME": "/root", "SECRET": "x"}, None, []),
    ],
)
def test_settings_of_this_machine(environment, index, exported):
    lines = install_settings(environment, index, certificates=False).splitlines()
    assert sorted(lines) == sorted(f"export {each}" for each in [*exported, "UV_CACHE_DIR=/run/uv-cache"])


def test_certificates_are_where_the_steps_look():
    text = install_settings({}, None, certificates=True)
    path = "/run/secrets/certificates"
    assert f"export SSL_CERT_FILE={path}\n" in text and f"export PIP_CERT={path}\n" in text
    for name in NAMES:
        assert f"target={path},required=false" in dockerfile(name).read_text()

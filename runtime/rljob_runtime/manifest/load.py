"""Manifest files: from a path to a checked RLJob, or to a list of everything that is wrong with it.

Guarantees: no error ends the search for others of its kind; every finding names file, line, field, what was
found and what is allowed; reading a manifest starts nothing.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from rljob_api import GROUP, KIND, VERSION, RLJob
from rljob_api.errors import Problem, blank, nearest, problems, yaml_fields
from rljob_runtime.given_files import called, no_text, read_text_file
from rljob_runtime.manifest.source import YamlError, YamlSource, parse
from rljob_runtime.manifest.unset import unset
from rljob_runtime.view.visible import visible

_M = TypeVar("_M", bound=BaseModel)


@dataclass(frozen=True)
class Finding:
    """A problem and where it is: `line` counts from 1."""

    file: str
    line: int
    problem: Problem
    written: str = ""
    """A sentence on what the file says, where the problem tells it otherwise."""

    def __str__(self) -> str:
        # Keys, values and names of files are whatever somebody wrote: a terminal is to print them.
        return visible(" ".join(filter(None, (f"{self.file}:{self.line}  {self.problem}", self.written))))


class ManifestError(ValueError):
    """The manifest cannot be run; `findings` says why, in the order of the file."""

    source: YamlSource | None = None
    """The document, where fields are wrong."""

    def __init__(self, findings: Iterable[Finding]) -> None:
        self.findings = sorted(findings, key=lambda finding: finding.line)
        super().__init__(render(self.findings))


@dataclass(frozen=True)
class Manifest:
    """A manifest whose fields are valid."""

    path: Path
    job: RLJob
    source: YamlSource

    @property
    def folder(self) -> Path:
        """What relative paths in the manifest are relative to."""
        return folder_of(self.path)

    def find(self, problem: Problem) -> Finding:
        """A problem with this manifest, with its line."""
        return find(called(self.path), self.source, problem)


def find(name: str, source: YamlSource, problem: Problem) -> Finding:
    """A problem with the document of the file that is called `name`, with its line."""
    found = source.readings.get(problem.path)
    written = found.told_in(problem.message) if found is not None else ""
    return Finding(name, source.line(problem.path), problem, written)


def folder_of(path: Path) -> Path:
    """What relative paths in a manifest are relative to: the folder that its file is in, or the current one
    where it comes by standard input or a pipe."""
    return path.resolve().parent if path.is_file() else Path.cwd()


def render(findings: list[Finding]) -> str:
    """Findings for a person, one per line, with their number at the end."""
    count = f"{len(findings)} error{'s' if len(findings) != 1 else ''}"
    return "\n".join([*map(str, findings), f"{count}. Nothing was started."])


def read_source(path: Path) -> YamlSource:
    """The YAML document at a path; raises `ManifestError`."""
    name = called(path)
    try:
        text = read_text_file(path, "utf-8-sig")  # with or without a byte order mark
    except OSError as error:
        reason = error.strerror or str(error)
        raise ManifestError([Finding(name, 1, Problem((), f"cannot be read: {reason}"))]) from error
    except UnicodeDecodeError as error:
        line, fault = no_text(error)
        raise ManifestError([Finding(name, line, Problem((), fault))]) from error
    try:
        return parse(text)
    except YamlError as error:
        raise ManifestError(
            Finding(name, line, Problem((), fault)) for line, fault in error.faults
        ) from error


def read(path: Path) -> Manifest:
    """The manifest at a path; raises `ManifestError`."""
    name, source = called(path), read_source(path)
    # First the kind: in a manifest of another one every field would be reported as unknown.
    wrong = _check_kind(source.value)
    if wrong:
        raise ManifestError(find(name, source, problem) for problem in wrong)
    try:
        job = validated(RLJob, name, source, unset(source.value))
    except ManifestError as error:
        error.source = source
        raise
    return Manifest(path, job, source)


def validated(model: type[_M], name: str, source: YamlSource, more: Iterable[Problem] = ()) -> _M:
    """A document as `model`; raises `ManifestError` with all that is wrong with it, or else with `more`."""
    try:
        read = model.model_validate(source.value)
        found = [*more, *_blank(model, source)]
    except ValidationError as error:
        found = problems(error, model)
        told = {problem.path for problem in found}
        found += [problem for problem in _blank(model, source) if problem.path not in told]
        raise ManifestError(find(name, source, item) for item in found) from error
    if found:
        raise ManifestError(find(name, source, item) for item in found)
    return read


def _blank(model: type[BaseModel], source: YamlSource) -> list[Problem]:
    """Blocks behind whose name nothing is written: they would be left out, and who names one wants it."""
    said = ((path, blank(model, path)) for path in source.blank)
    return [Problem(path, what) for path, what in said if what is not None]


def _check_kind(value: dict[str, Any]) -> list[Problem]:
    """Problems of the two fields that say what the rest means."""
    expected = {"apiVersion": f"{GROUP}/{VERSION}", "kind": KIND}
    found = []
    for field, right in expected.items():
        if field not in value:
            meant = nearest(field, [key for key in value if key not in yaml_fields(RLJob)])
            said = f" (is {meant} a misspelling of it?)" if meant else ""
            found.append(Problem((field,), f"must be {right}, and is not there{said}"))
        elif value[field] != right:
            found.append(Problem((field,), f"must be {right} (found {value[field]!r})"))
    return found

"""A file of assumptions for `rljob simulate`: YAML in the form of `simulate.assumptions`.

Guarantees: as those of `manifest.load`: every finding names file, line and field.
"""

from pathlib import Path

from pydantic import ValidationError

from rljob_api.errors import Problem, problems
from rljob_runtime.manifest.load import Finding, ManifestError
from rljob_runtime.manifest.source import YamlError, parse
from rljob_runtime.simulate.assumptions import Assumptions


def read_assumptions(path: Path) -> Assumptions:
    """The assumptions at a path; raises `ManifestError`."""
    name = str(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        reason = error.strerror or str(error)
        raise ManifestError([Finding(name, 1, Problem((), f"cannot be read: {reason}"))]) from error
    except UnicodeDecodeError as error:
        raise ManifestError([Finding(name, 1, Problem((), "is not UTF-8 text"))]) from error
    try:
        source = parse(text)
    except YamlError as error:
        raise ManifestError(
            Finding(name, line, Problem((), fault)) for line, fault in error.faults
        ) from error
    try:
        return Assumptions.model_validate(source.value)
    except ValidationError as error:
        found = problems(error, Assumptions)
        raise ManifestError(Finding(name, source.line(item.path), item) for item in found) from error

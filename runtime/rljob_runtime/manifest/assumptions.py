"""A file of assumptions for `rljob simulate`: YAML in the form of `simulate.assumptions`.

Guarantees: as those of `manifest.load`: every finding names file, line and field.
"""

from pathlib import Path

from pydantic import ValidationError

from rljob_api.errors import problems
from rljob_runtime.manifest.load import Finding, ManifestError, read_source
from rljob_runtime.simulate.assumptions import Assumptions


def read_assumptions(path: Path) -> Assumptions:
    """The assumptions at a path; raises `ManifestError`."""
    source = read_source(path)
    try:
        return Assumptions.model_validate(source.value)
    except ValidationError as error:
        found = problems(error, Assumptions)
        raise ManifestError(Finding(str(path), source.line(item.path), item) for item in found) from error

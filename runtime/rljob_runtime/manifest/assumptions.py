"""A file of assumptions for `rljob simulate`: YAML in the form of `simulate.assumptions`.

Guarantees: as those of `manifest.load`: every finding names file, line and field.
"""

from pathlib import Path

from rljob_runtime.manifest.load import read_source, validated
from rljob_runtime.simulate.assumptions import Assumptions


def read_assumptions(path: Path) -> Assumptions:
    """The assumptions at a path; raises `ManifestError`."""
    return validated(Assumptions, str(path), read_source(path))

"""A file of assumptions for `rljob simulate`: YAML in the form of `simulate.assumptions`.

Guarantees: as those of `manifest.load`: every finding names file, line and field.
"""

from pathlib import Path

from rljob_runtime.given_files import called
from rljob_runtime.manifest.load import read_source, validated
from rljob_runtime.manifest.source import YamlSource
from rljob_runtime.simulate.assumptions import Assumptions


def read_assumptions(path: Path) -> tuple[Assumptions, YamlSource]:
    """The assumptions at a path, and their text, which standard input gives once; raises `ManifestError`."""
    source = read_source(path)
    return validated(Assumptions, called(path), source), source

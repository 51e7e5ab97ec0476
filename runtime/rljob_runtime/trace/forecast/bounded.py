"""Measured values within what `Assumptions` allows. Pure."""

import copy
from typing import Any

from pydantic import ValidationError

from rljob_runtime.simulate.assumptions import Assumptions


def bounded(values: dict[str, object]) -> tuple[dict[str, object], list[str]]:
    """The same fields of `Assumptions`, each number that is above what is allowed lowered to the most, and
    each below it raised to the least; and for each of them a comment that says so. Raises `ValidationError`
    where something else is wrong with them."""
    try:
        Assumptions.model_validate(values)
    except ValidationError as error:
        found: dict[str, Any] = copy.deepcopy(values)
        notes = []
        for problem in error.errors():
            limits: dict[str, Any] = problem.get("ctx", {})
            if not limits.keys() & {"le", "ge"}:
                raise
            word, limit = ("most", limits["le"]) if "le" in limits else ("least", limits["ge"])
            *path, name = (str(part) for part in problem["loc"])
            place = found
            for part in path:
                place = place[part]
            place[name] = limit
            field, was = ".".join([*path, name]), problem["input"]
            notes.append(f"# {field}: {was:,.12g} was measured, and {limit:,.12g} is the {word} allowed")
        return found, notes
    return values, []

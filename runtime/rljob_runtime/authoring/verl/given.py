"""The overrides of a launch while fields are made of them: each value is read by kind, and whatever cannot be
taken over is told.

Guarantees: a value that is not known, or of another kind than the key's, is told once and counts as not
given.
"""

from collections.abc import Mapping

from rljob_runtime.authoring.fields import Field, Fields, refusal
from rljob_runtime.authoring.verl.launch import Launch, Override, Remark
from rljob_runtime.authoring.verl.programs import FULLY_ASYNC, MAIN, Program, program_of
from rljob_runtime.authoring.verl.values import Kind, Unfit, of_kind, scalar


class Given:
    """What a launch gives, and what is made of it."""

    def __init__(self, launch: Launch) -> None:
        self.launch = launch
        self.fields: Fields = {}
        self.told: list[Remark] = list(launch.remarks)
        self.accounted: set[str] = set()
        """Keys that a field was made of, or something was told about."""
        self.told_of: set[str] = set()
        """Given keys that something was told about."""
        self._misread: set[str] = set()
        self._overrides: dict[str, Override] = {}
        for each in launch.overrides:
            earlier = self._overrides.get(each.key)
            if earlier is not None:
                self.told.append(Remark(earlier.line, each.key, f"given again in line {each.line}", False))
            self._overrides[each.key] = each

    @property
    def overrides(self) -> Mapping[str, Override]:
        """By key; the last one of each."""
        return self._overrides

    @property
    def program(self) -> Program:
        """What the launch is read as."""
        if any(key.startswith("async_training.") for key in self._overrides):
            return FULLY_ASYNC
        return program_of(self.launch.program) or MAIN

    def tell(self, key: str, words: str, decide: bool = True) -> None:
        """Tell something about a key's line, or about the launch's where the key is not given."""
        override = self._overrides.get(key)
        self.accounted.add(key)
        if override is not None:
            self.told_of.add(key)
        shown = f"{key}={override.value}" if override and not override.removed else key
        self.told.append(Remark(override.line if override else self.launch.line, shown, words, decide))

    def origin(self, key: str) -> str:
        """Where a value comes from, for a comment."""
        self.accounted.add(key)
        override = self._overrides.get(key)
        return f"{key}, line {override.line}" if override else f"verl's default of {key}"

    def known(self, key: str) -> bool:
        """Whether a key is given with a value that is known, and is not null."""
        override = self._overrides.get(key)
        if override is None or override.unknown is not None or "${" in override.value:
            return False
        return not override.removed and self._value(key, "text") is not None

    def empty(self, key: str) -> bool:
        """Whether a key is given as null, in place of verl's default."""
        override = self._overrides.get(key)
        if override is None or override.unknown is not None or override.removed:
            return False
        return scalar(override.value) is None

    def text(self, *keys: str) -> str | None:
        """The text of the first of some keys that has one."""
        found = self._first(keys, "text")
        return found if isinstance(found, str) else None

    def integer(self, *keys: str) -> int | None:
        """The whole number of the first of some keys that has one."""
        found = self._first(keys, "integer")
        return found if isinstance(found, int) else None

    def number(self, *keys: str) -> float | None:
        """The number of the first of some keys that has one."""
        found = self._first(keys, "number")
        return found if isinstance(found, float) else None

    def flag(self, *keys: str) -> bool | None:
        """The truth value of the first of some keys that has one."""
        found = self._first(keys, "flag")
        return found if isinstance(found, bool) else None

    def put(self, field: str, value: object, comment: str) -> None:
        """Set a field below spec, whatever the script says."""
        self.fields[f"spec.{field}"] = Field(value, comment)

    def take(self, key: str, field: str, value: object) -> bool:
        """Set a field below spec for a key, if it can have the value; whether it can."""
        why = refusal(f"spec.{field}", value)
        if why is not None:
            self.tell(key, f"{field}: {why}; left at its default")
            return False
        self.put(field, value, self.origin(key))
        return True

    def _first(self, keys: tuple[str, ...], kind: Kind) -> object:
        values = [self._value(key, kind) for key in keys]
        return next((value for value in values if value is not None), None)

    def _value(self, key: str, kind: Kind) -> object:
        override = self._overrides.get(key)
        if override is None or override.removed:
            return None
        try:
            if override.unknown is not None:
                raise Unfit(override.unknown)
            return of_kind(override.value, kind)
        except Unfit as why:
            if key not in self._misread:
                self._misread.add(key)
                self.tell(key, f"left out: {why}")
            return None

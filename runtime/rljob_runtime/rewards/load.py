"""Loads the reward function that "module:function" names.

Guarantees: what is returned accepts a `RewardInput` and the given arguments; everything else is a
`RewardLoadError` whose one line says what was looked for, where, and what is there.
"""

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from rljob_api.errors import nearest
from rljob_runtime.rewards import RewardInput

RewardFunction = Callable[..., Any]
"""Takes a `RewardInput` and keyword arguments, returns a number."""


class RewardLoadError(ValueError):
    """The reward function cannot be used."""


class ArgumentError(RewardLoadError):
    """The function does not take `reward.arguments`."""

    def __init__(self, message: str, argument: str | None = None) -> None:
        """`argument`: the one that is not right; None where one is missing."""
        super().__init__(message)
        self.argument = argument


def load_reward(
    path: str, arguments: Mapping[str, Any], search_path: Sequence[Path] = ()
) -> Callable[[RewardInput], Any]:
    """The function at `path` ("module:function") with `arguments` bound.

    The folders of `search_path` go in front of `sys.path` and stay there, because the function may import
    its neighbours when it runs. Raises `RewardLoadError`.
    """
    folders = [str(folder.resolve()) for folder in search_path]
    # In front, so that a module beside the manifest wins over an installed one of the same name.
    sys.path[:0] = [folder for folder in folders if folder not in sys.path]
    # The import system remembers folders' contents, and the file may be newer than that.
    importlib.invalidate_caches()
    module_name, _, name = path.partition(":")
    module = _import(path, module_name, folders)
    function = _find(path, module, name)
    _check_signature(path, function, arguments)

    def score(sample: RewardInput) -> Any:
        return function(sample, **arguments)

    return score


def _import(path: str, module_name: str, folders: list[str]) -> ModuleType:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # The module itself, or a package above it, is missing; otherwise it is there and imports what is not.
        if error.name is not None and f"{module_name}.".startswith(f"{error.name}."):
            looked = f" in {', '.join(folders)} or" if folders else " in"
            raise RewardLoadError(
                f'cannot import "{path}": there is no module {error.name}{looked} the installed packages: '
                f"put {error.name.split('.')[-1]}.py beside the manifest"
            ) from error
        raise RewardLoadError(_import_failed(path, module_name, error)) from error
    except (Exception, SystemExit) as error:  # a module may raise anything while it is imported
        raise RewardLoadError(_import_failed(path, module_name, error)) from error


def _import_failed(path: str, module_name: str, error: BaseException) -> str:
    message = " ".join(str(error).split())
    return f'cannot import "{path}": importing {module_name} failed with {type(error).__name__}: {message}'


def _find(path: str, module: ModuleType, name: str) -> RewardFunction:
    file = getattr(module, "__file__", None) or "built in"
    found = getattr(module, name, None)
    if found is None:
        functions = _functions(module)
        near = nearest(name, functions)
        hint = f" Did you mean {near}?" if near else ""
        listed = ", ".join(functions) or "no functions"
        raise RewardLoadError(
            f'cannot import "{path}": module {module.__name__} ({file}) has no function {name}.{hint} '
            f"It has: {listed}"
        )
    if not callable(found) or inspect.isclass(found):
        kind = "a class" if inspect.isclass(found) else f"of type {type(found).__name__}"
        raise RewardLoadError(f'cannot use "{path}": {name} in {file} is {kind}, not a function')
    if inspect.iscoroutinefunction(found):
        raise RewardLoadError(f'cannot use "{path}": {name} in {file} is async; write it as a plain function')
    function: RewardFunction = found
    return function


def _functions(module: ModuleType) -> list[str]:
    """Public functions that the module defines itself; where there are none, those it imported."""
    members = [name for name, value in vars(module).items() if inspect.isroutine(value) and name[0] != "_"]
    own = [name for name in members if getattr(module, name).__module__ == module.__name__]
    return sorted(own or members)


def _check_signature(path: str, function: RewardFunction, arguments: Mapping[str, Any]) -> None:
    try:
        signature = inspect.signature(function)
    except ValueError:  # written in C without a signature: nothing to check against
        return
    parameters = list(signature.parameters.values())
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if not positional and not any(p.kind is p.VAR_POSITIONAL for p in parameters):
        raise RewardLoadError(f'cannot use "{path}": its first parameter must take the RewardInput')
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    # The first positional parameter takes the sample and cannot be given by name.
    names = [p.name for p in named if p not in positional[:1]]
    for argument in arguments:
        if argument not in names and not takes_any:
            near = nearest(argument, names)
            hint = f" Did you mean {near}?" if near else ""
            raise ArgumentError(
                f'"{path}" has no argument {argument}.{hint} It takes: {", ".join(names) or "none"}', argument
            )
    for parameter in parameters:
        required = parameter.default is parameter.empty and parameter in [*positional[1:], *named]
        if required and parameter not in positional[:1] and parameter.name not in arguments:
            raise ArgumentError(f'"{path}" needs the argument {parameter.name}: set it in reward.arguments')

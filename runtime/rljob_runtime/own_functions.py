"""Functions of a job's own, named in its manifest by "module:function".

Guarantees: what is loaded accepts what it is to be called with; everything else is a `FunctionLoadError`
whose one line says what was looked for, where, and what is there.
"""

import dataclasses
import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from rljob_api.errors import nearest
from rljob_runtime.data.errors import one_line

OwnFunction = Callable[..., Any]

_MODULE_WORDS = 2000
"""Most characters that are told of what a module raises: a library may list all the paths that it tried."""


class FunctionLoadError(ValueError):
    """The function cannot be used."""


class ArgumentError(FunctionLoadError):
    """The function does not take the manifest's arguments."""

    def __init__(self, message: str, argument: str | None = None) -> None:
        """`argument`: the one that is not right; None where one is missing."""
        super().__init__(message)
        self.argument = argument


@dataclasses.dataclass(frozen=True)
class Call:
    """How a function is called."""

    takes: tuple[str, ...]
    """What it is given by position, in words for people."""
    field: str
    """The field of the manifest that names its other arguments."""
    foreign: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """First parameters by which functions of other programs are known, each with what such a function is."""
    instead: str = ""
    """How such a function is to be written, in words for people."""


def load_function(
    path: str, arguments: Mapping[str, Any], search_path: Sequence[Path], call: Call
) -> OwnFunction:
    """The function at `path` ("module:function") with `arguments` bound.

    The folders of `search_path` go in front of `sys.path` and stay there, because the function may import
    its neighbours when it runs. Raises `FunctionLoadError`.
    """
    folders = [str(folder.resolve()) for folder in search_path]
    # In front, so that a module beside the manifest wins over an installed one of the same name.
    sys.path[:0] = [folder for folder in folders if folder not in sys.path]
    # The import system remembers folders' contents, and the file may be newer than that.
    importlib.invalidate_caches()
    module_name, _, name = path.partition(":")
    module = _import(path, module_name, folders)
    function = _find(path, module, name)
    _check_signature(path, function, arguments, call)

    def bound(*given: Any) -> Any:
        return function(*given, **arguments)

    return bound


def in_words(error: Exception) -> str:
    """An error of such a function in one line: its type, its message, and the last place in the function's
    own folder that it came through: "KeyError: 'gold' (judge.py:12, in score)"."""
    return ": ".join(filter(None, (type(error).__name__, one_line(error)))) + _place(error)


def outline(error: Exception) -> str:
    """As `in_words`, without the message, which may have text that the function was given:
    "KeyError (judge.py:12, in score)"."""
    return type(error).__name__ + _place(error)


def _place(error: Exception) -> str:
    """The last place in the function's own folder that the error came through: " (judge.py:12, in score)";
    empty where there is none."""
    frames = traceback.extract_tb(error.__traceback__)
    # Functions are called in this file: the frames behind that one are their own.
    callers = [at for at, frame in enumerate(frames) if frame.filename == load_function.__code__.co_filename]
    own = frames[callers[-1] + 1 :] if callers else []
    if not own:
        return ""
    folder = Path(own[0].filename).parent
    if folder.is_relative_to(Path(__file__).parent):
        return ""  # A built-in function: a place in it is nothing that its user could look at.
    # Not the innermost frame: that may be deep in a library to which the function gave something wrong.
    last = [frame for frame in own if Path(frame.filename).parent == folder][-1]
    return f" ({Path(last.filename).name}:{last.lineno}, in {last.name})"


def _import(path: str, module_name: str, folders: list[str]) -> ModuleType:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # The module itself, or a package above it, is missing; otherwise it is there and imports what is not.
        if error.name is not None and f"{module_name}.".startswith(f"{error.name}."):
            looked = f" in {', '.join(folders)} or" if folders else " in"
            missing, advice = error.name, f"put {error.name.split('.')[-1]}.py beside the manifest"
            if module_name.endswith(".py"):
                missing = module_name
                advice = f'write "{module_name.removesuffix(".py")}:{path.partition(":")[2]}"'
            raise FunctionLoadError(
                f'cannot import "{path}": there is no module {missing}{looked} the installed packages: '
                f"{advice}"
            ) from error
        raise FunctionLoadError(_import_failed(path, module_name, error)) from error
    except (Exception, SystemExit) as error:  # a module may raise anything while it is imported
        raise FunctionLoadError(_import_failed(path, module_name, error)) from error


def _import_failed(path: str, module_name: str, error: BaseException) -> str:
    message = one_line(error, limit=_MODULE_WORDS)
    return f'cannot import "{path}": importing {module_name} failed with {type(error).__name__}: {message}'


def _find(path: str, module: ModuleType, name: str) -> OwnFunction:
    file = getattr(module, "__file__", None) or "built in"
    found = getattr(module, name, None)
    if found is None:
        functions = _functions(module)
        near = nearest(name, functions)
        hint = f" Did you mean {near}?" if near else ""
        listed = ", ".join(functions) or "no functions"
        raise FunctionLoadError(
            f'cannot import "{path}": module {module.__name__} ({file}) has no function {name}.{hint} '
            f"It has: {listed}"
        )
    if not callable(found) or inspect.isclass(found):
        kind = "a class" if inspect.isclass(found) else f"of type {type(found).__name__}"
        raise FunctionLoadError(f'cannot use "{path}": {name} in {file} is {kind}, not a function')
    if inspect.iscoroutinefunction(found):
        raise FunctionLoadError(
            f'cannot use "{path}": {name} in {file} is async; write it as a plain function'
        )
    function: OwnFunction = found
    return function


def _functions(module: ModuleType) -> list[str]:
    """Public functions that the module defines itself; where there are none, those it imported."""
    members = [name for name, value in vars(module).items() if inspect.isroutine(value) and name[0] != "_"]
    own = [name for name in members if getattr(module, name).__module__ == module.__name__]
    return sorted(own or members)


def _check_signature(path: str, function: OwnFunction, arguments: Mapping[str, Any], call: Call) -> None:
    try:
        signature = inspect.signature(function)
    except ValueError:  # written in C without a signature: nothing to check against
        return
    parameters = list(signature.parameters.values())
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    given = len(call.takes)
    if len(positional) < given and not any(p.kind is p.VAR_POSITIONAL for p in parameters):
        which = "parameter" if given == 1 else f"{given} parameters"
        raise FunctionLoadError(
            f'cannot use "{path}": its first {which} must take {" and ".join(call.takes)}'
        )
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    # The first positional parameters take what is given, and cannot be given by name.
    names = [p.name for p in named if p not in positional[:given]]
    for argument in arguments:
        if argument not in names and not takes_any:
            near = nearest(argument, names)
            hint = f" Did you mean {near}?" if near else ""
            raise ArgumentError(
                f'"{path}" has no argument {argument}.{hint} It takes: {", ".join(names) or "none"}', argument
            )
    for parameter in parameters:
        required = parameter.default is parameter.empty and parameter in [*positional[given:], *named]
        if required and parameter not in positional[:given] and parameter.name not in arguments:
            # Without it the advice would be to set in the manifest what another program gives its functions.
            if positional and (other := call.foreign.get(positional[0].name)):
                takes = ", ".join(p.name for p in named if p.default is p.empty)
                raise FunctionLoadError(
                    f'cannot use "{path}": it takes {takes} as {other} does: {call.instead}'
                )
            raise ArgumentError(f'"{path}" needs the argument {parameter.name}: set it in {call.field}')

"""Import paths of rewards: what is accepted, and what each mistake says."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rljob_runtime.own_functions import FunctionLoadError
from rljob_runtime.rewards.load import load_reward

MODULE = """
import os
from functools import partial
LIMIT = 3
def math(sample): return 1.0
def format(sample, style, strict=False): return (style, strict)
def keywords(sample, *, weight): return weight
def anything(sample, **rest): return rest
def nothing(): return 0
async def later(sample): return 0
def trl(prompts, completions, **kw): return [0.0 for _ in completions]
def trl_answers(completions, answer, **kw): return [0.0 for _ in completions]
def verl(data_source, solution_str, ground_truth, extra_info=None): return 0.0
def verl_short(solution_str, ground_truth): return 0.0
def prompted(sample, prompts): return 0.0
class Judge: pass
_hidden = math
bound = partial(format, style="x")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    path, modules = list(sys.path), set(sys.modules)
    (tmp_path / "my_rewards.py").write_text(MODULE)
    (tmp_path / "broken.py").write_text("import not_installed_anywhere\n")
    (tmp_path / "syntax.py").write_text("def f(:\n")
    (tmp_path / "half.py").write_text('raise ValueError("boom \\ud800")\n')
    (tmp_path / "exits.py").write_text("raise SystemExit(2)\n")
    yield tmp_path
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("name", "arguments", "result"),
    [
        ("math", {}, 1.0),
        ("format", {"style": "a"}, ("a", False)),
        ("format", {"style": "a", "strict": True}, ("a", True)),
        ("keywords", {"weight": 2}, 2),
        ("anything", {"a": 1}, {"a": 1}),
        ("bound", {}, ("x", False)),
    ],
)
def test_accepted(folder: Path, name: str, arguments: dict[str, Any], result: object) -> None:
    sample: Any = object()
    assert load_reward(f"my_rewards:{name}", arguments, [folder])(sample) == result


def test_built_in_functions_load() -> None:
    for path in ("tasks:copy", "tasks:repeat", "tasks:count", "tasks:reverse", "math:math_answer"):
        assert callable(load_reward(f"rljob_runtime.rewards.{path}", {}))


@pytest.mark.parametrize(
    ("path", "arguments", "message"),
    [
        ("missing:f", {}, r'cannot import "missing:f": there is no module missing in {folder} or'),
        ("my_rewards.py:f", {}, r'there is no module my_rewards.py in .* packages: write "my_rewards:f"$'),
        ("my_rewards.sub:f", {}, r"there is no module my_rewards.sub in {folder}"),
        ("broken:f", {}, r"importing broken failed with ModuleNotFoundError: No module named"),
        ("syntax:f", {}, r"importing syntax failed with SyntaxError: .*syntax.py, line 1"),
        ("half:f", {}, r"importing half failed with ValueError: boom \\ud800$"),
        ("exits:f", {}, r"importing exits failed with SystemExit: 2"),
        ("my_rewards:mathh", {}, r"my_rewards.py\) has no function mathh. Did you mean math\? It has: any"),
        ("my_rewards:zzz", {}, r"zzz. It has: anything, format, keywords, later, math, nothing, "),
        ("my_rewards:LIMIT", {}, r"LIMIT in .*my_rewards.py is of type int, not a function"),
        ("my_rewards:Judge", {}, r"Judge in .* is a class, not a function"),
        ("my_rewards:later", {}, r"is async; write it as a plain function"),
        ("my_rewards:nothing", {}, r"its first parameter must take the RewardInput"),
        ("my_rewards:format", {}, r"needs the argument style: set it in reward.arguments"),
        ("my_rewards:keywords", {}, r"needs the argument weight"),
        ("my_rewards:trl", {}, r'use "my_rewards:trl": it takes prompts, completions as a reward of TRL '
         r"does: here a reward takes one RewardInput, and returns one reward \(docs/rewards.md\)"),
        ("my_rewards:trl_answers", {}, r"it takes completions, answer as a reward of TRL does: "),
        ("my_rewards:verl", {}, r"it takes data_source, solution_str, ground_truth as a reward of verl does"),
        ("my_rewards:verl_short", {}, r"it takes solution_str, ground_truth as a reward of verl does"),
        ("my_rewards:prompted", {}, r"needs the argument prompts: set it in reward.arguments"),
        ("my_rewards:format", {"style": "a", "stric": 1}, r"has no argument stric. Did you mean strict"),
        ("my_rewards:math", {"a": 1}, r"has no argument a. It takes: none"),
        ("my_rewards:format", {"style": "a", "sample": 1}, r"no argument sample. It takes: style, strict"),
        ("builtins:lenn", {}, r"module builtins \(built in\) has no function lenn. Did you mean len\?"),
    ],
)  # fmt: skip
def test_refused(folder: Path, path: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(FunctionLoadError, match=message.replace("{folder}", str(folder))) as error:
        load_reward(path, arguments, [folder])
    assert "\n" not in str(error.value)

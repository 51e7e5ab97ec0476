"""How many mutants of the code that decides are killed by the tests that concern it.

A mutant is the code with one small change: a comparison, a number, a word, a dropped argument. mutmut makes
them in a copy under .cache/mutants/ and runs, for each, the tests of PACKAGES that call the changed function.
One that no test notices has survived: it is printed with its change, and belongs killed by a test, or listed
in mutants_equivalent.toml with the reason why no test can tell it from the original. Not changed: class
bodies, functions with decorators, and sentences for people (see mutmut_run.py).

    python -m tests.bench.mutants                     all packages
    python -m tests.bench.mutants groups broker       these
    python -m tests.bench.mutants --sample 200 groups 200 mutants of it, drawn at random: the share that is
                                                      killed is an estimate then. `--seed 1` draws others
    python -m tests.bench.mutants --again groups      only what survived before, once there are more tests;
                                                      all else counts as it did
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from pathlib import Path

from tests.bench.figures import Figure, record

REPOSITORY = Path(__file__).parents[2]
WORK = REPOSITORY / ".cache" / "mutants"
SOURCES = ("crds/rljob_api", "client/rljob_client", "operator/rljob_operator", "runtime/rljob_runtime")
EQUIVALENT = Path(__file__).with_name("mutants_equivalent.toml")
IGNORED = shutil.ignore_patterns("__pycache__")
DECIDES = (
    "rljob_operator/plan/",
    "rljob_runtime/groups/",
    "rljob_runtime/parallel/",
    "rljob_runtime/routing/",
)
"""All that is here is to be in some package."""
GOAL_PERCENT = 90
KILLED = ("killed", "timeout", "segfault", "suspicious", "caught by type check")
"""Of mutmut's verdicts: a mutant that never ends is noticed too."""
UNTRIED = "not checked"


@dataclass(frozen=True)
class Package:
    """What is changed, and what should notice."""

    code: tuple[str, ...]
    """Patterns of files, from the importable package on."""
    tests: tuple[str, ...]
    """Files and folders, from the repository on."""


HELPERS = "tests/support", "tools/tiers"
"""What tests import beside the code."""
UNIT = "tests/unit"
PROPERTY = "tests/property"


def plan(*modules: str) -> Package:
    """A part of the operator's decisions: one run over all takes too long to wait for."""
    code = tuple(f"rljob_operator/plan/{module}.py" for module in modules)
    return Package(code, (f"{UNIT}/rljob_operator/plan",))


def part(room: str, modules: Sequence[str], properties: Sequence[str]) -> Package:
    """Some modules of a room of the runtime, with all its unit tests and these property tests."""
    code = tuple(f"rljob_runtime/{room}/{module}.py" for module in modules)
    tests = (f"{PROPERTY}/test_{name}.py" for name in properties)
    return Package(code, (f"{UNIT}/rljob_runtime/{room}", *tests))


PACKAGES = {
    "groups": Package(("rljob_runtime/groups/*.py",), (f"{UNIT}/rljob_runtime/groups",)),
    "parallel-balance": part(
        "parallel",
        (
            "first_fit",
            "karmarkar_karp",
            "loads",
            "longest_first",
            "micro_batch_rows",
            "micro_batches",
            "mini_batches",
        ),
        ("balance", "micro_batches", "mini_batches"),
    ),
    "parallel-shared": part(
        "parallel",
        ("busy_ranks", "cost_model", "hdp_levels", "hdp_plan", "pass_fit", "rank_layout"),
        ("hdp_plan_hidden",),
    ),
    "routing-lengths": part(
        "routing",
        (
            "cost",
            "cost_fit",
            "drain",
            "estimates",
            "gears",
            "history",
            "lengths",
            "mean_steps",
            "move_times",
            "slowness",
            "split",
            "survival",
        ),
        (),
    ),
    "routing-moves": part(
        "routing", ("engine_heap", "lanes", "levelling", "lockstep", "offload", "trials"), ()
    ),
    "routing-policies": part(
        "routing",
        (
            "adaptive",
            "begin_order",
            "book",
            "choose",
            "deadlines",
            "fixed",
            "plan_times",
            "policy",
            "probe",
            "requests",
            "roles",
            "router",
        ),
        ("router",),
    ),
    "broker": Package(
        ("rljob_runtime/queue/broker.py",),
        (f"{UNIT}/rljob_runtime/queue/test_broker.py", f"{PROPERTY}/test_broker_accounts.py"),
    ),
    "scaling": Package(
        ("rljob_runtime/fleet/scaling.py",),
        (f"{UNIT}/rljob_runtime/fleet/test_scaling.py", f"{PROPERTY}/test_scaling.py"),
    ),
    "api": Package(
        ("rljob_api/base.py", "rljob_api/errors.py"),
        tuple(f"{UNIT}/rljob_api/test_{name}.py" for name in ("base", "errors", "error_forms", "rules")),
    ),
    "plan-attempts": plan("attempt", "beginning", "failure", "finish", "losses", "outdated"),
    "plan-course": plan(
        "believed", "decide", "deadlines", "lifecycle", "silence", "suspension", "ttl", "upkeep"
    ),
    "plan-scaling": plan("observed", "plan", "pools", "queueing", "scaling", "step"),
    "plan-words": plan(
        "accepted",
        "conditions",
        "job_events",
        "last_words",
        "printable",
        "readiness",
        "refusal_words",
        "times",
        "volume",
        "waiting",
    ),
}

PYPROJECT = """
[tool.pytest.ini_options]
addopts = "-q --strict-markers --import-mode=importlib"
pythonpath = ["."]
asyncio_mode = "auto"
asyncio_default_fixture_loop_scope = "function"

[tool.mutmut]
source_paths = ["rljob_api", "rljob_operator", "rljob_runtime"]
only_mutate = {code}
also_copy = ["conftest.py", "tools"]
pytest_add_cli_args = ["-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:timeout"]
pytest_add_cli_args_test_selection = {tests}
timeout_constant = 1.0
timeout_multiplier = 5.0
use_git_change_detection = false
"""

CONFTEST = '''"""The same examples for every mutant, and no search for the smallest one that fails."""

from hypothesis import Phase, settings

settings.register_profile(
    "mutants", derandomize=True, database=None, deadline=None, phases=[Phase.explicit, Phase.generate]
)
settings.load_profile("mutants")


def pytest_itemcollected(item):
    item._nodeid = item.nodeid  # mutmut 3.8 reads this; pytest 9.2 does not have it any more
'''


@dataclass(frozen=True)
class Mutant:
    """One change, and what came of it."""

    name: str
    file: str
    """From the importable package on."""
    verdict: str
    """In mutmut's words."""
    was: str
    """The changed lines without their indentation, joined by blanks; `becomes` likewise."""
    becomes: str

    @property
    def killed(self) -> bool:
        return self.verdict in KILLED

    @property
    def function(self) -> str:
        """Of the module, with its class."""
        mangled = self.name.rpartition("__mutmut_")[0].rpartition(".")[2]
        return mangled.removeprefix("x_").removeprefix("xǁ").replace("ǁ", ".")


def set_up(package: Package, folder: Path) -> None:
    """The tests as they are now, and what mutmut and pytest are to do."""
    for tests in (*HELPERS, *package.tests):
        path, target = REPOSITORY / tests, folder / tests
        if path.is_dir():
            shutil.copytree(path, target, ignore=IGNORED, dirs_exist_ok=True)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "pyproject.toml").write_text(
        PYPROJECT.format(code=json.dumps(package.code), tests=json.dumps(package.tests))
    )


def lay_out(package: Package, folder: Path) -> None:
    """A copy of code and tests in `folder`, in the form that mutmut takes: one root for all packages."""
    shutil.rmtree(folder, ignore_errors=True)
    for source in SOURCES:
        shutil.copytree(REPOSITORY / source, folder / Path(source).name, ignore=IGNORED)
    set_up(package, folder)


def mutmut(folder: Path, names: Sequence[str] = (), sample: Sequence[str] = ()) -> list[Mutant]:
    """The mutants of `folder`, those of these names or all, after mutmut has tried them. `sample`: the
    options of mutmut_run.py that have it try some; the others are `UNTRIED`."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    script = Path(__file__).with_name("mutmut_run.py")
    log = folder / "mutmut.log"
    with log.open("w") as file:
        done = subprocess.run(
            [sys.executable, "-P", str(script), *sample, *names],
            cwd=folder,
            env=environment,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    if done.returncode:
        raise SystemExit(
            f"mutmut ended with {done.returncode}, its last words in {log}:\n{log.read_text()[-3000:]}"
        )
    mutants = [Mutant(**row) for row in json.loads((folder / "verdicts.json").read_text())]
    return [mutant for mutant in mutants if not names or mutant.name in names]


def tried(package: Package, folder: Path, again: bool, sample: Sequence[str] = ()) -> list[Mutant]:
    """Every mutant of the package; with `again` only those that survived the last run are tried anew.
    `sample`: see `mutmut`."""
    results = folder / "mutants.json"
    if again:
        mutants = [Mutant(**row) for row in json.loads(results.read_text())]
        if names := [mutant.name for mutant in survivors(mutants)]:
            set_up(package, folder)
            now = {mutant.name: mutant for mutant in mutmut(folder, names)}
            mutants = [now.get(mutant.name, mutant) for mutant in mutants]
    else:
        lay_out(package, folder)
        mutants = mutmut(folder, sample=sample)
    results.write_text(json.dumps([asdict(mutant) for mutant in mutants]))
    return mutants


def equivalent() -> dict[tuple[str, str, str], str]:
    """The mutants that no test can tell from the original, by file, old and new line: why."""
    rows = tomllib.loads(EQUIVALENT.read_text())["mutant"]
    return {(row["file"], row["was"], row["becomes"]): row["why"] for row in rows}


def survivors(mutants: Sequence[Mutant]) -> list[Mutant]:
    known = equivalent()
    return [
        mutant
        for mutant in mutants
        if not mutant.killed
        and mutant.verdict != UNTRIED
        and (mutant.file, mutant.was, mutant.becomes) not in known
    ]


def uncovered() -> list[str]:
    """The files of DECIDES that no package changes."""
    roots = [REPOSITORY / source for source in SOURCES]
    files = [(root, path) for root in roots for path in root.glob("*/*.py") if path.name != "__init__.py"]
    names = [str(path.relative_to(root.parent)) for root, path in files]
    patterns = [pattern for package in PACKAGES.values() for pattern in package.code]
    return [
        name
        for name in names
        if name.startswith(DECIDES) and not any(fnmatch(name, pattern) for pattern in patterns)
    ]


def tell(mutants: Sequence[Mutant]) -> None:
    """Print them, function by function."""
    told = ""
    for mutant in mutants:
        place = f"{mutant.file}: {mutant.function}"
        if place != told:
            print(f"\n{place}")
            told = place
        print(f"  - {mutant.was}\n  + {mutant.becomes}   [{mutant.verdict}]")


def figures(name: str, mutants: Sequence[Mutant]) -> list[Figure]:
    killed = sum(mutant.killed for mutant in mutants)
    left = len(survivors(mutants))
    count = sum(mutant.verdict != UNTRIED for mutant in mutants)
    drawn = [Figure(f"{name}: tried, drawn at random", count, "mutants")] if count < len(mutants) else []
    return [
        Figure(f"{name}: killed", 100 * killed / (killed + left), "%", goal=f">= {GOAL_PERCENT} %"),
        Figure(f"{name}: mutants", len(mutants), "mutants"),
        *drawn,
        Figure(f"{name}: survivors that a test could kill", left, "mutants"),
        Figure(f"{name}: equivalent to the original", count - killed - left, "mutants"),
    ]


def main() -> None:
    """Measure, tell the survivors, and record."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.mutants")
    parser.add_argument("packages", nargs="*", metavar="PACKAGE", help=", ".join(PACKAGES))
    parser.add_argument("--again", action="store_true", help="only what survived before")
    parser.add_argument("--sample", type=int, metavar="N", help="N mutants of each package, drawn at random")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of what is drawn")
    arguments = parser.parse_args()
    if left := uncovered():
        parser.error(f"{', '.join(left)}: in no package of {__file__}")
    if unknown := set(arguments.packages) - set(PACKAGES):
        parser.error(f"unknown package {', '.join(sorted(unknown))}; known are {', '.join(PACKAGES)}")
    count, seed = arguments.sample, arguments.seed
    sample = () if count is None else (f"--sample={count}", f"--seed={seed}")
    for name in arguments.packages or PACKAGES:
        mutants = tried(PACKAGES[name], WORK / name, arguments.again, sample)
        record("mutants", figures(name, mutants), keep=True)
        tell(survivors(mutants))


if __name__ == "__main__":
    main()

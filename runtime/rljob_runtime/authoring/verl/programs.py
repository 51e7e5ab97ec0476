"""The programs of verl that a script may start: which of them train, and how each shares devices and weights.

Guarantees: a program that trains nothing is refused with a reason; of one that is not known nobody is left to
believe that it was read as what it is.
"""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Program:
    """A program that trains a policy by its responses."""

    name: str
    """What verl calls it."""
    own_devices: bool = False
    """Whether engines have devices of their own, of `rollout.nnodes` and `rollout.n_gpus_per_node`."""
    asynchronous: bool = False
    """Whether it takes `async_training`: staleness, steps of each version, batches of each step."""
    staleness: int = 0
    """Without `async_training`: how many weight versions a trained response may be behind."""
    bypass: bool = False
    """Its default of `algorithm.rollout_correction.bypass_mode`."""
    filters: bool = False
    """Whether it takes `algorithm.filter_groups`."""


MAIN = Program("main_ppo")
FULLY_ASYNC = Program("the fully-async recipe", own_devices=True, asynchronous=True)

_TRAINING = (
    (re.compile(r"(.+\.)?(fully_async_main|fully_async_policy\.\w*main\w*)"), FULLY_ASYNC),
    (
        re.compile(r"(.+\.)?one_step_off_policy\.\w*main\w*"),
        Program("the one-step-off recipe", own_devices=True, staleness=1, bypass=True),
    ),
    (re.compile(r"(.+\.)?main_dapo"), Program("the DAPO recipe", filters=True)),
    (re.compile(r"(?:.*\bverl\.trainer\.)?main_ppo"), MAIN),
)
_NOT_TRAINING = (
    (re.compile(r"main_generation\w*"), "it generates responses and trains nothing"),
    (re.compile(r"main_eval\w*"), "it scores responses that are there, and trains nothing"),
)


def program_of(started: str) -> Program | None:
    """The program that a module, or the path of a file, is; None for one that is not known."""
    module = re.sub(r"\.py$", "", started).strip("/").replace("/", ".")
    return next((program for pattern, program in _TRAINING if pattern.fullmatch(module)), None)


def why_not(started: str) -> str | None:
    """Why no job can be made of a program, as a clause; None where it trains, or is not known."""
    last = re.sub(r"\.py$", "", started).replace("/", ".").rpartition(".")[2]
    return next((why for pattern, why in _NOT_TRAINING if pattern.fullmatch(last)), None)

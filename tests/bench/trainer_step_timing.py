"""How a trainer's steps are timed, ours and others' alike: same options, same steps, same figures."""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from rljob_runtime.samples import Group
from tests.bench.figures import RESULTS, Figure, record
from tests.bench.trainer_step_shapes import SHAPES, Shape, arithmetic, make_groups


def options_of(description: str | None) -> argparse.ArgumentParser:
    """The options that each such bench has."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=SHAPES, action="append", help="may be given more than once")
    parser.add_argument("--steps", type=int, default=3, help="steps that are measured")
    parser.add_argument("--warm", type=int, default=2, help="steps before them")
    parser.add_argument("--micro-batch", type=int, help="tokens; default: the shape's")
    parser.add_argument("--recompute", action="store_true", help="activations in the backward pass")
    parser.add_argument("--seconds", type=float, default=540.0, help="no variant is begun later than this")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the JSON")
    return parser


def shapes_of(options: argparse.Namespace) -> Iterator[tuple[str, Path]]:
    """The shapes to measure, each with a folder for its model; first prints what they are measured on."""
    gpu = torch.cuda.is_available()
    say("torch", torch.__version__, "on", torch.cuda.get_device_name(0) if gpu else "CPU")
    for name in options.shape or ["0.6b" if gpu else "tiny"]:
        with tempfile.TemporaryDirectory() as folder:
            yield name, Path(folder) / "model"


def time_steps(
    shape: Shape,
    options: argparse.Namespace,
    lay_out: Callable[[Sequence[Group]], Any],
    train: Callable[[int, Any], Mapping[str, Any]],
) -> dict[str, Any]:
    """The figures of the fastest step after those that warm up. Timed is `train`, of the step's number and
    what `lay_out`, not timed, made of its groups; what it tells is added to the figures."""
    gpu = torch.cuda.is_available()
    rows = []
    began = time.perf_counter()
    for step in range(options.warm + options.steps):
        groups = make_groups(shape, step)
        given = lay_out(groups)
        if gpu:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        start = time.perf_counter()
        told = train(step, given)
        if gpu:
            torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        tokens = sum(len(g.prompt) + len(s.tokens) for g in groups for s in g.samples)
        row = {
            "seconds": seconds,
            "tflops": arithmetic(shape, groups) / seconds / 1e12,
            "tokens": tokens,
            "tokens_s": tokens / seconds,
            "memory": torch.cuda.max_memory_allocated() / 2**30 if gpu else 0.0,
            **told,
        }
        say("  step", step, json.dumps(row))
        if step >= options.warm:
            rows.append(row)
        elif step == 0:
            say("  first step after", round(time.perf_counter() - began, 1), "s")
    return min(rows, key=lambda row: row["seconds"])


def record_step(
    what: str, best: Mapping[str, Any], against: Mapping[str, float | None], options: argparse.Namespace
) -> None:
    """Print and record a step's figures beside those of a baseline, by unit. Memory is measured on a GPU."""
    figures = [
        Figure(what, best["tflops"], "TFLOP/s", against.get("TFLOP/s")),
        Figure(f"{what}: tokens", best["tokens_s"], "tokens/s", against.get("tokens/s")),
    ]
    if torch.cuda.is_available():
        figures.append(Figure(f"{what}: memory", best["memory"], "GiB", against.get("GiB")))
    record("trainer_step", figures, options.out, keep=True)


def say(*words: object) -> None:
    print(*words, flush=True)

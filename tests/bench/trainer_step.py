"""What a trainer's step does of a device's arithmetic, and what each part of its speed gains alone.

One rank in this process, without Ray; a random model, random tokens, lengths from a seed. Counted are the
products of matrices that the step needs, forward and backward (6 for each weight and token; the head's for
response tokens alone; half of the attention's square), not what is computed a second time.

    python tests/bench/trainer_step.py --shape 1.7b          on a GPU; 0.6b: heavy-tailed lengths
    python tests/bench/trainer_step.py --shape tiny          on a CPU

Each variant is printed, and written, as soon as it is measured. `base` is the step without any of the gains;
`no-X` has all but X; `only-X` has none but X; `defaults` is the step of a job that says nothing of `compute`
and `profiling`. Nothing is fetched from a network.
"""

import argparse
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[2] / "crds"))
sys.path.insert(0, str(Path(__file__).parents[2] / "runtime"))
from rljob_api import RLJob
from rljob_runtime.samples import Group, Sample, Span
from tests.bench.figures import Figure, record
from tests.bench.trainer_step_shapes import SHAPES, Shape, free, write_model
from tests.bench.trainer_step_timing import options_of, record_step, say, shapes_of, time_steps

GAINS = ("attention", "logits", "entropy", "marks", "compile", "fused", "gc", "cores", "hold", "ahead")
"""attention: a kernel for samples of any lengths; logits: log-probabilities without the logits of all tokens;
entropy: none for the metrics; marks: no waiting for the device inside a step; compile: torch.compile; fused:
AdamW in one kernel; gc: no garbage collection in a step; cores: those of the device's NUMA node alone; hold:
weights gathered, and gradients reduced, once for an update; ahead: inputs packed and copied on a thread while
the device works on earlier ones."""
_DEFAULTS = "defaults"
"""Among the gains of a variant: the RLJob says nothing of them."""
CHUNK_MIB = 256
"""`logitsMiB` without the gain: chunks of 2 ** 27 logits."""


def job(shape: Shape, on: frozenset[str], options: argparse.Namespace) -> RLJob:
    """The RLJob of a variant."""
    accelerator = "nvidia" if torch.cuda.is_available() else "cpu"
    longest = options.micro_batch or shape.micro_batch
    logits = (options.logits_mib or shape.logits_mib) if "logits" in on else CHUNK_MIB
    training = {
        "model": {
            "random": {"vocabularySize": max(64, shape.vocabulary), "maxPositionEmbeddings": 1048576},
            "dtype": "bfloat16" if accelerator == "nvidia" else "float32",
            "gradientCheckpointing": options.recompute,
        },
        "tokenizer": {"characters": {}},
        "data": {"generated": {"task": "copy"}, "maxPromptTokens": 8},
        "reward": {"function": "rljob_runtime.rewards.tasks:copy"},
        "rollout": {"engine": {"vllm": {}}, "samplesPerPrompt": shape.samples, "maxResponseTokens": 8},
        "optimizer": {"learningRate": 1e-6},
        "schedule": {"totalSteps": 100, "promptsPerBatch": shape.groups},
        "parallel": {"maxTokensPerMicroBatch": longest},
        "compute": {
            "attention": "auto" if "attention" in on else "rectangles",
            "compile": "compile" in on,
            "logitsMiB": logits,
            "pauseGarbageCollection": "gc" in on,
            "bindCores": "cores" in on,
            "holdWeights": "hold" in on,
        },
        "profiling": {"events": False, "entropy": "entropy" not in on},
    }
    if _DEFAULTS in on:
        del training["compute"], training["profiling"]
    spec = {"accelerator": accelerator, "training": training}
    return RLJob.model_validate({"metadata": {"name": "bench"}, "spec": spec})


@contextmanager
def without(on: frozenset[str]) -> Iterator[None]:
    """What is off and has no field in the RLJob."""
    from rljob_runtime.trainer import phases, policy
    from rljob_runtime.trainer import step as steps

    with ExitStack() as stack:
        if "logits" not in on:
            # By autograd, with the logits of a chunk computed a second time.
            stack.enter_context(_replaced(policy, "_is_plain", lambda head: False))
        if "marks" not in on:

            class Waiting(phases.Phases):
                def _now(self) -> Any:
                    if torch.cuda.is_available():
                        torch.cuda.synchronize()
                    return super()._now()

            stack.enter_context(_replaced(phases, "Phases", Waiting))
            from rljob_runtime.trainer import rank

            stack.enter_context(_replaced(rank, "Phases", Waiting))
        if "ahead" not in on:
            stack.enter_context(_replaced(steps, "Prefetched", WhenUsed))
        if "fused" not in on:
            adamw = torch.optim.AdamW
            stack.enter_context(
                _replaced(
                    torch.optim, "AdamW", lambda *given, **more: adamw(*given, **more | {"fused": None})
                )
            )
        yield


class WhenUsed(Sequence[Any]):
    """In the place of `Prefetched`: each made when it is first used, and no earlier."""

    def __init__(self, thread: Any, makers: Sequence[Any]) -> None:
        self._makers = list(makers)
        self._made: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self._makers)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[number] for number in range(len(self))[index]]
        number = range(len(self))[index]
        if number not in self._made:
            self._made[number] = self._makers[number]()
        return self._made[number]


@contextmanager
def _replaced(where: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(where, name)
    setattr(where, name, value)
    try:
        yield
    finally:
        setattr(where, name, before)


@contextmanager
def worker(shape: Shape, on: frozenset[str], model: Path, options: argparse.Namespace) -> Iterator[Any]:
    """The trainer's only rank, set up."""
    import torch.distributed as dist

    from rljob_runtime.trace.record.event_log import EventLog
    from rljob_runtime.trainer.rank import TrainerWorker

    # Its callers name the rank before this one until they have returned, and a sharded model is in cycles.
    free()
    cores = os.sched_getaffinity(0)
    with tempfile.TemporaryDirectory() as folder, without(on):
        root = Path(folder)
        log = EventLog(None, 0, "trainer-0", "trainer")
        made = TrainerWorker(job(shape, on, options), model, 0, 1, root / "weights", 2, log, 100)
        try:
            made.setup(dist.FileStore(str(root / "ranks"), 1))
            yield made
        finally:
            made.close()
            os.sched_setaffinity(0, cores)


def measure(shape: Shape, on: frozenset[str], model: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The figures of a step, the fastest of some after those that warm up."""
    with worker(shape, on, model, options) as trainer:

        def train(step: int, groups: Sequence[Group]) -> dict[str, Any]:
            metrics = trainer.train_step(step, step, groups)
            return {"phases": metrics.seconds, "loss": metrics.loss, "grad_norm": metrics.grad_norm}

        return time_steps(shape, options, lambda groups: groups, train)


def longest(
    shape: Shape, on: frozenset[str], model: Path, options: argparse.Namespace, until: float
) -> tuple[int, int | None]:
    """The longest sample seen to train, in tokens, by doubling and halving; and the shortest that did not.

    They are within a 16th of each other, unless time ran out; none did not fit up to a million.
    """
    fits, above = 0, None
    size = options.longest_from
    while 256 <= size <= 2**20 and time.monotonic() < until and (above is None or above - fits > fits // 16):
        good = trains(shape, on, model, options, size)
        say("  sample of", size, "tokens", "trains" if good else "does not fit")
        fits, above = (size, above) if good else (fits, size)
        size = 2 * size if above is None else (fits + above) // 2 // 256 * 256
    return fits, above


def trains(shape: Shape, on: frozenset[str], model: Path, options: argparse.Namespace, size: int) -> bool:
    """Whether a sample of so many tokens trains in two steps: in the first one there are no moments yet."""
    rng = np.random.default_rng(0)
    response = rng.integers(0, shape.vocabulary, size - 128).astype(np.int32)
    prompt = rng.integers(0, shape.vocabulary, 128).astype(np.int32)

    def drawn(step: int, tokens: Any, reward: float) -> Sample:
        nothing = np.zeros(len(tokens), np.float32)
        return Sample(tokens, nothing, (Span(step, 0, len(tokens)),), "length", reward)

    given = argparse.Namespace(**{**vars(options), "micro_batch": size})
    try:
        with worker(shape, on, model, given) as trainer:
            for step in range(2):
                samples = drawn(step, response, 1.0), drawn(step, response[:8], 0.0)
                trainer.train_step(step, step, [Group(step, 0, step, prompt, samples, step)])
    except torch.OutOfMemoryError:
        return False
    return True


def check_attention(shape: Shape) -> None:
    """Print how far the device's kernel is from plain attention in float32, for windows too."""
    from rljob_runtime.trainer.attention_choice import Heads, choose_attention, difference, packed_form

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    heads = Heads(shape.heads, shape.shared, shape.head, (16,))
    choice = choose_attention(device, torch.bfloat16, heads)
    say("attention:", choice.name, "-", choice.why)
    for window in (None, 16, 3):
        far = difference(packed_form(choice.lay_out), device, torch.bfloat16, heads, window)
        say(f"  window {window}: {far:.2g} of the largest number")


def all_variants(options: argparse.Namespace) -> dict[str, frozenset[str]]:
    """The gains of each variant that there is, in the order of their use, should time run out."""
    every = frozenset(GAINS) - set(options.without)
    found = {"base": frozenset(), "all": every}
    if not options.without:
        found[_DEFAULTS] = every - {"entropy"} | {_DEFAULTS}
    found["no-compile"] = every - {"compile"}
    for gain in sorted(every):
        found[f"no-{gain}"] = every - {gain}
    for gain in sorted(every):
        found[f"only-{gain}"] = frozenset({gain})
    return found


def variants(options: argparse.Namespace) -> list[tuple[str, frozenset[str]]]:
    """Those that are asked for."""
    found = all_variants(options)
    if unknown := {*(options.variants or ()), *options.longest} - found.keys():
        raise SystemExit(f"no variant {', '.join(sorted(unknown))}; there are {', '.join(found)}")
    every_one = [name for name in found if options.alone or not name.startswith("only-")]
    usual = [] if options.longest else every_one
    return [(name, found[name]) for name in options.variants or usual]


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument(
        "--variants",
        nargs="*",
        help="of `base`, `all`, `defaults`, `no-X`, `only-X`; default: no `only-X`, with --longest none",
    )
    parser.add_argument("--alone", action="store_true", help="`only-X` too")
    parser.add_argument("--without", nargs="*", default=[], choices=GAINS, help="left off in every variant")
    parser.add_argument("--logits-mib", type=int, help="memory of logits at a time")
    parser.add_argument(
        "--longest",
        nargs="*",
        choices=("base", "all", _DEFAULTS),
        default=[],
        help="the longest sample that trains, too",
    )
    parser.add_argument("--longest-from", type=int, default=8192, help="tokens of the first that is tried")
    options = parser.parse_args()
    until = time.monotonic() + options.seconds
    for name, model in shapes_of(options):
        bench(name, model, options, until)


def bench(name: str, model: Path, options: argparse.Namespace, until: float) -> None:
    """Measure the variants of one shape."""
    shape = SHAPES[name]
    check_attention(shape)
    write_model(shape, model)
    say("the model is written")
    base: dict[str, float | None] = {}
    chosen = variants(options)
    for variant, on in chosen:
        if time.monotonic() > until:
            say("no time for", variant)
            continue
        say(f"{name}, {variant}: {', '.join(sorted(on)) or 'nothing'}")
        try:
            best = measure(shape, on, model, options)
        except Exception:  # noqa: BLE001
            # The other variants are still worth their time.
            traceback.print_exc()
            say(f"{name}, {variant}: FAILED")
            free()
            continue
        if variant == "base":
            base = {"TFLOP/s": best["tflops"], "tokens/s": best["tokens_s"], "GiB": best["memory"]}
        record_step(f"trainer step, {name}, {variant}", best, base, options)
    for variant in options.longest:
        on = all_variants(options)[variant]
        say(f"{name}, longest sample, {variant}")
        fits, above = longest(shape, on, model, options, until)
        if fits:
            said = f"longest sample, {name}, {variant}{', recomputed' if options.recompute else ''}"
            figures = [Figure(said, fits, "tokens")]
            if above:
                figures.append(Figure(f"{said}: does not fit", above, "tokens"))
            record("trainer_longest", figures, options.out, keep=True)


if __name__ == "__main__":
    main()

"""Ours, verl and TRL on the same GPUs, with the same work, one after the other in one run of this command.

    python -m tests.bench.peers --out OUT              on all GPUs; with two, seven contenders in 50 minutes
    python -m tests.bench.peers --gpus 2 --contenders ours-1 verl_async ours-2 --out OUT
    python -m tests.bench.peers --gpus 0 --out OUT     on a CPU, to see that ours runs

Measured are the response tokens that each trains per second, from the end of its fourth step to the end of
its last one; eight steps at least. The baselines of ours are verl and TRL of the same run. A contender that
has no time left, or fails, is named and left out; the others' figures are written all the same, each as soon
as it is there. Everything that verl or TRL says is kept in OUT/NAME.log.

Workers that share a GPU use it at once, by the service that `rljob run --share` starts. With
CUDA_MPS_PIPE_DIRECTORY set to an empty folder they take turns.

verl 0.9.1 or TRL 1.16.0, where they are contenders, and what they import must be installed (`pip install
verl==0.9.1`, `pip install trl==1.16.0`): not both at once, for verl does not start beside a new TRL. verl's
wheel brings a package `tests`, which hides this one and must be removed. Their attention is flash-attn's: its
Python files must be installed, and the command says how where they are not. Where its kernels are not built,
torch's of FlashAttention-2 are in their place (`kernels/`).
"""

import argparse
import subprocess
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from tests.bench.figures import Figure, record
from tests.bench.peers import ours, peer, trl, verl
from tests.bench.peers.rates import Ended, steady_rate
from tests.bench.peers.work import LARGE, SMALL, Work, prepare

SKIPPED, FEWEST = 4, 8
"""Steps that warm up, and the fewest that are measured. With bound 1 steps come in pairs, a short one after a
long one: an odd number of them would read too high or too low."""
_ON_CPU = 560.0
"""Seconds for all, where starting alone may take minutes."""
AGAIN = "-again"
"""At the end of a name: a contender that runs a second time, so that a machine that changes is seen."""
_KNOWN = (
    "ours-BOUND[xENGINES][-shared][-delayed][-graphsTOKENS], verl_sync, verl_async[-THRESHOLD], "
    "trl_sync, trl_async; each with -again"
)
_GOALS = {"verl_sync": ">= 2.5 x", "verl_async": ">= 2 x"}
"""What the project aims for beside each peer."""
_LEAST = 120.0
"""Seconds: nobody begins with less."""
_OURS, _PEERS = 240.0, 650.0
"""Seconds that are kept for each of those that come later. verl needs 250 to 450 to its first step and 110 to
220 for eleven more, ours 120 on a machine with empty caches and 70."""


def main() -> None:
    options = parse()
    peer.offer_kernels()
    work = work_of(options)
    until = time.monotonic() + options.seconds
    rates: dict[str, float] = {}
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        prepare(work, folder)
        for number, name in enumerate(options.contenders):
            left = until - time.monotonic()
            # Where there is too little for all, the first ones have what they need.
            share = max(left - needed(options.contenders[number + 1 :]), min(left, needed([name])))
            if options.gpus and share < _LEAST:
                print(f"{name}: not run, {share:.0f} s were left", flush=True)
                continue
            steps = contend(name, work, folder, share, options)
            rate = steady_rate(steps, SKIPPED if options.gpus else 1, FEWEST if options.gpus else 1)
            print(
                f"{name}: {len(steps)} steps, {'too few' if rate is None else f'{rate:,.0f} tokens/s'}",
                flush=True,
            )
            if rate is not None:
                rates[name] = rate
                record(f"peers_{options.gpus}", figures(rates, options.gpus), options.out)


def contend(name: str, work: Work, folder: Path, seconds: float, options: argparse.Namespace) -> list[Ended]:
    """The steps of one contender; none where it fails."""
    place = options.out / name
    place.mkdir()
    if (mine := ours.named(once(name))) is None:
        given = settings(name, options)
        run = trl.run if given.mode in trl.MODULES else verl.run
        return run(given, work, folder, options.out / f"{name}.log", seconds)
    job = ours.manifest(mine, work, folder, options.gpus, options.micro_batch)
    try:
        return ours.run(job, place, seconds)
    except subprocess.SubprocessError as error:
        print(f"{name}: {error}", flush=True)
        return []


def asked(gpus: int) -> list[str]:
    """Who is compared where nobody is named: on two GPUs and more, verl's fully asynchronous trainer with two
    thresholds and its synchronous one, and ours with two bounds, trainer and engine apart or sharing."""
    if gpus == 0:
        return ["ours-1"]
    if gpus == 1:
        return ["ours-1", "verl_sync", "ours-0"]
    apart = ["ours-1", "ours-2"]
    return ["verl_async", "verl_async-0.5", "verl_sync", *apart, *(f"{name}-shared" for name in apart)]


def needed(contenders: Sequence[str]) -> float:
    """Seconds for all of these."""
    return sum(_PEERS if ours.named(once(name)) is None else _OURS for name in contenders)


def once(name: str) -> str:
    """The name of a contender without what tells that it runs a second time."""
    return name.removesuffix(AGAIN)


def theirs(name: str) -> tuple[str, float]:
    """A peer's mode and staleness threshold. Raises `ValueError` for who is not known."""
    if (found := verl.named(once(name)) or trl.named(once(name))) is None:
        raise ValueError(f"{name!r} is not known; known: {_KNOWN}")
    return found


def settings(name: str, options: argparse.Namespace) -> peer.Settings:
    """What a peer is run with."""
    mode, staleness = theirs(name)
    return peer.Settings(mode, options.gpus, options.micro_batch, options.attention, staleness)


def figures(rates: dict[str, float], gpus: int) -> list[Figure]:
    """Of what is there so far: ours beside each peer, a peer alone where ours is not there yet."""
    on = f"{gpus} GPU{'' if gpus == 1 else 's'}" if gpus else "CPU"
    peers = {name: rate for name, rate in rates.items() if ours.named(once(name)) is None}
    mine = {name: rate for name, rate in rates.items() if name not in peers}
    trained = partial(Figure, unit="tokens/s")
    alone = [
        trained(name=f"{name}, {on}: response tokens trained", value=rate) for name, rate in rates.items()
    ]
    goals = {name: _GOALS.get(theirs(name)[0]) for name in peers}
    beside = [
        trained(name=f"{name} beside {their}, {on}", value=rate, baseline=other, goal=goals[their])
        for name, rate in mine.items()
        for their, other in peers.items()
    ]
    return [*alone, *beside]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--gpus", type=int, default=torch.cuda.device_count(), help="0: a CPU, with little work"
    )
    parser.add_argument(
        "--contenders", nargs="+", metavar="NAME",
        help=f"{_KNOWN}. So many engines on a GPU; whether the trainer's GPU generates, too; verl's "
        "staleness_threshold, 1 where none is named. They run in this order. By default all that is to be "
        "compared on so many GPUs",
    )  # fmt: skip
    parser.add_argument(
        "--seconds", type=float, help="of all contenders together; by default what they need, "
        f"{_OURS:.0f} for each of ours and {_PEERS:.0f} for each peer"
    )  # fmt: skip
    parser.add_argument(
        "--micro-batch", type=int, default=32768, help="tokens of a forward pass, of everybody's"
    )
    parser.add_argument("--attention", default="flash_attention_2", help="the peers'")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.contenders = options.contenders or asked(options.gpus)
    options.seconds = options.seconds or (needed(options.contenders) if options.gpus else _ON_CPU)
    try:
        check(parser, options, work_of(options))
    except ValueError as error:
        parser.error(f"--contenders: {error}")
    return options


def check(parser: argparse.ArgumentParser, options: argparse.Namespace, work: Work) -> None:
    """End the command where something is not installed; raises `ValueError` where a contender is not known,
    or cannot run. Both say what to do."""
    peers = [settings(name, options) for name in options.contenders if ours.named(once(name)) is None]
    if options.gpus and peers:
        peer.check_attention(parser, options.attention)
    for given in peers:
        if given.mode in trl.MODULES:
            trl.check(given, work)
            peer.check_installed(parser, "trl", trl.WANTED)
        else:
            verl.check(given, peer.installed("trl"))
            peer.check_installed(parser, "verl", verl.WANTED)


def work_of(options: argparse.Namespace) -> Work:
    return LARGE if options.gpus else SMALL


if __name__ == "__main__":
    main()

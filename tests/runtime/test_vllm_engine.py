"""The vLLM engine beyond the contract: its processes, tied embeddings, families, sampling, older versions."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import numpy as np
import psutil
import pytest
import pytest_asyncio
from safetensors.torch import load_file, save_file

from rljob_runtime.engines.protocol import EngineDied, Request, Sampling
from rljob_runtime.engines.vllm import VllmEngine
from rljob_runtime.samples import Generation, Group, Sample
from rljob_runtime.site.scratch import sweep
from rljob_runtime.weights.contents import tensor_shapes
from tests.support.runtime.engines import load, started, vllm_engine
from tests.support.runtime.tiny_models import (
    PLAIN,
    VLLM_TOLERANCE,
    Family,
    Reference,
    check_kept_kv,
    check_log_probs,
    perturbed,
    published,
    request,
    tiny_model,
    vllm_device,
    weights_at,
)
from tests.support.runtime.trainer_ranks import stored_version, trainer_job, worker

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

SLOTS, LENGTH = 16, 384
ON_CPU = vllm_device()["accelerator"] == "cpu"
RULES = Sampling(temperature=0.7, top_p=0.9, top_k=20, stop_token_ids=(1, 2, 3))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("vllm") / "model", tied=True)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(base: Path) -> AsyncIterator[VllmEngine]:
    async with started(vllm_engine(base, sampling=RULES, slots=SLOTS, length=LENGTH)) as engine:
        yield engine


async def check_engine(
    engine: VllmEngine, base: Path, folder: Path, rules: Sampling = PLAIN
) -> list[Generation]:
    """Responses of an engine, whose log-probabilities are those of a trainer with the weights in `folder`."""
    asked = [request(f"{folder.name}-{seed}", seed, length=5 + seed, max_tokens=60) for seed in range(16)]
    results = await asyncio.gather(*[engine.submit(one) for one in asked])
    check_log_probs(base, {engine.version: folder}, zip(asked, results, strict=True), rules)
    return results


async def more_tokens(engine: VllmEngine, of: list["asyncio.Task[Generation]"]) -> None:
    """Return when more tokens have been generated than now, or all these responses have ended."""
    before = (await engine.load_snapshot()).generated_tokens
    async with asyncio.timeout(60):
        while not all(task.done() for task in of):
            # Progress is told when asked.
            if (await engine.load_snapshot()).generated_tokens > before:
                return
            await asyncio.sleep(0.005)


async def test_a_tied_model_agrees_with_the_trainer_after_every_load(
    engine: VllmEngine, base: Path, tmp_path: Path
) -> None:
    results = await check_engine(engine, base, base, RULES)
    for version in range(1, 5):
        folder = perturbed(base, tmp_path / f"v{version}", version)
        await load(engine, version, folder)
        results += await check_engine(engine, base, folder, RULES)
    stopped = [got for got in results if got.finish == "stop"]
    assert stopped, "no response met a stop token"
    assert all(got.tokens[-1] in RULES.stop_token_ids for got in stopped)
    assert not any(np.isin(got.tokens[:-1], RULES.stop_token_ids).any() for got in results)


async def test_a_step_takes_as_many_tokens_as_vllm_has_for_batches_of_prompts(engine: VllmEngine) -> None:
    """Where the job names no number. By itself vLLM's engine has 2,048, as for requests that come one by
    one."""
    config = engine._live_core()._llm.vllm_config.scheduler_config
    assert config.max_num_batched_tokens == (4096 if ON_CPU else SLOTS * LENGTH)


async def test_a_request_with_a_sampling_of_its_own(engine: VllmEngine) -> None:
    """Without chance the same prompt gets the same response, whatever the seed; beside it others are drawn as
    the engine was built to."""
    prompt, greedy = request("prompt").tokens, msgspec.structs.replace(RULES, temperature=0.0)
    asked = [
        Request(f"own{seed}", prompt, 40, seed, sampling=greedy if seed < 8 else None) for seed in range(16)
    ]
    results = await asyncio.gather(*[engine.submit(one) for one in asked])
    texts = [tuple(got.tokens.tolist()) for got in results]
    # Fewer, and not one: where two tokens are as probable, rounding decides, and that depends on the batch.
    assert len(set(texts[:8])) < len(set(texts[8:]))


async def test_versions_are_exact_by_what_the_core_counts_in_a_pause(
    engine: VllmEngine, base: Path, tmp_path: Path
) -> None:
    """What the core says is what it sends when it is asked to, and each token has the log-probability of the
    weights of its label."""
    start = engine.version
    folders = {start: perturbed(base, tmp_path / "start", 99)}
    await load(engine, start, folders[start])
    core = engine._live_core()
    asked = [request(f"counted{seed}", seed, max_tokens=240) for seed in range(SLOTS)]
    tasks = [asyncio.create_task(engine.submit(one)) for one in asked]
    for version in (start + 1, start + 2, start + 3):
        folders[version] = perturbed(base, tmp_path / f"counted{version}", version)
        await more_tokens(engine, tasks)
        await engine.pause("keep")
        await engine.load(weights_at(version, folders[version]))
        counted = await core.counts_at_pause()
        await core.flush()
        assert counted == core.token_counts()
        await engine.resume()
    results = await asyncio.gather(*tasks)
    assert max(len(got.spans) for got in results) > 1
    check_log_probs(base, folders, zip(asked, results, strict=True), RULES)


@pytest.mark.parametrize("keeps", [False, True], ids=["recompute", "keep"])
async def test_the_kv_of_what_runs_when_weights_are_updated(
    engine: VllmEngine, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keeps: bool
) -> None:
    """Computed anew, or kept for what has tokens and for nobody else. Prompts fill a block of the cache: a
    request with the same one would find it. One waits for its turn meanwhile."""
    monkeypatch.setattr(engine, "keeps_kv", keeps)
    old, new = engine.version + 1, engine.version + 2
    folders = {version: perturbed(base, tmp_path / f"v{version}", version) for version in (old, new)}
    await load(engine, old, folders[old])
    asked = [request(f"kv{keeps}{seed}", seed, 130, 240, exact=True) for seed in range(SLOTS)]
    tasks = [asyncio.create_task(engine.submit(one)) for one in asked]
    while min(engine._live_core().token_counts().values(), default=0) < 1:
        await more_tokens(engine, tasks)
    waits = msgspec.structs.replace(asked[-1], request_id=f"waits{keeps}", max_tokens=20)
    waiting = asyncio.create_task(engine.submit(waits))
    while waits.request_id not in engine._live_core().token_counts():
        await more_tokens(engine, tasks)
    await engine.pause("keep")
    await engine.load(weights_at(new, folders[new]))
    await engine.resume()
    engine.counters()
    found, later = [], []
    for time_around in range(2):
        again = [
            msgspec.structs.replace(one, request_id=f"{one.request_id}-{time_around}", max_tokens=20)
            for one in asked[:8]
        ]
        later += list(zip(again, await asyncio.gather(*map(engine.submit, again)), strict=True))
        found.append(engine.counters()["prefix_hits"])
    ran = list(zip(asked, await asyncio.gather(*tasks), strict=True))
    assert [[span.version for span in got.spans] for _, got in ran] == [[old, new]] * SLOTS
    # What begins after the update is of the new weights alone.
    check_log_probs(base, folders, [*later, (waits, await waiting)], RULES)
    anew = [got.timing.recomputed for _, got in ran if got.timing is not None]
    if keeps:
        assert anew == [0.0] * SLOTS
        assert check_kept_kv(base, folders, ran, RULES) > 100 * VLLM_TOLERANCE, "the KV was not kept"
    else:
        assert min(anew) > 0.0
        check_log_probs(base, folders, ran, RULES)
    # Where it was computed anew, with the weights that are used now, it is there for all.
    assert [hits > 0 for hits in found] == [not keeps, True]


async def test_a_killed_engine_core_ends_every_submit_at_once(base: Path) -> None:
    engine = vllm_engine(base, "killed", slots=32, length=512)
    await engine.start(0)
    tasks = [asyncio.create_task(engine.submit(request(f"r{i}", i, max_tokens=400))) for i in range(32)]
    while (await engine.load_snapshot()).generated_tokens < 100:  # noqa: ASYNC110 - progress is told when asked
        await asyncio.sleep(0.005)
    [process] = engine._live_core().processes
    os.kill(process.pid, signal.SIGKILL)
    async with asyncio.timeout(60):
        results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(result) for result in results] == [EngineDied] * 32
    assert f"engine killed: its engine core (process {process.pid}) ended" in str(results[0])
    for call in (engine.pause("keep"), engine.load_snapshot(), engine.submit(request("late"))):
        with pytest.raises(EngineDied, match=r"engine core .* ended"):
            await call
    await engine.close()
    assert gone(process.pid, within=0.1)


HOST = """
import asyncio, sys
from pathlib import Path

async def main():
    # Not above, where the engine core, which imports this file, would import it too.
    from tests.support.runtime.engines import vllm_engine

    engine = vllm_engine(Path(sys.argv[1]), "host")
    await engine.start(0)
    print("started", engine._live_core().processes[0].pid, flush=True)
    {then}

if __name__ == "__main__":
    asyncio.run(main())
"""


def host(then: str, base: Path, folder: Path) -> tuple["subprocess.Popen[str]", int]:
    """A process that starts an engine and goes on with `then`; and its engine core's id."""
    script = folder / "host.py"
    script.write_text(HOST.format(then=then))
    process = subprocess.Popen(
        [sys.executable, str(script), str(base)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
    )
    assert process.stdout is not None
    line = next((line for line in process.stdout if line.startswith("started")), "")
    assert line, f"the host ended with {process.wait()}"
    return process, int(line.split()[1])


def sockets_of(process: "subprocess.Popen[str]") -> Path:
    """Where the engines of a process have their sockets."""
    return Path(tempfile.gettempdir()) / f"rljob-vllm-{process.pid}"


def gone(pid: int, within: float) -> bool:
    """Whether a process ends in time, looked at once at least; one that nobody has reaped yet counts."""
    deadline = time.monotonic() + within
    while True:
        late = time.monotonic() >= deadline
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        if late:
            return False
        time.sleep(0.05)


async def test_the_engine_core_ends_when_its_host_is_killed(base: Path, tmp_path: Path) -> None:
    process, core = host("await asyncio.Event().wait()", base, tmp_path)
    assert psutil.pid_exists(core)
    sockets = sockets_of(process)
    assert any(path.is_socket() for path in sockets.iterdir())
    process.kill()
    process.wait()
    assert gone(core, within=60)
    sweep(sockets.parent)
    assert not sockets.exists(), "the next start removes them"


async def test_close_leaves_no_process_behind(base: Path, tmp_path: Path) -> None:
    process, core = host("await engine.close()", base, tmp_path)
    assert process.wait(timeout=60) == 0
    assert gone(core, within=0.1)
    assert not sockets_of(process).exists()


@pytest.mark.parametrize(
    ("family", "tied"), [("qwen2", False), ("llama", True), ("gemma2", True), ("granite_swa", False)]
)
async def test_other_families_agree_with_the_trainer(tmp_path: Path, family: Family, tied: bool) -> None:
    """The third has caps of scores and of logits, the last one sinks, both windows."""
    base = tiny_model(tmp_path / "model", family, tied)
    async with started(vllm_engine(base, family)) as engine:
        await check_engine(engine, base, base)
        for version in (1, 2):
            folder = perturbed(base, tmp_path / f"v{version}", version)
            await load(engine, version, folder)
            await check_engine(engine, base, folder)


async def answers(engine: VllmEngine, prompts: int) -> tuple[list[Group], list[tuple[Request, Generation]]]:
    """Groups of four responses with random rewards, and the requests with what came of them."""
    asked = [
        request(f"{engine.version}-{uid}-{sample}", uid, length=5 + uid, max_tokens=40)
        for uid in range(prompts)
        for sample in range(4)
    ]
    got = await asyncio.gather(*[engine.submit(one) for one in asked])
    rewards = np.random.default_rng(engine.version).random(len(got))
    samples = [
        Sample(each.tokens, each.log_probs, each.spans, each.finish, float(reward), None)
        for each, reward in zip(got, rewards, strict=True)
    ]
    groups = [
        Group(uid, 0, uid, asked[4 * uid].tokens, tuple(samples[4 * uid : 4 * uid + 4]), engine.version)
        for uid in range(prompts)
    ]
    return groups, list(zip(asked, got, strict=True))


def surely_routed(
    base: Path, folder: Path, groups: list[Group], pairs: list[tuple[Request, Generation]]
) -> tuple[list[Group], list[tuple[Request, Generation]]]:
    """Those of `answers` in which rounding decides between no two experts; half of the groups may be lost."""
    reference = Reference(base).use(folder)
    sure = [reference.surely_routed(asked, got) for asked, got in pairs]
    kept = [at for at in range(len(groups)) if all(sure[4 * at : 4 * at + 4])]
    assert 2 * len(kept) >= len(groups)
    return [groups[at] for at in kept], [pair for at in kept for pair in pairs[4 * at : 4 * at + 4]]


async def test_a_mixture_of_experts_agrees_with_the_trainer_after_every_update(tmp_path: Path) -> None:
    """First with weights that are loaded once more as they are, then with what the trainer makes of them."""
    base = tiny_model(tmp_path / "model", "qwen3_moe")
    folder = perturbed(base, tmp_path / "same", seed=0, scale=0.0)
    job = trainer_job(optimizer={"learningRate": 5e-3}, parallel={"maxTokensPerMicroBatch": 256})
    with worker(job, base) as trainer:
        async with started(vllm_engine(base, "experts")) as engine:
            for version in range(4):
                await load(engine, version, folder)
                groups, pairs = surely_routed(base, folder, *await answers(engine, prompts=4))
                check_log_probs(base, {version: folder}, pairs)
                metrics = trainer.train_step(version, version, groups)
                assert metrics.parity_max is not None and metrics.parity_max < VLLM_TOLERANCE
                assert metrics.grad_norm > 0
                folder = Path(stored_version(trainer, version + 1).location)


async def test_a_load_that_fails_half_way_ends_the_engine(base: Path, tmp_path: Path) -> None:
    engine = vllm_engine(base, "torn", length=512)
    await engine.start(0)
    waiting = asyncio.create_task(engine.submit(request("waiting", max_tokens=500)))
    while (await engine.load_snapshot()).generated_tokens == 0:  # noqa: ASYNC110 - progress is told when asked
        await asyncio.sleep(0.001)
    await engine.pause("keep")
    folder = published(tiny_model(tmp_path / "torn", "qwen2"))
    engine._tensors = tensor_shapes(folder)  # so that nothing but the core finds out
    with pytest.raises(EngineDied, match=r"engine torn: loading version 1 from .* failed"):
        await engine.load(weights_at(1, folder))
    with pytest.raises(EngineDied, match="engine torn: loading version 1"):
        await waiting
    assert all(gone(process.pid, within=0.1) for process in engine._core.processes if process.pid)  # type: ignore[union-attr]


async def test_a_model_that_vllm_cannot_run_is_an_error_of_one_line(tmp_path: Path) -> None:
    base = tiny_model(tmp_path / "model")
    (base / "config.json").write_text("{}")
    with pytest.raises(EngineDied, match="engine broken: vLLM did not start") as caught:
        await vllm_engine(base, "broken").start(0)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("ranks", "where"),
    [
        (1, ""),
        # Each rank has a process of its own, of which the core's knows nothing.
        pytest.param(
            2,
            r" \(in VllmWorker-[01]\)",
            marks=pytest.mark.skipif(not ON_CPU, reason="needs two accelerators"),
        ),
    ],
)
async def test_what_ended_an_engine_core_is_told(tmp_path: Path, ranks: int, where: str) -> None:
    base = tiny_model(tmp_path / "model")
    # Of this only who reads the weights finds out.
    weights = load_file(base / "model.safetensors")
    narrow = "model.layers.0.mlp.down_proj.weight"
    save_file(weights | {narrow: weights[narrow][:-1].contiguous()}, base / "model.safetensors")
    with pytest.raises(EngineDied) as caught:
        await vllm_engine(base, "broken", tensor_parallel=ranks).start(0)
    assert re.fullmatch(
        rf"engine broken: vLLM did not start: AssertionError: at .*\.py:\d+, in \w+{where}", str(caught.value)
    )

"""Whatever happens to engines, pools and the trainer: evaluations on engines that are set aside are whole and
of one version, and training goes on as without them."""

import asyncio
import random
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_runtime.trace.record.evaluation_log import read_evaluations
from tests.support.depth import examples
from tests.support.simulated.losable_parts import EVALUATED, Losses
from tests.support.simulated.losing_job import LosingSession, run_losing

STEPS = 10


def troubles(
    seed: int, every: float, collective: bool
) -> Callable[[LosingSession], Coroutine[Any, Any, None]]:
    """Engines die, leave and come, until most steps are trained."""

    async def script(session: LosingSession) -> None:
        rng, pool, sync = random.Random(seed), session.pool, session.parts.sync

        async def come() -> None:
            if collective:
                await session.come()
                await session.send_to_newcomers()
            else:
                await session.come_with_newest()

        async def one() -> None:
            staying = [slot for slot in pool.slots if not slot.leaving]
            kind = rng.choice(["die", "leave", "come"])
            if kind == "come" or len(staying) < 2:
                if len(pool.slots) < 5:
                    await come()
                return
            slot = rng.choice(pool.aside_slots or staying)
            # In a broadcast nobody may be lost here.
            if kind == "die" and not collective:
                await slot.engine.close()
                pool.lost(slot, "killed")
            else:
                await pool.clear(slot, 60)
                await sync.remove(slot)
                await slot.engine.close()

        clock = asyncio.get_running_loop().time
        due = clock() + rng.expovariate(1 / every)
        while session.losable.steps < STEPS - 2:
            await asyncio.sleep(0.1)
            if clock() >= due:
                await one()
                due = clock() + rng.expovariate(1 / every)
            pool.router.book.check()
            pool.aside.book.check()
        # Somebody has to train the rest.
        if not any(slot.joined for slot in pool.training_slots):
            await come()

    return script


@settings(max_examples=examples(60), deadline=None)
@given(
    seed=st.integers(0, 10**6),
    every=st.sampled_from([0.3, 1.0, 4.0]),
    plan=st.sampled_from([("keep", False), ("abort", False), ("wait", False), (None, False), ("keep", True)]),
    engines=st.integers(2, 5),
    aside=st.integers(1, 3),
    evaluate_every=st.integers(1, 4),
    steps_per_version=st.integers(1, 2),
    bound=st.sampled_from([0.0, 1.0, 2.5]),
    lengths=st.integers(1, 40),
    fetch_seconds=st.sampled_from([0.0, 0.3]),
    at=st.lists(
        st.tuples(st.sampled_from(["step", "publish", "save"]), st.integers(1, 8)), max_size=2, unique=True
    ),
)
def test_evaluations_are_whole_and_of_one_version_and_training_is_as_without(
    seed, every, plan, engines, aside, evaluate_every, steps_per_version, bound, lengths, fetch_seconds, at
):
    in_flight, collective = plan

    def length(request) -> int:
        return (1 + request.seed % 30) * (lengths if request.request_id.startswith("-") else 1)

    with tempfile.TemporaryDirectory() as folder:
        session = run_losing(
            Losses(
                folder=Path(folder), set_aside=aside, evaluate_every=evaluate_every, in_flight=in_flight,
                collective=collective, engines=engines, max_staleness=bound, length=length, steps=STEPS,
                max_response_tokens=2000, steps_per_version=steps_per_version, at=[] if collective else at,
                fetch_seconds=0.0 if collective else fetch_seconds,
                script=troubles(seed, every, collective),
            )
        )  # fmt: skip
        lines = read_evaluations(Path(folder))

    every_steps = evaluate_every * steps_per_version
    assert [line.step for line in lines] == [
        step for step in range(STEPS + 1) if step % every_steps == 0 or step == STEPS
    ]
    foreign = " ".join(said for said in session.said if "unpinned" in said)
    for line in lines:
        (score,) = line.sets.values()
        assert (score.prompts, score.responses, score.failed) == (EVALUATED, 2 * EVALUATED, 0)
        # On shared engines the loss of all of them has the same end.
        told = f"of version {line.version} are gone" in foreign
        assert score.unpinned == 0 or told or line.engines == 0
    trained = sorted(group.uid for groups in session.losable.trained for group in groups)
    assert trained == list(range(4 * STEPS))
    assert max(session.losable.ages) <= session.settings.bound.versions
    for router in (session.pool.router, session.pool.aside):
        assert not router.book.groups
        router.book.check()
    assert not session.pool.aside_slots

"""What is kept of each step, in virtual time: of steps that were trained, without holding up the loop."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import pytest

from rljob_api.algorithm import Advantage, Algorithm, MaxRl, ReinforcePlusPlus
from rljob_runtime.data.tokenizer import CharacterTokenizer
from rljob_runtime.driver.sample_keeper import MOST_TOKENS, SampleKeeper
from rljob_runtime.groups.masking import oldest_trained
from rljob_runtime.groups.staleness import Bound
from rljob_runtime.objective.advantages import estimator
from rljob_runtime.samples import Group, Sample, Span, Tokens, encode
from rljob_runtime.simulate.virtual_loop import run_virtual
from rljob_runtime.trace.record.sample_log import SAMPLES_FILE, SampleLine, SampleLog, read_samples
from rljob_runtime.trainer.batch import responses_of, rewards_of
from rljob_runtime.trainer.outline import outline_of

LETTERS = CharacterTokenizer("abcdefgh")


def sample(length: int, reward: float = 1.0, failure: str | None = None, version: int = 3) -> Sample:
    tokens = np.full(length, 4, np.int32)
    tokens[-1:] = LETTERS.eos_id
    spans = (Span(version, 0, 1), Span(version + 1, 1, length)) if length > 1 else ()
    return Sample(
        tokens, tokens.astype(np.float32), spans, "stop", 0.0 if failure else reward, failure, "fast-0", 1.5
    )


def test_a_row_has_the_reward_s_parts_and_metrics(tmp_path: Path) -> None:
    async def main() -> None:
        parts, metrics = {"correct": 1.0, "format": 0.5}, {"depth": None, "steps": 3.0}
        made = msgspec.structs.replace(sample(4), reward_parts=parts, reward_metrics=metrics)
        site = Site(tmp_path, group(7, made, sample(4)))
        site.keeper.step_begins(8, [7])
        site.keeper.step_done()
        site.keeper.flush()
        with_parts, without = site.rows
        assert (with_parts.reward_parts, with_parts.reward_metrics) == (parts, metrics)
        assert (without.reward_parts, without.reward_metrics) == ({}, {})

    virtual(main)


def group(uid: int, *samples: Sample) -> Group:
    return Group(uid, 2, 50 + uid, LETTERS.encode("abc"), samples or (sample(4), sample(6, 0.5)), 3)


GRPO = Algorithm()


class Site:
    """A keeper over an outbox of made-up groups."""

    def __init__(
        self,
        folder: Path,
        *groups: Group,
        count: int = 4,
        tokenizer: Any = LETTERS,
        algorithm: Algorithm = GRPO,
    ) -> None:
        self.folder = folder
        self.waiting = {each.uid: encode(each) for each in groups}
        self.taken: list[int] = []
        self.keeper = SampleKeeper(
            count, SampleLog(folder), cast(Any, self), tokenizer, Bound(1, 2, 2),
            estimator(algorithm), 0,
            asyncio.get_running_loop().create_task, asyncio.get_running_loop().time,
        )  # fmt: skip
        self.keeper.begin(0)

    def frames_of(self, uids: list[int]) -> list[bytes]:
        self.taken += uids
        return [self.waiting[uid] for uid in uids]

    @property
    def rows(self) -> list[SampleLine]:
        return read_samples(self.folder).rows


def virtual(body: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await body()

    run_virtual(main())


def test_a_row_has_text_reward_advantage_and_versions(tmp_path: Path) -> None:
    async def main() -> None:
        scored = group(
            7, sample(4, 1.0), sample(6, 0.5), sample(3, failure="timeout after 10 s"), sample(0, 0.3)
        )
        site = Site(tmp_path, scored)
        site.keeper.step_begins(8, [7])
        await asyncio.sleep(5)
        assert site.rows == [], "the step is not trained yet"
        site.keeper.step_done()
        (expected,) = estimator(Algorithm())([rewards_of(outline_of(scored), None)])
        assert expected == pytest.approx([1.109400, -0.277350, 0, -0.832050], abs=1e-5)
        whole, second, failed, empty = site.rows
        assert whole == SampleLine(
            step=8, time=5.0, uid=7, epoch=2, row=57, index=0, prompt="<bos>abc<sep>", response="aaa<eos>",
            left_out=0, prompt_tokens=5, tokens=4, finish="stop", reward=1.0, failure=None,
            advantage=float(expected[0]), engine="fast-0", seconds=1.5, first_version=3, last_version=4,
            trained_with=4,
        )  # fmt: skip
        assert (second.index, second.reward, second.advantage) == (1, 0.5, float(expected[1]))
        assert (failed.reward, failed.failure, failed.advantage) == (None, "timeout after 10 s", 0.0)
        assert (empty.response, empty.first_version, empty.last_version) == ("", None, None)

    virtual(main)


def test_advantages_are_the_trainer_s_where_all_groups_of_a_step_are_compared(tmp_path: Path) -> None:
    """Stale tokens, which are not trained, count for neither."""

    async def main() -> None:
        algorithm = Algorithm(advantage=Advantage(reinforce_plus_plus=ReinforcePlusPlus()))
        made = [group(0, sample(9, 1.0, version=1), sample(4, 0.0)), group(1, sample(7, 5.0))]
        site = Site(tmp_path, *made, algorithm=algorithm)
        site.keeper._bound = bound = Bound(0, 1, 1, masks=True)
        site.keeper.step_begins(3, [0, 1])
        site.keeper.step_done()
        site.keeper.flush()
        oldest = oldest_trained(bound, bound.version_at(3))
        trained = responses_of([outline_of(each) for each in made], estimator(algorithm), oldest)
        assert [(each.item.uid, each.item.sample) for each in trained] == [(0, 1), (1, 0)]
        kept = {(row.uid, row.index): row.advantage for row in site.rows}
        assert all(kept[each.item.uid, each.item.sample] == each.advantage != 0 for each in trained)

    virtual(main)


def test_rewards_that_end_the_job_are_the_trainer_s_to_tell(tmp_path: Path) -> None:
    async def main() -> None:
        site = Site(
            tmp_path,
            group(0, sample(4, -1.0), sample(6)),
            algorithm=Algorithm(advantage=Advantage(max_rl=MaxRl())),
        )
        site.keeper.step_begins(0, [0])
        await asyncio.sleep(1)
        site.keeper.flush()
        assert site.rows == []

    virtual(main)


def test_nothing_is_read_or_written_where_none_is_to_be_kept(tmp_path: Path) -> None:
    async def main() -> None:
        site = Site(tmp_path, group(0), count=0)
        site.keeper.step_begins(0, [0])
        site.keeper.step_done()
        site.keeper.flush()
        assert site.taken == [] and not (tmp_path / SAMPLES_FILE).exists()

    virtual(main)


def test_a_step_that_ends_before_its_text_is_made_is_written_all_the_same(tmp_path: Path) -> None:
    """By the tasks that go on, by the next step's beginning, or by the end."""

    async def main() -> None:
        site = Site(tmp_path, *(group(uid) for uid in range(6)))
        site.keeper.step_begins(0, [0, 1])
        site.keeper.step_done()
        assert site.rows == []
        await asyncio.sleep(1)
        assert [row.step for row in site.rows] == [0] * 4
        site.keeper.step_begins(1, [2, 3])
        site.keeper.step_done()
        site.keeper.step_begins(2, [4, 5])
        assert [row.step for row in site.rows] == [0] * 4 + [1] * 4
        site.keeper.step_done()
        site.keeper.flush()
        assert [row.step for row in site.rows] == [0] * 4 + [1] * 4 + [2] * 4
        await asyncio.sleep(1)
        assert len(site.rows) == 12

    virtual(main)


def test_a_step_that_was_not_trained_is_not_kept(tmp_path: Path) -> None:
    async def main() -> None:
        site = Site(tmp_path, *(group(uid) for uid in range(4)))
        site.keeper.step_begins(0, [0, 1])
        await asyncio.sleep(1)
        # The trainer is lost, and comes back.
        site.keeper.begin(0)
        site.keeper.step_begins(0, [2, 3])
        await asyncio.sleep(1)
        site.keeper.step_done()
        assert {row.uid for row in site.rows} == {2, 3}
        # Also where the job ends within a step.
        site.keeper.step_begins(1, [0])
        site.keeper.flush()
        await asyncio.sleep(1)
        assert {row.step for row in site.rows} == {0}

    virtual(main)


def test_the_loop_goes_on_between_groups_and_between_responses(tmp_path: Path) -> None:
    class Watched(CharacterTokenizer):
        def transcribe(self, tokens: Tokens) -> str:
            rounds.append(round_of_the_loop)
            return super().transcribe(tokens)

    rounds: list[int] = []
    round_of_the_loop = 0

    async def main() -> None:
        nonlocal round_of_the_loop
        site = Site(tmp_path, *(group(uid) for uid in range(10)), tokenizer=Watched("abcdefgh"))
        site.keeper.step_begins(0, list(range(10)))
        for _ in range(40):
            round_of_the_loop += 1
            await asyncio.sleep(0)
        assert rounds == sorted(set(rounds)), "two texts in one round"
        assert rounds[0] > 10, "groups are looked at one by one"
        # Four responses of two groups.
        assert len(rounds) == 4 + 2

    virtual(main)


@pytest.mark.parametrize(("length", "left_out"), [(MOST_TOKENS, 0), (MOST_TOKENS + 1, 1), (100_000, 91_808)])
def test_long_responses_keep_their_beginning_and_their_end(
    tmp_path: Path, length: int, left_out: int
) -> None:
    async def main() -> None:
        site = Site(tmp_path, group(0, sample(length)))
        site.keeper.step_begins(0, [0])
        site.keeper.step_done()
        site.keeper.flush()
        (row,) = site.rows
        assert (row.tokens, row.left_out) == (length, left_out)
        assert row.response.endswith("aaa<eos>") and row.response.startswith("aaa")
        assert len(row.response) < MOST_TOKENS + 60
        assert (f"[... {left_out} tokens left out ...]" in row.response) == (left_out > 0)

    virtual(main)


def test_what_is_no_text_does_not_end_the_job(tmp_path: Path) -> None:
    class Broken(CharacterTokenizer):
        def transcribe(self, tokens: Tokens) -> str:
            return "a\ud800\x00b"

    async def main() -> None:
        site = Site(tmp_path, group(0, sample(3)), tokenizer=Broken("abcdefgh"))
        site.keeper.step_begins(0, [0])
        site.keeper.step_done()
        site.keeper.flush()
        assert [row.response for row in site.rows] == ["a?\x00b"]

    virtual(main)

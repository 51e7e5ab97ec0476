"""Versions that arrive in a vLLM engine while it generates: what is generated with which, and what becomes of
those that are not put in."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from safetensors.torch import load_file

from rljob_runtime.engines.protocol import Request, WeightRef
from rljob_runtime.engines.vllm import VllmEngine
from rljob_runtime.samples import Generation
from rljob_runtime.weights.contents import tensor_shapes
from tests.support.runtime.engines import started, vllm_engine
from tests.support.runtime.gloo_group import GlooSender
from tests.support.runtime.plain_linear import plain_linear
from tests.support.runtime.tiny_models import (
    check_log_probs,
    perturbed,
    request,
    tiny_model,
    vllm_device,
    weights_at,
)
from tests.support.runtime.weight_receivers import meeting_place

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]

SECONDS = 120
over_gloo = pytest.mark.skipif(
    vllm_device()["accelerator"] != "cpu", reason="on accelerators engines do over NCCL: test_nccl_weights.py"
)


class Site:
    """An engine, its versions, and what it generated."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.folders = {0: base}
        self.engine: VllmEngine
        self._asked: list[tuple[Request, asyncio.Task[Generation]]] = []
        self._made = 0

    def version(self) -> WeightRef:
        """A new one."""
        number = len(self.folders)
        self.folders[number] = perturbed(self.base, self.base.parent / f"v{number}", number)
        return weights_at(number, self.folders[number])

    def launch(self, count: int) -> None:
        for _ in range(count):
            self._made += 1
            asked = request(f"r{self._made}", self._made, max_tokens=100, exact=True)
            self._asked.append((asked, asyncio.create_task(self.engine.submit(asked))))

    async def bring(self, ref: WeightRef) -> None:
        """Have a version arrive, after some tokens."""
        await self.more()
        async with asyncio.timeout(SECONDS):
            await self.engine.prepare(ref)
        assert not (await self.engine.load_snapshot()).paused

    async def more(self) -> None:
        """Wait until more tokens are generated."""
        goal = (await self.engine.load_snapshot()).generated_tokens + 16
        async with asyncio.timeout(SECONDS):
            while (await self.engine.load_snapshot()).generated_tokens < goal:  # noqa: ASYNC110 - asked
                await asyncio.sleep(0.002)

    async def put_in(self, ref: WeightRef) -> None:
        await self.engine.pause("keep")
        await self.engine.load(ref)
        await self.engine.resume()
        assert self.engine.version == ref.version

    async def check(self) -> set[int]:
        """Every token is of the weights of its version; the versions that there are."""
        self.launch(4)
        pairs = [(asked, await task) for asked, task in self._asked]
        self._asked.clear()
        check_log_probs(self.base, self.folders, pairs)
        return {span.version for _, got in pairs for span in got.spans}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    root = tmp_path_factory.mktemp("staging")
    site = Site(tiny_model(root / "model", tied=True))
    with plain_linear(root / "plugin"):
        async with started(vllm_engine(site.base)) as site.engine:
            assert site.engine.stages
            yield site


async def test_versions_arrive_while_it_generates(site: Site) -> None:
    refs = [site.version() for _ in range(3)]
    site.launch(8)
    for ref in refs:
        await site.bring(ref)
        assert site.engine.version == ref.version - 1, "it changes in the pause"
        # What has arrived is needed no more where it came from.
        hidden = Path(ref.location).rename(site.base.parent / "hidden")
        await site.put_in(ref)
        hidden.rename(ref.location)
    assert await site.check() == {0, 1, 2, 3}


async def test_a_version_that_is_superseded_is_dropped(site: Site) -> None:
    old, new, newest = site.version(), site.version(), site.version()
    before = site.engine.version
    site.launch(4)
    await site.bring(old)
    await site.bring(new)
    await site.put_in(new)
    await site.engine.prepare(new)
    # One that did not arrive before is loaded in the pause, as it always was.
    await site.put_in(newest)
    assert await site.check() == {before, new.version, newest.version}


async def test_a_version_that_is_never_put_in_changes_nothing(site: Site) -> None:
    before, ref = site.engine.version, site.version()
    site.launch(4)
    await site.bring(ref)
    await site.engine.pause("keep")
    await site.engine.resume()
    assert await site.check() == {before}


async def test_a_folder_that_is_damaged_changes_nothing(site: Site) -> None:
    before, ref = site.engine.version, site.version()
    file = Path(ref.location) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])
    with pytest.raises(ValueError, match="damaged"):
        await site.engine.prepare(ref)
    shutil.copy(site.folders[before] / "model.safetensors", file)
    assert await site.check() == {before}


@over_gloo
async def test_versions_are_broadcast_while_it_generates(site: Site) -> None:
    """Over gloo, which stands for NCCL; by one group."""
    meeting, sender = meeting_place(), GlooSender()
    before, refs = site.engine.version, [site.version() for _ in range(2)]
    site.launch(8)
    opening = asyncio.create_task(asyncio.to_thread(sender.init, 2, meeting.address))
    for ref in refs:
        tensors = sorted(load_file(Path(ref.location) / "model.safetensors").items())
        staged = WeightRef(ref.version, "nccl", str(meeting), staged=True)
        bringing = asyncio.create_task(site.bring(staged))
        # It generates on as long as the trainer does not send.
        await site.more()
        assert not bringing.done()
        async with asyncio.timeout(SECONDS):
            await opening
            await asyncio.to_thread(sender.send, ref.version, tensors, tensor_shapes(site.base), True)
            await bringing
        await site.put_in(staged)
    assert await site.check() == {before, *(ref.version for ref in refs)}
    sender.close()


@over_gloo
async def test_an_engine_whose_group_breaks_generates_on_with_what_it_has(site: Site) -> None:
    """Until whoever sent to it finds that it will never have the version, and gives it up; so this is the
    last test."""
    meeting, sender = meeting_place(), GlooSender()
    before, ref = site.engine.version, site.version()
    bringing = asyncio.create_task(
        site.engine.prepare(WeightRef(ref.version, "nccl", str(meeting), staged=True))
    )
    async with asyncio.timeout(SECONDS):
        await asyncio.to_thread(sender.init, 2, meeting.address)
    sender.break_off("an engine was lost")
    assert await site.check() == {before}
    assert not bringing.done()
    bringing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await bringing

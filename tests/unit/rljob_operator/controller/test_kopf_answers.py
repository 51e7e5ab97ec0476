"""Answers as kopf reads them: whole, and line by line."""

import json

import aiohttp
import pytest
from aiohttp import web
from kopf._cogs.clients.api import iter_jsonlines

from rljob_operator.controller.kopf_answers import ShallowAnswer

DEEP = '{"a":' * 5000 + "1" + "}" * 5000
LINES = [
    f'{{"type": "ADDED", "object": {{"metadata": {{"name": "{name}"}}, "spec": {spec}}}}}'
    for name, spec in (("a", "{}"), ("b", DEEP), ("c", json.dumps("x" * 300_000)))
]


@pytest.fixture
async def answers():
    """An open answer for each text that is to be sent."""
    sent = {}

    async def answer(request):
        text = sent["text"]
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        for at in range(0, len(text), 7_001):
            await response.write(text[at : at + 7_001])
        return response

    app = web.Application()
    app.router.add_get("/", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
    async with aiohttp.ClientSession(response_class=ShallowAnswer) as session:

        async def get(text):
            sent["text"] = text.encode()
            return await session.get(url)

        yield get
    await runner.cleanup()


@pytest.mark.parametrize("end", ["\n", ""])
async def test_a_watch(answers, end):
    async with await answers("\n".join(LINES) + end) as answer:
        events = [json.loads(line) async for line in iter_jsonlines(answer.content)]
    assert [each["object"]["metadata"]["name"] for each in events] == ["a", "b", "c"]
    assert [events[0], events[2]] == [json.loads(LINES[0]), json.loads(LINES[2])]


async def test_a_list(answers):
    async with await answers(f'{{"items": [{LINES[0]}, {LINES[1]}]}}') as answer:
        found = await answer.json()
    assert [each["object"]["metadata"]["name"] for each in found["items"]] == ["a", "b"]

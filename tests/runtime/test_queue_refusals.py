"""Who and what the queue does not let in, and where it cannot listen."""

import asyncio
from pathlib import Path

import msgspec
import pytest
import zmq
import zmq.asyncio

from rljob_runtime.net.auth import AddressError, Endpoint, dial, new_keys
from rljob_runtime.queue import wire
from rljob_runtime.queue.client import AsyncQueueClient, QueueRefused, QueueUnavailable
from tests.support.runtime.queue_site import CLIENT_KEYS, SOON, Site, groups

# Strangers and nonsense


async def test_a_wrong_token_is_refused(make_site, tmp_path):
    site = make_site(f"ipc://{tmp_path}/private/queue")
    _, strange = new_keys()
    async with site.client(keys=strange) as stranger:
        with pytest.raises(QueueRefused, match="the token does not fit this queue"):
            await stranger.put(groups(1), SOON)
    async with site.client() as client:
        stats = await client.stats()
        assert stats.refused["token"] >= 1 and stats.accepted == 0 and stats.clients == 1


async def test_a_wrong_client_key_is_refused(make_site):
    site = make_site()
    _, strange = new_keys()
    async with site.client(keys=strange, patience_seconds=600.0) as stranger:
        for _ in range(2):
            # At once: neither its patience nor the call's time limit is over.
            async with asyncio.timeout(SOON):
                with pytest.raises(QueueUnavailable, match="it does not know this client's key"):
                    await stranger.put(groups(1), 600.0)
    async with site.client() as client:
        stats = await client.stats()
        assert stats.refused == {"key": 1} and stats.accepted == 0 and stats.clients == 1


async def test_a_wrong_server_key_is_noticed(make_site):
    site = make_site()
    impostor, _ = new_keys()
    endpoint = Endpoint(site.address, impostor.public)
    async with AsyncQueueClient(endpoint, CLIENT_KEYS, "client", patience_seconds=1.0) as client:
        with pytest.raises(QueueUnavailable, match="is its public key the one we were given"):
            await client.stats()


async def test_a_client_without_keys_gets_nowhere(make_site):
    site = make_site()
    with zmq.asyncio.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.connect(site.address)
        await dealer.send(wire.encode(wire.Request("x", "", 1, 1, wire.GetStats())))
        assert not await dealer.poll(500)
    async with site.client() as client:
        assert (await client.stats()).clients == 1


def request(body, number=1, parts=0):
    return wire.encode(wire.Request("x", CLIENT_KEYS.token, number, 1, body, parts))


GOOD = request(wire.Put((1,), (1,), (3,)))
NONSENSE = {
    "nothing": [b""],
    "not MessagePack": [b"\xc1\xc1"],
    "cut off": [GOOD[:-2], b"abc"],
    "more than a header": [GOOD + b"x", b"abc"],
    "no text": [GOOD.replace(b"put", b"\xff\xff\xff"), b"abc"],
    "another type": [msgspec.msgpack.encode({"client": "x"})],
    "an unknown verb": [msgspec.msgpack.encode(["x", CLIENT_KEYS.token, 1, 1, ["steal", 5]])],
    "a negative uid": [msgspec.msgpack.encode(["x", CLIENT_KEYS.token, 1, 1, ["get", [-1]]])],
    "no samples": [msgspec.msgpack.encode(["x", CLIENT_KEYS.token, 1, 1, ["put", [1], [0], [3]]]), b"abc"],
    "too many fields": [msgspec.msgpack.encode(["x", CLIENT_KEYS.token, 1, 1, ["stats", 1]])],
    "a nameless client": [msgspec.msgpack.encode(["", CLIENT_KEYS.token, 1, 1, ["stats"]])],
    "a uid twice": [request(wire.Put((1, 1), (1, 1), (1, 1))), b"ab"],
    "fewer samples than uids": [request(wire.Put((1, 2), (1,), (1, 1))), b"ab"],
    "a missing payload": [GOOD],
    "a short payload": [GOOD, b"ab"],
    "a long payload": [GOOD, b"abcd"],
    "another payload": [GOOD, b"abc", b""],
    "a payload where none belongs": [request(wire.GetStats()), b"abc"],
    "an empty part": [request(wire.Part(0))],
    "a part of two frames": [request(wire.Part(0)), b"abc", b"def"],
    "a negative part": [msgspec.msgpack.encode(["x", CLIENT_KEYS.token, 1, 1, ["part", -1]]), b"abc"],
    "negative parts": [msgspec.msgpack.encode(["x", CLIENT_KEYS.token, 1, 1, ["stats"], -1])],
    "an endless number": [msgspec.msgpack.encode(["x", CLIENT_KEYS.token, 2**63, 1, ["stats"]])],
}


@pytest.fixture(scope="module")
def busy_site(tmp_path_factory):
    site = Site(f"ipc://{tmp_path_factory.mktemp('queue')}/private/queue")
    yield site
    site.stop()


async def answer_to(site, frames):
    with zmq.asyncio.Context() as context, context.socket(zmq.DEALER) as dealer:
        dial(dealer, site.endpoint, CLIENT_KEYS)
        await dealer.send_multipart(frames)
        async with asyncio.timeout(SOON):
            reply, _ = wire.decode_reply(await dealer.recv_multipart())
            return reply.body


@pytest.mark.parametrize("name", NONSENSE)
async def test_nonsense_is_answered_and_counted(busy_site, name):
    async with busy_site.client() as client:
        before = (await client.stats()).refused.get("malformed", 0)
        answer = await answer_to(busy_site, NONSENSE[name])
        assert isinstance(answer, wire.Refused) and answer.kind == "malformed"
        assert "unreadable message" in answer.why
        stats = await client.stats()
        assert stats.refused["malformed"] == before + 1 and stats.accepted == 0


async def test_a_group_that_is_too_large_is_refused(make_site, address, monkeypatch):
    site = make_site(address, max_group_bytes=200_000)
    async with site.client() as client:
        with pytest.raises(
            QueueRefused, match="a group of 200,004 bytes is above the limit of 200,000 bytes"
        ):
            await client.put(groups(1, 2, size=200_004), SOON)
        assert await client.put(groups(3, size=200_000), SOON) == [True]
        stats = await client.stats()
        assert stats.accepted == 1 and stats.refused == {"too_large": 1}
        monkeypatch.setattr(wire, "MAX_GROUP_BYTES", 500)
        with pytest.raises(ValueError, match="group 4 has 504 bytes, above the limit of 500 bytes"):
            await client.put(groups(4, size=504), SOON)


async def test_small_groups_share_large_frames_whatever_the_limit_of_one(make_site, address):
    site = make_site(address, max_group_bytes=1_000, capacity=100_000)
    async with site.client() as client:
        sent = groups(*range(4 * wire.FRAME_BYTES // 1_000), size=1_000)
        assert all(await client.put(sent, SOON))
        assert await client.get(range(len(sent)), SOON) == [frame for _, _, frame in sent]


# Addresses


def test_a_taken_port_is_named(make_site):
    site = make_site()
    port = site.address.rsplit(":", 1)[1]
    with pytest.raises(
        AddressError, match=f"port {port} is in use. Stop the process that holds it, or use port 0"
    ):
        Site(site.address)


@pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="this machine has no IPv6")
@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_a_host_may_have_an_address_of_ipv6(make_site, host):
    """As pods of clusters with IPv6 alone have. Without brackets is how a node says its own."""
    site = make_site(f"tcp://{host}:0")
    assert site.address.startswith("tcp://[::1]:")
    with site.blocking() as client:
        assert client.stats().clients == 1


def test_a_taken_path_is_named_and_a_stale_one_is_taken_over(tmp_path):
    address = f"ipc://{tmp_path}/private/queue"
    site = Site(address)
    with pytest.raises(AddressError, match="another process listens there"):
        Site(address)
    with site.blocking() as client:
        assert client.stats().clients == 1, "the first is not disturbed"
    site.stop()
    (tmp_path / "private" / "queue").touch()
    Site(address).stop()


def test_a_folder_that_others_can_enter_is_refused(tmp_path):
    (tmp_path / "open").mkdir(mode=0o755)
    with pytest.raises(AddressError, match=f"chmod 700 {tmp_path}/open"):
        Site(f"ipc://{tmp_path}/open/queue")


@pytest.mark.parametrize(
    "address, why",
    [
        ("ipc:///tmp/" + "x" * 120 + "/queue", "longer than 107 bytes"),
        ("tcp://192.0.2.1:0", "cannot listen on tcp://192.0.2.1:0: "),
        ("tcp://127.0.0.1", "cannot listen on tcp://127.0.0.1: "),
        ("smoke://signals", "cannot listen on smoke://signals: "),
    ],
)
def test_an_impossible_address_is_named(address, why):
    with pytest.raises(AddressError, match=why):
        Site(address)


def test_keys_do_not_show():
    server, client = new_keys()
    for keys in (server, client):
        for text in (repr(keys), str(keys), f"{[keys]}"):
            assert keys.secret not in text and keys.token not in text

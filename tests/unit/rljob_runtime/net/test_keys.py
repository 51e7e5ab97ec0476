"""Keys that every process of a job derives for itself from one file."""

import itertools
import pickle
import secrets
from pathlib import Path
from typing import get_args

import msgspec
import pytest
import zmq

import rljob_runtime
from rljob_runtime.net.auth import ClientKeys, Endpoint, Gate, ServerKeys, dial
from rljob_runtime.net.keys import KeyFile, KeyFileError, Keyring, Purpose, client_keys, server_keys

RUNTIME = Path(rljob_runtime.__file__).parent
PURPOSES: tuple[Purpose, ...] = get_args(Purpose)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "wire-key"
    path.write_text(secrets.token_hex(32) + "\n")
    return path


def secret_parts(keys: ServerKeys | ClientKeys) -> set[str]:
    return {keys.secret, keys.token}


def test_both_sides_derive_keys_that_fit(path: Path) -> None:
    key = KeyFile(str(path), "queue/1")
    server, client = key.server(), key.client()
    assert server.public == zmq.curve_public(server.secret.encode()).decode()
    assert server.clients == (client.public,)
    assert client.public == zmq.curve_public(client.secret.encode()).decode()
    assert server.token == client.token
    assert len({server.secret, client.secret, server.token}) == 3
    assert (key.server(), key.client()) == (server, client)


def test_known_answers(path: Path) -> None:
    """Pods of one job may run different releases of the runtime. The values are those of another
    implementation of HKDF-Expand."""
    path.write_text(bytes(range(32)).hex())
    derived = KeyFile(str(path), "queue/0011223344556677")
    assert derived.server().secret == "EDP[%2J<t!t#j5!Wl}6$XeiVYZQW?E:j]DWn7hNg"
    assert derived.client().secret == "-(v/</prhC2jL!h++0=JfYq6#hGaxLVrARZ3X9We"
    assert derived.client().public == "Py}E73mgD/wJDJFvq8Y&2:T>W7x+WVl>RebmpO*}"


def test_purposes_drivers_and_jobs_have_nothing_in_common(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "of-another-job"
    other.write_text(secrets.token_hex(32))
    drivers = [Keyring(path), Keyring(path), Keyring(other)]
    held = [client_keys(keyring.pair(purpose)[1]) for keyring in drivers for purpose in PURPOSES]
    for one, another in itertools.combinations(held, 2):
        assert secret_parts(one).isdisjoint(secret_parts(another))
        assert one.public != another.public


@pytest.mark.parametrize("purpose", PURPOSES)
def test_what_travels_in_a_cluster_holds_no_secret(path: Path, purpose: Purpose) -> None:
    serving, connecting = Keyring(path).pair(purpose)
    derived = secret_parts(server_keys(serving)) | secret_parts(client_keys(connecting))
    hidden = {path.read_text().strip()} | derived
    for sent in (serving, connecting):
        travels = [repr(sent).encode(), msgspec.msgpack.encode(sent), pickle.dumps(sent)]
        assert not any(secret.encode() in each for secret in hidden for each in travels)
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(sent), type=ServerKeys | KeyFile) == sent


def test_on_one_machine_keys_are_made_in_the_process() -> None:
    keyring = Keyring()
    serving, connecting = keyring.pair("queue")
    assert isinstance(serving, ServerKeys) and isinstance(connecting, ClientKeys)
    assert (server_keys(serving), client_keys(connecting)) == (serving, connecting)
    assert keyring.pair("queue")[0] != serving


def test_nothing_else_in_the_runtime_makes_keys() -> None:
    """What would be made elsewhere would have to travel."""
    makers = [path for path in RUNTIME.rglob("*.py") if "new_keys(" in path.read_text()]
    assert sorted(path.name for path in makers) == ["auth.py", "keys.py"]


@pytest.mark.parametrize(
    ("written", "words"),
    [
        (None, "cannot be read: No such file or directory"),
        ("", "is not 32 bytes as hexadecimal text: is it of the job's Secret?"),
        ("ab" * 31, "is not 32 bytes"),
        ("xy" * 32, "is not 32 bytes"),
    ],
    ids=["missing", "empty", "short", "no hexadecimal"],
)
def test_a_key_that_is_none_is_named_and_not_shown(tmp_path: Path, written: str | None, words: str) -> None:
    path = tmp_path / "wire-key"
    if written is not None:
        path.write_text(written)
    with pytest.raises(KeyFileError) as error:
        Keyring(path)
    assert str(path) in str(error.value) and words in str(error.value)
    assert not written or written not in str(error.value)


@pytest.mark.parametrize(("connects", "denied"), [("same", 0), ("other driver", 1)])
def test_curve_lets_in_who_has_the_same_file_and_purpose(path: Path, connects: str, denied: int) -> None:
    serving, connecting = Keyring(path).pair("queue")
    if connects != "same":
        _, connecting = Keyring(path).pair("queue")
    context = zmq.Context()
    keys = server_keys(serving)
    gate = Gate(context, "tcp://127.0.0.1:0", keys, 1000)
    client = context.socket(zmq.DEALER)
    monitor = client.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_HANDSHAKE_FAILED_AUTH)
    try:
        dial(client, Endpoint(gate.address, keys.public), client_keys(connecting))
        assert monitor.poll(10_000), "the handshake does not end"
        assert gate.denied == denied
    finally:
        client.disable_monitor()
        monitor.close()
        client.close()
        gate.close()
        context.term()

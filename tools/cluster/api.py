"""A small client of the API server for tests: requests, server-side apply, and waits that events wake."""

import base64
import http.client
import json
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlencode, urlsplit

import yaml

Object = dict[str, Any]
RETRY_SECONDS = 0.1
REQUEST_SECONDS = 120.0
"""For one request."""
WAIT_SECONDS = 300.0
"""For what a test waits for: an event ends the wait, and a machine that does much else is slow."""
BUSY = 429
"""The status of a server that did nothing of a request, as one that has just started and reads its data."""
NOT_NOW = {BUSY, 503, 504}
"""Statuses that pass by themselves."""
FIELD_MANAGER = "rljob-cluster"
"""By which the API server tells whose fields an object's are."""


class ApiError(Exception):
    """The API server refused a request. `status` is the HTTP code, `reason` Kubernetes' word for it."""

    def __init__(self, method: str, path: str, status: int, body: bytes):
        try:
            answer = json.loads(body)
        except ValueError:
            answer = {}
        self.status, self.reason = status, str(answer.get("reason", ""))
        self.message = str(answer.get("message") or body.decode(errors="replace")[:500])
        super().__init__(f"{method} {path}: {status} {self.reason}: {self.message}")


class Api:
    """Requests to one API server as one user. Safe for use by several threads.

    `check` is called when the server cannot be reached during a wait; it raises when waiting is in vain.
    """

    def __init__(self, url: str, token: str, authority: Path, check: Callable[[], None] = lambda: None):
        self.url, self.token, self._authority, self.check = url, token, authority, check
        self._tls: ssl.SSLContext | None = None

    @classmethod
    def of_kubeconfig(cls, file: Path, check: Callable[[], None] = lambda: None) -> Self:
        """The server and the user of a kubeconfig of `kubeconfig.write`; its certificate goes beside it."""
        document = yaml.safe_load(file.read_text())
        [cluster], [user] = document["clusters"], document["users"]
        authority = file.with_name(f"{file.name}.crt")
        authority.write_bytes(base64.b64decode(cluster["cluster"]["certificate-authority-data"]))
        return cls(cluster["cluster"]["server"], user["user"]["token"], authority, check)

    def request(self, method: str, path: str, body: Any = None, *, seconds: float = REQUEST_SECONDS) -> Any:
        """The answer's JSON, or its text if it is none. `body` is sent as JSON. `seconds`: for each wait for
        bytes; so long, too, a server that is busy is asked again. ApiError, OSError."""
        content = None if body is None else json.dumps(body).encode()
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        return self._send(method, path, content, kind, seconds)

    def apply(self, path: str, document: Object | bytes) -> Object:
        """Server-side apply, with force, of an object (or its YAML) to its path. ApiError, OSError."""
        content = document if isinstance(document, bytes) else json.dumps(document).encode()
        query = urlencode({"fieldManager": FIELD_MANAGER, "force": "true"})
        applied: Object = self._send(
            "PATCH", f"{path}?{query}", content, "application/apply-patch+yaml", REQUEST_SECONDS
        )
        return applied

    def items(self, path: str, query: Mapping[str, str] | None = None) -> list[Object]:
        """The objects of a collection."""
        found: list[Object] = self.request("GET", _with_query(path, query))["items"]
        return found

    def wait(
        self,
        path: str,
        done: Callable[[list[Object]], bool],
        what: str,
        *,
        seconds: float = WAIT_SECONDS,
        query: Mapping[str, str] | None = None,
    ) -> list[Object]:
        """Watches the collection at `path` until `done(its objects)`, and returns them then.

        A server that goes away or is busy meanwhile is waited for. It is looked at least once, however late
        that is. TimeoutError after `seconds`, naming `what` and what was there instead; ApiError.
        """
        deadline = time.monotonic() + seconds
        seen: list[Object] = []
        while True:
            try:
                for seen in self._snapshots(path, query or {}, deadline):
                    if done(seen):
                        return seen
                    # A collection that never stops changing would keep the loop inside.
                    if time.monotonic() > deadline:
                        break
            except ApiError as error:
                if error.status not in NOT_NOW:
                    raise
                time.sleep(RETRY_SECONDS)
            except (OSError, http.client.HTTPException):
                self.check()
                time.sleep(RETRY_SECONDS)  # a port that refuses connections gives no event
            if time.monotonic() > deadline:
                raise TimeoutError(f"after {seconds:g} s still not: {what}. {path} has {_summary(seen)}")

    def _snapshots(self, path: str, query: Mapping[str, str], deadline: float) -> Iterator[list[Object]]:
        """The collection now, and after each change of it until `deadline`."""
        listed = self.request("GET", _with_query(path, query))
        objects = {item["metadata"]["uid"]: item for item in listed["items"]}
        yield list(objects.values())
        if (left := deadline - time.monotonic()) <= 0:
            return
        # From the list's version on: no change between list and watch is missed.
        watch = {**query, "watch": "1", "resourceVersion": listed["metadata"]["resourceVersion"]}
        connection, answer = self._open("GET", _with_query(path, watch), None, "", left)
        try:
            while line := answer.readline():
                event = json.loads(line)
                if event["type"] == "ERROR":  # the version is too old: the caller lists again
                    return
                uid = event["object"]["metadata"]["uid"]
                if event["type"] == "DELETED":
                    objects.pop(uid, None)
                else:
                    objects[uid] = event["object"]
                yield list(objects.values())
        except TimeoutError:  # of the socket: nothing changed for so long
            return
        finally:
            connection.close()

    def _send(self, method: str, path: str, content: bytes | None, kind: str, seconds: float) -> Any:
        deadline = time.monotonic() + seconds
        while True:
            try:
                connection, answer = self._open(method, path, content, kind, seconds)
                break
            except ApiError as error:
                if error.status != BUSY or time.monotonic() > deadline:
                    raise
            time.sleep(RETRY_SECONDS)
        try:
            text = answer.read()
        finally:
            connection.close()
        if "json" in answer.headers.get("Content-Type", ""):
            return json.loads(text)
        return text.decode()

    def _open(
        self, method: str, path: str, content: bytes | None, kind: str, seconds: float
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        """An answer whose body is yet to be read. `seconds` bounds each wait for bytes."""
        if self._tls is None:  # the server writes its certificate only when it starts
            self._tls = ssl.create_default_context(cafile=str(self._authority))
        connection = http.client.HTTPSConnection(
            urlsplit(self.url).netloc, timeout=seconds, context=self._tls
        )
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": kind}
        try:
            connection.request(method, path, content, headers)
            answer = connection.getresponse()
            if answer.status >= 400:
                raise ApiError(method, path, answer.status, answer.read())
        except BaseException:
            connection.close()
            raise
        return connection, answer


def holds(item: Object, condition: str) -> bool:
    """Whether the object's status has the condition with status True."""
    conditions = item.get("status", {}).get("conditions") or []
    return any(each["type"] == condition and each["status"] == "True" for each in conditions)


def _with_query(path: str, query: Mapping[str, str] | None) -> str:
    return f"{path}?{urlencode(query)}" if query else path


def _summary(objects: list[Object]) -> str:
    shown = [
        f"{each['metadata']['name']} ({status.get('phase') or status.get('state') or 'no phase'})"
        for each in objects[:10]
        for status in [each.get("status", {})]
    ]
    more = f" and {len(objects) - len(shown)} more" if len(objects) > len(shown) else ""
    return (", ".join(shown) or "nothing") + more

"""What can go wrong between this process and the API server, as types.

Guarantees: every failed call raises one `ApiError`; its text says which call, what the server answered, and,
where there is something to do about it, what.
"""

from dataclasses import dataclass

import msgspec

from rljob_client.decoding import decode
from rljob_client.objects import Status

_LONGEST_BODY = 300
"""Bytes that are told of an answer which is not the API server's, such as a proxy's page."""
_BAD_APPLY = "failed to create typed patch object"
"""The API server answers 500 to a server-side apply with a field or type that is not in the schema."""
_BAD_WEBHOOK = "failed calling webhook"
"""In its message where an admission webhook, which must agree, does not answer as it should."""


@dataclass(frozen=True)
class Refusal:
    """What the server said about one request."""

    code: int
    """HTTP status."""
    reason: str = ""
    """The server's CamelCase word for it."""
    message: str = ""
    causes: tuple[tuple[str, str], ...] = ()
    """(reason, message) of each particular cause, such as the field manager that owns a field."""
    retry_after: float | None = None
    """Seconds after which the server wants to be asked again."""
    about_object: bool = False
    """The refusal names an object, as opposed to a path that the server does not know."""


class ApiError(RuntimeError):
    """A call to the API server did not get its result."""

    retryable = False
    """The same call may succeed when it is sent again."""
    without_effect = True
    """Where the call was a write: it is certain that nothing was written."""

    def __init__(self, call: str, message: str, refusal: Refusal | None = None) -> None:
        """`call`: verb and path, for people."""
        super().__init__(f"{call}: {message}")
        self.message = message
        self.refusal = refusal

    @property
    def retry_after(self) -> float | None:
        """Seconds for which the server wants to be left alone, where it said so."""
        return None if self.refusal is None else self.refusal.retry_after

    def caused_by(self, reason: str) -> bool:
        """Whether the server gave `reason` as its reason or as one of its causes."""
        refusal = self.refusal
        return refusal is not None and (
            refusal.reason == reason or any(cause == reason for cause, _ in refusal.causes)
        )


class Unreachable(ApiError):
    """No whole answer: not connected, cut off, or too late. Whether a write was carried out is unknown,
    unless `sent` is False."""

    retryable = True

    def __init__(self, call: str, message: str, *, sent: bool = True) -> None:
        """`sent`: the request may have reached the server."""
        super().__init__(call, message)
        self.sent = sent
        self.without_effect = not sent


class Unauthorized(ApiError):
    """The server does not know who this is: the token or certificate is wrong or has expired."""


class NoCredentials(Unauthorized):
    """Nothing was sent: there is nothing to say who this is, such as a token that cannot be read now."""


class Forbidden(ApiError):
    """Not allowed, by RBAC, an admission rule or a quota; `message` says which."""


class NotFound(ApiError):
    """There is no such object."""


class NoSuchResource(NotFound):
    """The server does not serve this type at all: its CustomResourceDefinition is not installed."""


class Conflict(ApiError):
    """The object is not what the call was meant for (resourceVersion, UID), or another field manager owns a
    field; `refusal.causes` names the managers."""


class AlreadyExists(ApiError):
    """An object of that name is there."""


class Gone(ApiError):
    """The resourceVersion or continue token is too old: list again."""


class Invalid(ApiError):
    """The object breaks its schema or rules; `message` says where. Sending it again will not help."""


class TooManyRequests(ApiError):
    """The server is overloaded and wants to be left alone for `retry_after` seconds."""

    retryable = True


class ServerError(ApiError):
    """The server failed, or gave up waiting. Whether a write was carried out is unknown."""

    retryable = True
    without_effect = False


class WebhookFailed(ServerError):
    """An admission webhook that must agree did not answer; `message` names it."""

    without_effect = True


_BY_CODE: dict[int, type[ApiError]] = {
    400: Invalid,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    408: ServerError,
    409: Conflict,
    410: Gone,
    413: Invalid,
    415: Invalid,
    422: Invalid,
    # A proxy's, to a request that came too early on a new connection.
    425: TooManyRequests,
    429: TooManyRequests,
}


def refusal_of(code: int, body: bytes, retry_after: str | None = None) -> Refusal:
    """What an answer that is no success says. `retry_after`: the header of that name."""
    try:
        status = decode(body, Status)
    except msgspec.DecodeError:
        status = Status()
    seconds = float(retry_after) if retry_after is not None and retry_after.isdecimal() else None
    # Not of the API server, but of a proxy before it: its words are all there is.
    if status.kind != "Status":
        text = " ".join(body[:_LONGEST_BODY].decode("utf-8", "replace").split())
        return Refusal(code, message=text or f"HTTP status {code}", retry_after=seconds)
    details = status.details
    if seconds is None and details is not None and details.retry_after_seconds:
        seconds = float(details.retry_after_seconds)
    return Refusal(
        code,
        status.reason,
        status.message or f"HTTP status {code}",
        tuple((cause.reason, cause.message) for cause in details.causes) if details else (),
        seconds,
        about_object=bool(details and details.name),
    )


def error_of(call: str, refusal: Refusal) -> ApiError:
    """The error for a refusal."""
    kind = _BY_CODE.get(refusal.code)
    if kind is None:
        kind = ServerError if refusal.code >= 500 else ApiError
    if refusal.code == 409 and refusal.reason == "AlreadyExists":
        kind = AlreadyExists
    if refusal.code == 410 or refusal.reason in ("Expired", "Gone"):
        kind = Gone
    if refusal.code == 500 and refusal.message.startswith(_BAD_APPLY):
        kind = Invalid
    if refusal.code == 500 and _BAD_WEBHOOK in refusal.message:
        kind = WebhookFailed
    # An object that is missing is named in the details; a path that is unknown has none.
    if refusal.code == 404 and not refusal.about_object:
        kind = NoSuchResource
    return kind(call, _advised(kind, refusal), refusal)


def _advised(kind: type[ApiError], refusal: Refusal) -> str:
    if kind is Unauthorized:
        return f"{refusal.message}; the token or certificate in use is wrong or has expired"
    if kind is NoSuchResource:
        return "the API server does not serve this type: install its CustomResourceDefinition"
    if kind is TooManyRequests and refusal.retry_after is not None:
        return f"{refusal.message} (asks for {refusal.retry_after:g} s)"
    return refusal.message

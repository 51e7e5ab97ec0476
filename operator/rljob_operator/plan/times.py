"""Times, as the status writes them and as people read them.

Guarantees: whole seconds in UTC; what people read of a fixed time never changes as time goes on.
"""

from datetime import UTC, datetime, timedelta


def stamp(time: datetime) -> str:
    """RFC 3339 in whole seconds, as Kubernetes writes times: rounded down."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def moment(text: str) -> datetime:
    """The time that a `stamp` names; ValueError where it is not RFC 3339."""
    return datetime.fromisoformat(text).astimezone(UTC)


def after(text: str, seconds: float) -> datetime:
    """The time `seconds` after a `stamp`; the last there is where that is beyond it."""
    try:
        return moment(text) + timedelta(seconds=seconds)
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)


def clock(time: datetime, since: datetime) -> str:
    """A time for people: the time of day, with the date where `since`, a fixed time too, is on another
    day."""
    return time.strftime("%H:%M UTC" if time.date() == since.date() else "%Y-%m-%d %H:%M UTC")

"""Who speaks to the API server, as a value, and the error where that cannot be told."""

import ssl
from dataclasses import dataclass, field
from math import inf


class CredentialsError(RuntimeError):
    """No usable credentials; the text says where they were looked for and what is allowed."""


@dataclass(frozen=True)
class Identity:
    """What is shown to the server. Two that show the same are equal."""

    header: str | None = field(default=None, repr=False)
    """Value of the header `Authorization`; None: there is no such header."""
    certificate: bytes | None = field(default=None, repr=False)
    """PEM of the client's certificate, which `tls` shows; None: there is none."""
    tls: ssl.SSLContext | None = field(default=None, repr=False, compare=False)
    """For all connections with this identity; None: that of `Credentials`."""
    lifetime: float = field(default=inf, compare=False)
    """Seconds for which it is valid from when it came; `inf`: until the server refuses it."""

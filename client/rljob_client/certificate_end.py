"""Until when a certificate is valid. Pure.

The ssl module tells it of a certificate that the other side has shown, never of one's own; so this reads the
few elements of DER that stand before it (RFC 5280, 4.1).
"""

import re
import ssl
from datetime import UTC, datetime

_PEM = re.compile("-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_SEQUENCE = 0x30
_VERSION = 0xA0
_UTC_TIME = 0x17
_GENERALIZED_TIME = 0x18
_LONG = 0x80
"""In the first byte of a length: the others say how many bytes the length has."""


def not_after(pem: bytes) -> datetime:
    """The end of the first certificate's validity, which in a chain is the client's own. Raises
    `ValueError`."""
    found = _PEM.search(pem.decode("ascii", "replace"))
    if found is None:
        raise ValueError("the client certificate is not PEM")
    try:
        return _not_after(ssl.PEM_cert_to_DER_cert(found.group()))
    except (ValueError, IndexError):
        raise ValueError("it cannot be read until when the client certificate is valid") from None


def _not_after(der: bytes) -> datetime:
    certificate = _inside(der, 0, _SEQUENCE)
    at = _inside(der, certificate, _SEQUENCE)
    if der[at] == _VERSION:
        at = _end(der, at)
    # Serial number, algorithm of the signature, issuer.
    for _ in range(3):
        at = _end(der, at)
    validity = _inside(der, at, _SEQUENCE)
    return _time(der, _end(der, validity))


def _time(der: bytes, at: int) -> datetime:
    start, end = _bounds(der, at)
    text = der[start:end].decode("ascii")
    if der[at] == _UTC_TIME:
        # Two digits of a year; RFC 5280 says which century.
        text = ("19" if text[:2] >= "50" else "20") + text
    elif der[at] != _GENERALIZED_TIME:
        raise ValueError("no time")
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def _inside(der: bytes, at: int, tag: int) -> int:
    """Where the content of the element begins."""
    if der[at] != tag:
        raise ValueError("another element")
    return _bounds(der, at)[0]


def _end(der: bytes, at: int) -> int:
    return _bounds(der, at)[1]


def _bounds(der: bytes, at: int) -> tuple[int, int]:
    """Where the content of the element begins and ends."""
    length, start = der[at + 1], at + 2
    if length & _LONG:
        start += length & ~_LONG
        length = int.from_bytes(der[at + 2 : start])
    return start, start + length

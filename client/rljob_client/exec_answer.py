"""What a kubeconfig's credential command answers, as the user of a kubeconfig.

Guarantees: whatever the command answers, it is either understood or refused with the field and what is
allowed; no error holds a secret; of a token and a certificate none is lost where there are both, as for
kubectl. Pure.
"""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

_LONGEST_TIME = 40
"""Characters of a time that is none, in an error."""


@dataclass(frozen=True)
class ExecAnswer:
    """Whom the command says that one is."""

    user: Mapping[str, str] = field(repr=False)
    """In the words of a kubeconfig: `token`, `client-certificate-data` and `client-key-data`, or all."""
    expires: datetime | None
    """Until when, aware; None: for as long as the server takes it."""


def read_credential(printed: bytes, api_version: str) -> ExecAnswer:
    """What the command printed: an ExecCredential of the version that it was asked for. Raises
    `ValueError`."""
    try:
        said = json.loads(printed)
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, Mapping):
        raise ValueError("its answer must be an ExecCredential, as JSON")
    for key in ("apiVersion", "kind", "status"):
        if key not in said:
            raise ValueError(f"{key} is missing in its answer")
    if said["apiVersion"] != api_version:
        raise ValueError(f"its answer's apiVersion must be {api_version}, as in the kubeconfig")
    return read_answer(said["status"])


def read_answer(status: Any) -> ExecAnswer:
    """The `status` of an ExecCredential. Raises `ValueError` for one that kubectl would not take either."""
    if not isinstance(status, Mapping):
        raise ValueError("status must be a mapping")
    token = _text(status, "token")
    if not all(" " <= character <= "~" for character in token):
        raise ValueError("status.token must be one line of ASCII characters")
    certificate, key = _text(status, "clientCertificateData"), _text(status, "clientKeyData")
    if not (token or certificate or key):
        raise ValueError("it must give token, or clientCertificateData and clientKeyData")
    if bool(certificate) != bool(key):
        missing = "clientKeyData" if certificate else "clientCertificateData"
        raise ValueError(f"status.{missing} is missing: certificate and key come together")
    user = {"token": token} if token else {}
    if certificate:
        user |= {"client-certificate-data": _base64(certificate), "client-key-data": _base64(key)}
    return ExecAnswer(user, _expires(status.get("expirationTimestamp")))


def _text(status: Mapping[str, Any], name: str) -> str:
    """A field; empty where there is none."""
    value = status.get(name)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"status.{name} must be text")
    return value or ""


def _expires(value: Any) -> datetime | None:
    if value is None:
        return None
    try:
        found = datetime.fromisoformat(value)
    except (ValueError, TypeError):
        found = None
    if found is None or found.tzinfo is None:
        shown = repr(value[:_LONGEST_TIME]) if isinstance(value, str) else "no text"
        form = "a time with a zone, such as 2026-01-31T12:00:00Z"
        raise ValueError(f"status.expirationTimestamp must be {form} (found {shown})")
    return found


def _base64(pem: str) -> str:
    # Half of a surrogate pair is no text that a file could hold; as a "?" it spoils the PEM, which is told.
    return base64.b64encode(pem.encode(errors="replace")).decode()

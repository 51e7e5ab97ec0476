"""Until when a certificate is valid."""

import ssl
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from rljob_client.certificate_end import not_after
from tests.support.operator.certificates import Authority

KEY = ec.generate_private_key(ec.SECP256R1())


def certificate(end, name="me"):
    who = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = x509.CertificateBuilder().subject_name(who).issuer_name(who).public_key(KEY.public_key())
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(end - timedelta(days=1))
    return builder.not_valid_after(end).sign(KEY, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


# The first of 2050 is where the form of a time changes.
@given(
    st.datetimes(datetime(1951, 1, 1), datetime(9999, 12, 31, 23, 59, 59)), st.sampled_from(["me", "m" * 60])
)
def test_the_end_of_any_certificate(end, name):
    end = end.replace(microsecond=0)
    assert not_after(certificate(end, name)) == end.replace(tzinfo=UTC)


def test_the_first_of_a_chain_with_text_around_it(tmp_path):
    ends = [datetime(2049, 12, 31, 23, 59, 59), datetime(2050, 1, 1)]
    chain = b"\n".join((b"Certificate:\n    Data: me", *map(certificate, ends)))
    assert not_after(chain) == ends[0].replace(tzinfo=UTC)
    assert not_after(Authority(tmp_path).certificate.read_bytes()) > datetime.now(UTC)


@pytest.mark.parametrize(
    ("pem", "says"),
    [
        (b"", "is not PEM"),
        (b"\xff", "is not PEM"),
        (b"-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----", "it cannot be read until when"),
        (b"-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----", "it cannot be read until when"),
    ],
)
def test_what_is_none(pem, says):
    with pytest.raises(ValueError, match=says):
        not_after(pem)


WHOLE = ssl.PEM_cert_to_DER_cert(certificate(datetime(2030, 1, 1)).decode())


@given(st.integers(0, len(WHOLE) - 1), st.integers(0, 255))
def test_one_that_is_broken_has_an_end_or_none(at, byte):
    """And never another error."""
    pem = ssl.DER_cert_to_PEM_cert(WHOLE[:at] + bytes([byte]) + WHOLE[at + 1 :]).encode()
    try:
        assert not_after(pem).tzinfo is UTC
    except ValueError as error:
        assert "client certificate" in str(error)

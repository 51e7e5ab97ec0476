"""A certificate by which a client shows who it is, signed by itself."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tools.cluster.kubeconfig import private_file

VALID = timedelta(days=30)


def write_client_certificate(certificate: Path, key: Path, user: str, group: str) -> None:
    """Writes both as PEM, the key with mode 0600, for `user`, a member of `group`. Valid from an hour ago
    (clocks differ) for 30 days."""
    private = ec.generate_private_key(ec.SECP256R1())
    # Kubernetes takes the common name for the user and the organization for a group.
    name = x509.Name(
        [
            x509.NameAttribute(NameOID.COMMON_NAME, user),
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, group),
        ]
    )
    now = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + VALID)
        # An authority, too: the kubelet checks the certificate against itself.
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .sign(private, hashes.SHA256())
    )
    secret = private.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    private_file(key, secret.decode())

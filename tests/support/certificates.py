"""Authorities that sign certificates, valid or invalid, and write them into files."""

from __future__ import annotations

import datetime
import itertools
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_NUMBERS = itertools.count(1)
_HERE = ("localhost", "127.0.0.1")


@dataclass(frozen=True)
class Files:
    """The files of a certificate and its key."""

    certificate: Path
    key: Path

    def replace(self, other: Files) -> None:
        """Replace the contents of both files by those of `other`."""
        for mine, its in ((self.certificate, other.certificate), (self.key, other.key)):
            new = mine.with_suffix(".new")
            new.touch(0o600)
            new.write_bytes(its.read_bytes())
            new.replace(mine)


class Authority:
    """An authority that signs certificates."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = _builder(self._name, self._name, self._key, days=2)
        signed = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        self.file = folder / f"{name}-{next(_NUMBERS)}.pem"
        self.file.write_bytes(_pem(signed.sign(self._key, hashes.SHA256())))

    def sign(self, name: str, *, names: tuple[str, ...] = _HERE, days: int = 1) -> Files:
        """A certificate valid for `days`; with a negative number it has expired."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = _builder(subject, self._name, key, days=days)
        alternatives: list[x509.GeneralName] = [_general(one) for one in names]
        if alternatives:
            builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        return self._written(name, builder.sign(self._key, hashes.SHA256()), key)

    def self_signed(self, name: str) -> Files:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = _builder(subject, subject, key, days=1)
        builder = builder.add_extension(x509.SubjectAlternativeName([_general(one) for one in _HERE]), critical=False)
        return self._written(name, builder.sign(key, hashes.SHA256()), key)

    def _written(self, name: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Files:
        number = next(_NUMBERS)
        files = Files(self._folder / f"{name}-{number}.pem", self._folder / f"{name}-{number}.key")
        files.certificate.write_bytes(_pem(certificate))
        files.key.touch(0o600)
        files.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return files


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, *, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.timezone.utc)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=3))
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)

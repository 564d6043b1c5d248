"""Signed versions: keys, signatures of records, and whether a trusted key signed a version.

Signatures are made with Ed25519 by the package `cryptography`, which is imported only if there is a key. A signature
covers a record without its trace and its count of publications: number, step, times, metrics, and the digests of all
tensors and of the graph's file. So the signature is valid only for exactly these bytes under this number.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paramsync.errors import SettingsError, UntrustedError
from paramsync.host import files
from paramsync.program.packages import install
from paramsync.rpc.read_again import ReadAgain, read_file, read_secret
from paramsync.version import Version

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

    from paramsync.checkpoint.reader import Bundle

_UNSIGNED = {"signature", "publications", "traceparent"}
SIGNED = tuple(field.name for field in fields(Version) if field.name not in _UNSIGNED)
"""The fields of a record that its signature covers.

A reader of an older release that lacks one of these fields computes other bytes, and so refuses the signature.
"""

# with this prefix, no signature of other data is valid for a record
_STATEMENT = b"paramsync: the record of a version, 1\n"
_EXPECTED_PRIVATE = "expected an Ed25519 private key in PEM, as paramsync keys new makes it"
_END = b"-----END PUBLIC KEY-----"
_ID = 16  # hexadecimal digits of a key's id


class Signer:
    """Signs versions with a private key. Safe to use from any thread."""

    def __init__(self, path: Path) -> None:
        """Raises SettingsError for a file that has no private key, or that other users may read."""
        _need_cryptography(f"signing key {path}")
        self._key = _private_key(path)
        self.id = key_id(self._key.public_key())

    def sign(self, version: Version) -> Version:
        """Return the version with a signature of its record, which must have the digests of tensors and graph."""
        read_back = Version.from_json(replace(version, signed_by=self.id, signature="").to_json())
        signature = self._key.sign(_statement(read_back))
        return replace(read_back, signature=base64.b64encode(signature).decode())


class TrustedKeys(ReadAgain["dict[str, Ed25519PublicKey]"]):
    """The public keys in some files, which may change while a server runs. Safe to use from any thread."""

    def __init__(self, paths: Sequence[Path]) -> None:
        """Raises SettingsError for a file without keys, or with a key that is cut or of another kind."""
        _need_cryptography("--trust")
        super().__init__(*paths)

    def check_record(self, version: Version) -> None:
        """Raise UntrustedError unless a trusted key signed the version's record.

        Call this before reading anything else of the version.
        """
        keys = self.value()
        where = f"version {version.number}"
        if not version.checksum:
            expected = "one that our publisher signed"
            raise UntrustedError(where, expected=expected, found="one without a record, as TensorFlow writes it")
        if not version.signature:
            expected = "a signature, by the publisher's signing_key= or --signing-key FILE"
            raise UntrustedError(where, expected=expected, found="none")
        key = keys.get(version.signed_by)
        if key is None:
            expected = f"one signed by a trusted key ({', '.join(keys)})"
            raise UntrustedError(where, expected=expected, found=f"one of key {files.shown(version.signed_by)}")
        if not _is_signed(version, key):
            expected = f"the record that key {version.signed_by} signed"
            raise UntrustedError(where, expected=expected, found="another: it was changed, or forged")
        if not version.graph:
            raise UntrustedError(where, expected="one whose graph is signed, too", found="one without a graph")

    def check_graph(self, version: Version, content: bytes, path: Path) -> None:
        """Raise UntrustedError if the digest of the graph file differs from the record, which was checked before."""
        if graph_digest(content) != version.graph_file:
            where, expected = f"version {version.number}", f"the graph that key {version.signed_by} signed"
            raise UntrustedError(where, expected=expected, found=f"another in {path.name}")

    def check_tensors(self, version: Version, bundle: Bundle, **how: Any) -> None:
        """Raise UntrustedError if the digest of the tensors differs from the record, which was checked before.

        For `how` see `Bundle.digest`.
        """
        if bundle.digest(**how) != version.digest:
            where, expected = f"version {version.number}", f"the tensors that key {version.signed_by} signed"
            raise UntrustedError(where, expected=expected, found="others")

    def _read(self) -> dict[str, Ed25519PublicKey]:
        """Return the keys by their ids."""
        return {key_id(key): key for path in self._paths for key in _public_keys(path)}


def of_saved_model(version: Version) -> UntrustedError:
    """Return the error for a SavedModel if only signed versions are served."""
    expected, found = "one that our publisher signed", "a SavedModel, which nobody can sign"
    return UntrustedError(f"version {version.number}", expected=expected, found=found)


def graph_digest(content: bytes) -> str:
    """Return the digest of a graph's file, as it is in a record."""
    return hashlib.sha256(content).hexdigest()


def create_keys(prefix: Path) -> tuple[Path, Path, str]:
    """Make PREFIX.key and PREFIX.pub, which must not exist. Returns both paths and the id of the key.

    Raises SettingsError, OSError.
    """
    _need_cryptography("keys")
    from cryptography.hazmat.primitives import serialization as how
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    private, public = (prefix.with_name(f"{prefix.name}{suffix}") for suffix in (".key", ".pub"))
    for path in (private, public):
        if os.path.lexists(path):
            raise SettingsError(f"{path}: expected no such file, found one: keys are never overwritten")
    key = Ed25519PrivateKey.generate()
    secret = key.private_bytes(how.Encoding.PEM, how.PrivateFormat.PKCS8, how.NoEncryption())
    shown = key.public_key().public_bytes(how.Encoding.PEM, how.PublicFormat.SubjectPublicKeyInfo)
    _create(private, secret, mode=0o600)
    try:
        _create(public, shown, mode=0o644)
    except BaseException:
        private.unlink()
        raise
    return private, public, key_id(key.public_key())


def key_id(key: Ed25519PublicKey) -> str:
    """Return the id of a key, which stands for the key in logs and records."""
    return hashlib.sha256(key.public_bytes_raw()).hexdigest()[:_ID]


def _create(path: Path, content: bytes, *, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def _statement(version: Version) -> bytes:
    """Return the bytes that a signature covers."""
    values: dict[str, Any] = {name: getattr(version, name) for name in SIGNED} | {"metrics": dict(version.metrics)}
    if version.serve_at is None:  # records of earlier releases lack the field, and their signatures stay valid
        del values["serve_at"]
    return _STATEMENT + json.dumps(values, sort_keys=True, separators=(",", ":")).encode()


def _is_signed(version: Version, key: Ed25519PublicKey) -> bool:
    from cryptography.exceptions import InvalidSignature

    with suppress(ValueError, InvalidSignature):  # ValueError: not base64
        key.verify(base64.b64decode(version.signature, validate=True), _statement(version))
        return True
    return False


def _private_key(path: Path) -> Ed25519PrivateKey:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    option = f"signing key {path}"
    content = read_secret("signing key", path)
    try:
        key = load_pem_private_key(content, None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:  # TypeError: the key is encrypted
        raise SettingsError(f"{option}: {_EXPECTED_PRIVATE}, found {_problem(error)}") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise SettingsError(f"{option}: {_EXPECTED_PRIVATE}, found another kind of key")
    return key


def _public_keys(path: Path) -> list[Ed25519PublicKey]:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    option, expected = f"--trust {path}", "expected Ed25519 public keys in PEM, as paramsync keys new makes them"
    content = read_file("--trust", path)
    keys = []
    *blocks, rest = content.split(_END)
    for block in blocks:
        try:
            key = load_pem_public_key(block.strip() + b"\n" + _END + b"\n")
        except (ValueError, UnsupportedAlgorithm) as error:
            raise SettingsError(f"{option}: {expected}, found {_problem(error)}") from error
        if not isinstance(key, Ed25519PublicKey):
            raise SettingsError(f"{option}: {expected}, found another kind of key")
        keys.append(key)
    if not keys or b"-----BEGIN" in rest:
        raise SettingsError(f"{option}: {expected}, found {'one that is cut' if keys else 'none'}")
    return keys


def _problem(error: Exception) -> str:
    return files.shown(str(error).partition("\n")[0].partition(". ")[0])


def _need_cryptography(what: str) -> None:
    try:
        import cryptography  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "cryptography":
            raise
        text = f"{what} needs cryptography, which is not installed: {install('signing')}"
        raise SettingsError(text) from error

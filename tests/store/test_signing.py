"""A version is trusted if a trusted key signed its record, its graph and all its tensors, and never otherwise."""

from __future__ import annotations

import base64
import json
import os
import stat
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from paramsync.checkpoint.reader import Bundle
from paramsync.checkpoint.tensor_bytes import PORTION
from paramsync.dtypes import Array
from paramsync.errors import CorruptCheckpointError, SettingsError, UntrustedError
from paramsync.store.commit import StoreWriter
from paramsync.store.signing import SIGNED, Signer, TrustedKeys, create_keys
from paramsync.store.store import Store
from paramsync.tensorbundle import index
from paramsync.tensorbundle.index import Index
from paramsync.version import Version
from tests.support.keys import Keys, keys, renumbered
from tests.support.written import tensors, version

GRAPH = "ab" * 16


@pytest.fixture
def pair(tmp_path: Path) -> Keys:
    return keys(tmp_path)


def signed(
    path: Path,
    key: Path | None,
    *numbers: int,
    of: Callable[[float], dict[str, Array]] = tensors,
    serve_after: float | None = None,
) -> list[Version]:
    with StoreWriter(path, signing_key=key) as writer:
        writer.add_graph(GRAPH, b"graph")
        return [writer.commit(version(number, graph=GRAPH), of(number), serve_after=serve_after) for number in numbers]


def check(trust: TrustedKeys, path: Path, number: int) -> Version:
    """As those who serve a version do: the record, the graph, the tensors."""
    store = Store(path)
    found = store.find(number)
    trust.check_record(found)
    graph = store.graph_file(found.graph)
    trust.check_graph(found, graph.read_bytes(), graph)
    trust.check_tensors(found, store.open(found, frozen=True))
    return found


def test_a_signed_version_is_trusted_and_its_values_are_those_of_the_store(tmp_path: Path, pair: Keys) -> None:
    published = signed(tmp_path / "store", pair.private, 1, 2)
    found = check(TrustedKeys([pair.public]), tmp_path / "store", 2)
    assert found == published[1]
    assert (found.signed_by, len(found.digest), len(found.graph_file)) == (pair.id, 64, 64)
    np.testing.assert_array_equal(Store(tmp_path / "store").open(found).array("kernel"), tensors(2)["kernel"])


def test_the_signed_fields_change_only_on_purpose() -> None:
    # another signed field makes the signatures of every earlier release invalid
    signed_fields = """
        number step prefix graph step_done_at snapshot_at committed_at bytes bytes_written checksum finite precision
        seal digest graph_file signed_by metrics serve_at
    """
    assert {*SIGNED} == {*signed_fields.split()}
    assert {field.name for field in fields(Version)} - {*SIGNED} == {"signature", "publications", "traceparent"}


@pytest.mark.parametrize("name", sorted({*SIGNED} - {"signed_by"}))
def test_a_record_with_another_value_is_not_trusted(tmp_path: Path, pair: Keys, name: str) -> None:
    (found,) = signed(tmp_path / "store", pair.private, 1, serve_after=2.0)
    value = getattr(found, name)
    other: Any = {"loss": 1.0} if name == "metrics" else not value if name == "finite" else value + type(value)("1")
    with pytest.raises(UntrustedError, match=f"the record that key {pair.id} signed, found another"):
        TrustedKeys([pair.public]).check_record(replace(found, **{name: other}))


def test_a_record_without_a_moment_is_signed_as_by_earlier_releases(tmp_path: Path, pair: Keys) -> None:
    (found,) = signed(tmp_path / "store", pair.private, 1)
    values = {name: getattr(found, name) for name in SIGNED if name != "serve_at"} | {"metrics": dict(found.metrics)}
    statement = json.dumps(values, sort_keys=True, separators=(",", ":")).encode()
    key = serialization.load_pem_public_key(pair.public.read_bytes())
    assert isinstance(key, Ed25519PublicKey)
    key.verify(base64.b64decode(found.signature), b"paramsync: the record of a version, 1\n" + statement)
    with pytest.raises(UntrustedError, match="changed, or forged"):
        TrustedKeys([pair.public]).check_record(replace(found, serve_at=5.0))


@pytest.mark.parametrize("signature", ["", "AAAA", "no base64!", "A" * 86 + "=="])
def test_other_signatures_are_not_trusted(tmp_path: Path, pair: Keys, signature: str) -> None:
    (found,) = signed(tmp_path / "store", pair.private, 1)
    with pytest.raises(UntrustedError, match="expected a signature" if not signature else "it was changed, or forged"):
        TrustedKeys([pair.public]).check_record(replace(found, signature=signature))


def test_a_version_of_an_unknown_key_names_it_and_those_that_are_trusted(tmp_path: Path, pair: Keys) -> None:
    other = keys(tmp_path, "other")
    signed(tmp_path / "store", other.private, 1)
    text = (
        rf"version 1 is not trusted: expected one signed by a trusted key \({pair.id}\), found one of key '{other.id}'"
    )
    with pytest.raises(UntrustedError, match=text):
        check(TrustedKeys([pair.public]), tmp_path / "store", 1)


def test_a_version_replayed_under_another_number_is_refused(tmp_path: Path, pair: Keys) -> None:
    store = tmp_path / "store"
    (found,) = signed(store, pair.private, 1)
    renumbered(store, found, 5)
    with pytest.raises(UntrustedError, match="changed, or forged"):
        check(TrustedKeys([pair.public]), store, 5)


def test_other_bytes_with_the_same_checksum_are_not_trusted(tmp_path: Path, pair: Keys) -> None:
    """A forger makes the checksum come out right: the last four bytes of a tensor are enough for that."""
    store = tmp_path / "store"
    signed(store, pair.private, 1, of=lambda value: {"w": np.arange(64, dtype=np.uint32)})
    (data,) = store.glob("*.data-*")
    entry = Store(store).open(Store(store).find(1)).entries["w"]
    content = np.frombuffer(data.read_bytes(), np.uint8).copy()
    # crc32c is linear: its polynomial, with a leading one, added anywhere changes no checksum
    content[entry.offset : entry.offset + 5] ^= np.frombuffer(_multiple_of_the_polynomial(), np.uint8)
    data.write_bytes(content.tobytes())
    Store(store).open(Store(store).find(1)).verify(["w"])
    with pytest.raises(UntrustedError, match=f"the tensors that key {pair.id} signed, found others"):
        check(TrustedKeys([pair.public]), store, 1)


def _multiple_of_the_polynomial() -> bytes:
    """Five bytes that change no crc32c: x ** 32 and the rest of the polynomial, the first bit of a byte its lowest."""
    polynomial = 1 << 32 | 0x1EDC6F41
    bits = [polynomial >> 32 - at & 1 for at in range(33)]
    return bytes(sum(bit << at for at, bit in enumerate(bits[start : start + 8])) for start in range(0, 40, 8))


def test_another_graph_is_not_trusted(tmp_path: Path, pair: Keys) -> None:
    signed(tmp_path / "store", pair.private, 1)
    Store(tmp_path / "store").graph_file(GRAPH).write_bytes(b"grapH")
    with pytest.raises(UntrustedError, match=f"the graph that key {pair.id} signed, found another in graph-{GRAPH}.pb"):
        check(TrustedKeys([pair.public]), tmp_path / "store", 1)


def test_what_was_written_without_a_record_or_a_graph_is_not_trusted(tmp_path: Path, pair: Keys) -> None:
    trust = TrustedKeys([pair.public])
    with pytest.raises(UntrustedError, match="one without a record, as TensorFlow writes it"):
        trust.check_record(version(1))
    with StoreWriter(tmp_path / "store", signing_key=pair.private) as writer:
        without = writer.commit(version(1), tensors(1))
    with pytest.raises(UntrustedError, match="found one without a graph"):
        trust.check_record(without)


def test_a_key_that_is_added_to_the_file_is_trusted_from_then_on_and_one_taken_away_no_more(
    tmp_path: Path, pair: Keys
) -> None:
    other, both = keys(tmp_path, "other"), tmp_path / "both.pub"
    both.write_bytes(pair.public.read_bytes())
    trust = TrustedKeys([both])
    signed(tmp_path / "store", pair.private, 1)
    signed(tmp_path / "store", other.private, 2)
    with pytest.raises(UntrustedError):
        check(trust, tmp_path / "store", 2)
    both.write_bytes(b"# the new key\n" + other.public.read_bytes() + b"\n# the old one\n" + pair.public.read_bytes())
    check(trust, tmp_path / "store", 1)
    check(trust, tmp_path / "store", 2)
    both.write_bytes(other.public.read_bytes())
    check(TrustedKeys([pair.public, other.public]), tmp_path / "store", 1)
    with pytest.raises(UntrustedError):
        check(trust, tmp_path / "store", 1)


def test_digests_are_the_same_wherever_tensors_lie_and_however_they_came_there(tmp_path: Path, pair: Keys) -> None:
    """Linked from the version before, moved, written again, and larger than what is hashed at once."""
    generator = np.random.default_rng(1)
    large = generator.integers(0, 256, PORTION + 5, np.uint8)
    frozen = generator.standard_normal((300, 1000))

    def of(value: float) -> dict[str, Array]:
        words = np.array([b"a", b"bc" * int(value)], object)
        return {"large": large, "frozen": frozen, "small": np.full(3, value), "none": np.ones((0, 2)), "words": words}

    made = signed(tmp_path / "store", pair.private, 1, 2, 3, 4, of=of)
    (alone,) = signed(tmp_path / "alone", pair.private, 4, of=of)
    assert made[-1].bytes_written < frozen.nbytes
    assert made[-1].digest == alone.digest
    assert len({one.digest for one in made}) == 4
    check(TrustedKeys([pair.public]), tmp_path / "store", 4)


def test_a_sealed_copy_stays_as_it_was_when_the_file_is_overwritten(tmp_path: Path, pair: Keys) -> None:
    (found,) = signed(tmp_path / "store", pair.private, 1)
    bundle = Store(tmp_path / "store").open(found, frozen=True)
    (data,) = (tmp_path / "store").glob("*.data-*")
    with data.open("r+b") as file:
        file.write(b"\1" * data.stat().st_size)
    os.truncate(data, 0)
    trust = TrustedKeys([pair.public])
    trust.check_tensors(found, bundle)
    np.testing.assert_array_equal(bundle.array("kernel"), tensors(1)["kernel"])
    loan = bundle.lend(["kernel"], [])
    (lent,) = loan.descriptors
    with pytest.raises(PermissionError):
        os.pwrite(lent, b"x", 0)
    with pytest.raises(PermissionError):
        os.ftruncate(lent, 0)
    os.close(lent)


def test_a_huge_file_in_place_of_a_signed_one_is_not_copied(tmp_path: Path, pair: Keys) -> None:
    """Sparse, it takes nothing on its disk, and would take all memory here."""
    store = tmp_path / "store"
    (found,) = signed(store, pair.private, 1, of=lambda value: {"w": np.ones(4), "words": np.array([b"yes"], object)})
    entries = Store(store).open(found).entries
    huge = replace(entries["words"], offset=1 << 20, size=1 << 39)
    (data,) = store.glob("*.data-*")
    os.truncate(data, 1 << 40)
    listing = store / "ckpt-1.index"
    content = listing.read_bytes()
    listing.write_bytes(index.encode(Index(1, {**entries, "words": huge})))
    with pytest.raises(CorruptCheckpointError, match=f"tensors of at most {found.bytes} bytes"):
        check(TrustedKeys([pair.public]), store, 1)
    listing.write_bytes(content)
    bundle = Store(store).open(found, frozen=True)
    assert os.fstat(bundle.lend(["w"], []).descriptors[0]).st_size < 1 << 12
    check(TrustedKeys([pair.public]), store, 1)
    os.truncate(data, 1)
    with pytest.raises(CorruptCheckpointError, match=r"expected a data file of .* bytes, found one of 1 bytes"):
        check(TrustedKeys([pair.public]), store, 1)


def test_versions_that_share_a_file_share_its_copy_as_far_as_it_goes(tmp_path: Path, pair: Keys) -> None:
    """The newer one needs less of the file: its copy is not enough for the older one."""
    older, newer = signed(tmp_path / "store", pair.private, 1, 2)
    store, trust = Store(tmp_path / "store"), TrustedKeys([pair.public])

    def opened(wanted: Version, *others: Bundle) -> Bundle:
        mapped = {stamp: file for other in others for stamp, file in other.mapped_files.items()}
        bundle = store.open(wanted, frozen=True, shared=mapped)
        trust.check_tensors(wanted, bundle)
        return bundle

    whole = opened(older)
    part = opened(newer)
    np.testing.assert_array_equal(opened(older, part).array("kernel"), tensors(1)["kernel"])
    mine, theirs = (one.array("frozen").__array_interface__["data"][0] for one in (opened(newer, whole), whole))
    assert mine == theirs


def test_what_another_wrote_into_a_file_while_it_was_published_is_not_signed(
    tmp_path: Path, pair: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The digest is that of what training gave, not of what is found in the file."""
    from paramsync.checkpoint import tensor_bytes

    write = tensor_bytes.write

    def write_and_change(file: Any, *arguments: Any) -> Any:
        findings = write(file, *arguments)
        file.content[:4] ^= 0xFF
        return findings

    monkeypatch.setattr(tensor_bytes, "write", write_and_change)
    signed(tmp_path / "store", pair.private, 1)
    with pytest.raises(UntrustedError, match="found others"):
        check(TrustedKeys([pair.public]), tmp_path / "store", 1)


def test_keys_are_made_with_the_right_modes_and_never_overwritten(tmp_path: Path) -> None:
    private, public, _ = create_keys(tmp_path / "digits")
    assert [path.name for path in (private, public)] == ["digits.key", "digits.pub"]
    assert [stat.S_IMODE(path.stat().st_mode) for path in (private, public)] == [0o600, 0o644]
    before = private.read_bytes()
    with pytest.raises(SettingsError, match=r"digits\.key: expected no such file"):
        create_keys(tmp_path / "digits")
    assert private.read_bytes() == before
    private.unlink()
    with pytest.raises(SettingsError, match=r"digits\.pub: expected no such file"):
        create_keys(tmp_path / "digits")
    assert not private.exists()


def other_kind(*, private: bool) -> bytes:
    key = generate_private_key(SECP256R1())
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    if private:
        return key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)
    return key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"", "found none"),
        (b"anything", "found none"),
        (b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", "in PEM, .* found "),
        (other_kind(private=False), "found another kind of key"),
        (None, "cannot be read: No such file or directory"),
    ],
)
def test_files_of_public_keys_that_are_none_are_refused(tmp_path: Path, content: bytes | None, found: str) -> None:
    path = tmp_path / "keys.pub"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SettingsError, match=f"--trust {path}: .*{found}"):
        TrustedKeys([path])


def test_a_cut_file_of_public_keys_is_refused_whole(tmp_path: Path, pair: Keys) -> None:
    pair.public.write_bytes(pair.public.read_bytes() + b"-----BEGIN PUBLIC KEY-----\nMCow")
    with pytest.raises(SettingsError, match="found one that is cut"):
        TrustedKeys([pair.public])


@pytest.mark.parametrize("content", [b"", b"anything", other_kind(private=True), None])
def test_files_of_private_keys_that_are_none_are_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "signs.key"
    if content is not None:
        path.write_bytes(content)
        path.chmod(0o600)
    with pytest.raises(SettingsError, match=f"signing key {path}: "):
        Signer(path)

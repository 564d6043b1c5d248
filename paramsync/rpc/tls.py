"""TLS: a server's certificate, read again when its files change; a client's checks, and why a check fails."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from paramsync.errors import SettingsError
from paramsync.rpc.read_again import ReadAgain, read_file, read_secret
from paramsync.rpc.settings import FLAGS, OptionNames

if TYPE_CHECKING:
    import grpc  # imported in functions: gRPC reads the environment when it is imported

_LOOK_SECONDS = 2.0  # timeout of a handshake that is made only to learn why other handshakes fail
_REMEDIES = {  # X509_V_ERR_CERT_HAS_EXPIRED, X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH
    10: "give it a new one",
    **dict.fromkeys((62, 64), "call it by a name that stands in its certificate"),
}


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The files of a server that speaks TLS, in PEM; they are read again when they change.

    Args:
        certificate: The server's certificate, followed by its chain of issuers.
        key: The key of the certificate, without a password.
        client_ca: The CA of callers' certificates. If it is given, gRPC callers must show a certificate, and HTTP
            callers must show a certificate, or one of the configured tokens, to change something.
        options: The names of these files in errors.
    """

    certificate: str | Path
    key: str | Path
    client_ca: str | Path | None = None
    options: OptionNames = FLAGS


def tls_files(
    certificate: Path | None, key: Path | None, client_ca: Path | None, *, options: OptionNames = FLAGS
) -> TlsFiles | None:
    """Return the files that three options of a server name. Raises SettingsError if they cannot be used."""
    both = f"{options.certificate} FILE and {options.key} FILE"
    if certificate is None and key is None:
        if client_ca is not None:
            raise SettingsError(f"{options.client_ca}: expected {both} with it, found neither")
        return None
    if certificate is None or key is None:
        raise SettingsError(f"expected {both} together, found one of them")
    files = TlsFiles(certificate, key, client_ca, options)
    ServerTls(files)
    return files


class _Loaded(NamedTuple):
    certificate: bytes
    key: bytes
    client_ca: bytes | None
    http: ssl.SSLContext
    http2: ssl.SSLContext


class ServerTls(ReadAgain[_Loaded]):
    """The certificate of all ports of a process. Safe to use from any thread."""

    def __init__(self, files: TlsFiles) -> None:
        """Raises SettingsError if the files cannot be used."""
        self._options = files.options
        self._certificate, self._key = Path(files.certificate), Path(files.key)
        self._client_ca = None if files.client_ca is None else Path(files.client_ca)
        super().__init__(self._certificate, self._key, *([] if self._client_ca is None else [self._client_ca]))

    def grpc_credentials(self) -> grpc.ServerCredentials:
        """Return the credentials for one port. At each handshake gRPC calls `changed` for a new certificate, if any."""
        import grpc

        given = self.value()

        def changed() -> Any:
            nonlocal given
            if (now := self.value()) is given:
                return None
            given = now
            return _grpc_configuration(now)

        return grpc.dynamic_ssl_server_credentials(_grpc_configuration(given), changed, given.client_ca is not None)

    def http_context(self) -> ssl.SSLContext:
        """Return the context of one HTTP port. A caller may show a certificate."""
        return self._exchanged(lambda loaded: loaded.http)

    def http2_context(self) -> ssl.SSLContext:
        """Return the context of one port of our own gRPC server.

        With `client_ca`, callers have to show certificates.
        """
        return self._exchanged(lambda loaded: loaded.http2)

    def _exchanged(self, of: Callable[[_Loaded], ssl.SSLContext]) -> ssl.SSLContext:
        first = of(self.value())

        def exchange(connection: ssl.SSLObject | ssl.SSLSocket, name: str | None, _: ssl.SSLContext) -> None:
            connection.context = of(self.value())  # called before a certificate is sent

        first.sni_callback = exchange
        return first

    def _read(self) -> _Loaded:
        options = self._options
        certificate, key = read_file(options.certificate, self._certificate), read_secret(options.key, self._key)
        client_ca = None if self._client_ca is None else read_file(options.client_ca, self._client_ca)
        http = self._context("http/1.1", client_ca, ssl.CERT_OPTIONAL)
        http2 = self._context("h2", client_ca, ssl.CERT_REQUIRED)
        return _Loaded(certificate, key, client_ca, http, http2)

    def _context(self, protocol: str, client_ca: bytes | None, verifies: ssl.VerifyMode) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.set_alpn_protocols([protocol])
        _load_chain(context, self._certificate, self._key, self._options)
        if self._client_ca is not None and client_ca is not None:
            _load_ca(context, self._options.client_ca, self._client_ca, client_ca)
            context.verify_mode = verifies
            # a resumed session shows no certificate, so callers of a removed CA would still be accepted
            context.options |= ssl.OP_NO_TICKET
            context.num_tickets = 0
        return context


def _grpc_configuration(loaded: _Loaded) -> Any:
    import grpc

    return grpc.ssl_server_certificate_configuration([(loaded.key, loaded.certificate)], loaded.client_ca)


class ClientTls:
    """The CA that a client trusts, and the certificate that it shows, if any."""

    def __init__(
        self, ca: Path, certificate: Path | None = None, key: Path | None = None, *, option: str = "--tls-ca"
    ) -> None:
        """`ca` is the file, named by `option`, of the CAs that sign servers' certificates.

        Raises SettingsError if the files cannot be used.
        """
        if (certificate is None) != (key is None):
            raise SettingsError("expected --tls-cert FILE and --tls-key FILE together, found one of them")
        roots = read_file(option, ca)
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        """The context for connections that are not gRPC channels."""
        _load_ca(self.context, option, ca, roots)
        self.context.set_alpn_protocols(["h2", "http/1.1"])
        shown = None
        if certificate is not None and key is not None:
            shown = read_secret("--tls-key", key), read_file("--tls-cert", certificate)
            _load_chain(self.context, certificate, key)
        self._shows = shown is not None
        self._credentials = roots, *(shown or ())

    @property
    def credentials(self) -> grpc.ChannelCredentials:
        """The credentials for a gRPC channel."""
        import grpc

        return grpc.ssl_channel_credentials(*self._credentials)

    def explain(self, address: str, name: str = "") -> str | None:
        """Return why the handshake with the server at this address fails.

        Returns None if it does not fail, or if no connection can be made. `name` is the name in the server's
        certificate, if it differs from the host in the address.
        """
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        try:
            if _shake(self.context, host, int(port), name or host):
                return None
            reason = "it hangs up"
        except ssl.SSLCertVerificationError as error:
            remedy = _REMEDIES.get(error.verify_code, "name who signed it with --tls-ca FILE")
            return f"its certificate is not taken: {error.verify_message.rstrip('.')}; {remedy}"
        except ssl.SSLError as error:
            reason = (error.reason or str(error)).replace("_", " ").lower()
            if "alert" not in reason:
                return "it does not speak TLS: leave --tls-ca and PARAMSYNC_TLS_CA out"
        except OSError:
            return None
        if self._shows:
            return f"it does not take the certificate of this command ({reason}): --tls-cert FILE names another one"
        return "it wants a certificate of its callers: show one with --tls-cert FILE and --tls-key FILE"


def advise_tls(address: str) -> str | None:
    """Return advice about a server that was called in plaintext but speaks TLS; None if it does not or is away."""
    host, _, port = address.rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing but the handshake is sent
    context.set_alpn_protocols(["h2", "http/1.1"])
    try:
        _shake(context, host.strip("[]"), int(port), host.strip("[]"))
    except OSError as error:
        if not (isinstance(error, ssl.SSLError) and "ALERT" in (error.reason or "")):
            return None
    return "it speaks TLS: name who signed its certificate with --tls-ca FILE"


def _shake(context: ssl.SSLContext, host: str, port: int, name: str) -> bool:
    """Return whether the connection stays open after the handshake. Raises OSError.

    With TLS 1.3, a server that refuses the caller's certificate closes the connection only after the handshake.
    """
    with (
        socket.create_connection((host, port), timeout=_LOOK_SECONDS) as plain,
        context.wrap_socket(plain, server_hostname=name) as connection,
    ):
        try:
            return connection.recv(1) != b""
        except (ConnectionError, ssl.SSLEOFError):
            return False
        except TimeoutError:
            return True


def _load_chain(context: ssl.SSLContext, certificate: Path, key: Path, options: OptionNames = FLAGS) -> None:
    try:
        # an empty password, so that OpenSSL does not prompt
        context.load_cert_chain(certificate, key, password=lambda: "")
    except (OSError, ValueError) as error:
        reason = (getattr(error, "reason", None) or str(error)).replace("_", " ").lower()
        raise SettingsError(
            f"{options.certificate} {certificate} and {options.key} {key}: expected a certificate and its key, in PEM"
            f" and without a password, found that they cannot be used: {reason}"
        ) from error


def _load_ca(context: ssl.SSLContext, option: str, path: Path, content: bytes) -> None:
    try:
        context.load_verify_locations(cadata=content.decode())
    except (OSError, ValueError) as error:
        raise SettingsError(f"{option} {path}: expected certificates in PEM, found none that can be used") from error

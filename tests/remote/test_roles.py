"""The account of a pod has no keys: a token in a file buys keys for a while, as on EKS."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from paramsync.remote import fleet
from paramsync.remote.bucket import Bucket
from paramsync.remote.upload import Upload
from tests.support.buckets import SeaweedFs
from tests.support.certificates import Authority
from tests.support.mirrors import Pair

ROLE = "arn:aws:iam::111122223333:role/paramsync"
ANSWER = b"""\
<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleWithWebIdentityResult>
<Credentials><AccessKeyId>any</AccessKeyId><SecretAccessKey>anything</SecretAccessKey><SessionToken>session</SessionToken>
<Expiration>2100-01-01T00:00:00Z</Expiration></Credentials>
</AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>
"""


class Seller(ThreadingHTTPServer):
    """Answers as AWS's Security Token Service does, and notes what it was shown."""

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        files = Authority(folder).sign("sts")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(files.certificate, files.key)
        self.socket = context.wrap_socket(self.socket, server_side=True)
        self.shown: list[dict[str, list[str]]] = []


class _Handler(BaseHTTPRequestHandler):
    server: Seller

    def do_POST(self) -> None:
        self.server.shown.append(parse_qs(urlsplit(self.path).query))
        self.send_response(200)
        self.send_header("Content-Length", str(len(ANSWER)))
        self.end_headers()
        self.wfile.write(ANSWER)

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def seller(tmp_path: Path) -> Iterator[Seller]:
    with Seller(tmp_path) as seller:
        threading.Thread(target=seller.serve_forever).start()
        yield seller
        seller.shutdown()


def test_the_token_of_a_service_account_is_enough(
    seller: Seller, pair: Pair, seaweedfs: SeaweedFs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("the token of the pod")
    variables = dict(seaweedfs.environment)
    del variables["AWS_ACCESS_KEY_ID"], variables["AWS_SECRET_ACCESS_KEY"]
    variables |= {
        "AWS_ROLE_ARN": ROLE,  # these two Kubernetes sets for a service account with a role
        "AWS_WEB_IDENTITY_TOKEN_FILE": str(tmp_path / "token"),
        "AWS_ENDPOINT_URL_STS": f"https://localhost:{seller.server_port}",
        "AWS_ALLOW_INVALID_CERTIFICATES": "true",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    address = f"s3://{seaweedfs.bucket}/roles"
    pair.publish(1)
    assert Upload(pair.source, Bucket(address), keep=3, stop=pair.stop).run_once() is not None
    assert fleet.choose(address, fleet.pin(address, 1)).pinned == 1
    for shown in seller.shown:
        assert (shown["RoleArn"], shown["WebIdentityToken"]) == ([ROLE], ["the token of the pod"])
    assert seller.shown

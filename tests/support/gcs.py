"""A stand-in for Google Cloud Storage: its XML interface with generations, and 429 for an object written too often.

Emulators that packages have ignore the condition x-goog-if-generation-match, or speak only the JSON interface.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from tests.support.http_servers import HttpServer

BUCKET = "paramsync"
_DATE = "Fri, 27 Nov 2026 20:00:00 GMT"
_RANGE = re.compile(r"bytes=(\d+)-(\d+)")
_PART = re.compile(r"<PartNumber>(\d+)</PartNumber>")


@dataclass(frozen=True)
class Stored:
    content: bytes
    generation: int

    @property
    def tag(self) -> str:
        return f'"{hashlib.md5(self.content).hexdigest()}"'  # of the content: equal contents have equal tags


def environment(endpoint: str) -> dict[str, str]:
    """Return the variables by which programs find a server that stands in for Google's."""
    key = {"gcs_base_url": endpoint, "disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}
    return {"GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps(key), "GOOGLE_ALLOW_HTTP": "true"}


class Gcs(HttpServer):
    """The server, with an empty bucket."""

    address = f"gs://{BUCKET}"

    def __init__(self) -> None:
        self.objects: dict[str, Stored] = {}
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.lock = threading.Lock()  # guards the above
        self.generation = 0
        self.too_often = 0
        """How often each write of an existing object is answered with 429 before it succeeds."""
        self.denied: set[str] = set()
        """HTTP methods that are answered as if the credentials lacked the right."""
        self.refused: Counter[str] = Counter()
        """How many answers were 429, by the name of the object."""
        self.on_refused: Callable[[str], object] = lambda name: None
        self.is_slow = False
        """Whether clients give up before a part of an upload or a range has an answer, as over a slow link."""
        self._turns: Counter[str] = Counter()
        super().__init__(_requests_of(self))

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which programs find the server."""
        return environment(self.endpoint)

    def put(self, name: str, content: bytes, expected: str | None) -> Stored | int:
        """Write an object, or answer with the status of a refusal."""
        with self.lock:
            there = self.objects.get(name)
            if there is not None and self._turns[name] < self.too_often:
                self._turns[name] += 1
                self.refused[name] += 1
                refused = True
            else:
                self._turns[name] = 0
                refused = False
                if expected is not None and int(expected) != (there.generation if there else 0):
                    return 412
                self.generation += 1
                stored = self.objects[name] = Stored(content, self.generation)
        if refused:
            self.on_refused(name)
            return 429
        return stored


def _requests_of(gcs: Gcs) -> type[BaseHTTPRequestHandler]:
    class Requests(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_request(self, code: object = "-", size: object = "-") -> None:
            """Log nothing, because tests check what clients make of the answers."""

        def do_GET(self) -> None:
            name, query = self._target()
            if not name:
                self._list(query)
                return
            stored = gcs.objects.get(name)
            if stored is None:
                self._refuse(404, "NoSuchKey")
            elif self.headers.get("If-None-Match") == stored.tag:
                self._answer(304, b"", stored)
            elif gcs.is_slow:
                self._wait_in_vain()
            elif found := _RANGE.fullmatch(self.headers.get("Range", "")):
                first, last = int(found[1]), min(int(found[2]), len(stored.content) - 1)
                if first > last:
                    self._refuse(416, "InvalidRange")
                    return
                part = f"bytes {first}-{last}/{len(stored.content)}"
                self._answer(206, stored.content[first : last + 1], stored, {"Content-Range": part})
            else:
                self._answer(200, stored.content, stored)

        do_HEAD = do_GET

        def _wait_in_vain(self) -> None:
            self.connection.recv(1)  # returns once the client has given up
            self.close_connection = True

        def do_PUT(self) -> None:
            name, query = self._target()
            content = self._body()
            if "uploadId" in query:
                if gcs.is_slow:
                    self._wait_in_vain()
                    return
                gcs.uploads[query["uploadId"]][int(query["partNumber"])] = content
                self._answer(200, b"", Stored(content, 0))
                return
            self._written(gcs.put(name, content, self.headers.get("x-goog-if-generation-match")))

        def do_POST(self) -> None:
            name, query = self._target()
            content = self._body().decode()
            if "uploads" in query:
                with gcs.lock:
                    upload = f"upload-{len(gcs.uploads)}"
                    gcs.uploads[upload] = {}
                self._answer(200, f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId>"
                                  "</InitiateMultipartUploadResult>".encode())  # fmt: skip
                return
            parts = gcs.uploads.pop(query["uploadId"])
            whole = b"".join(parts[int(number)] for number in _PART.findall(content))
            stored = gcs.put(name, whole, self.headers.get("x-goog-if-generation-match"))
            if isinstance(stored, int):
                self._written(stored)
                return
            body = f"<CompleteMultipartUploadResult><ETag>{escape(stored.tag)}</ETag></CompleteMultipartUploadResult>"
            self._answer(200, body.encode(), stored)

        def do_DELETE(self) -> None:
            name, query = self._target()
            if "DELETE" in gcs.denied:
                self._refuse(403, "AccessDenied")
                return
            with gcs.lock:
                there = gcs.uploads.pop(query["uploadId"], None) if "uploadId" in query else gcs.objects.pop(name, None)
            if there is None:
                self._refuse(404, "NoSuchKey")
            else:
                self._answer(204, b"")

        def _list(self, query: dict[str, str]) -> None:
            with gcs.lock:
                names = sorted(name for name in gcs.objects if name.startswith(query.get("prefix", "")))
                listed = "".join(
                    f"<Contents><Key>{escape(name)}</Key><Size>{len(gcs.objects[name].content)}</Size>"
                    f"<LastModified>2026-11-27T20:00:00.000Z</LastModified><ETag>{gcs.objects[name].tag}</ETag></Contents>"
                    for name in names
                )
            self._answer(200, f"<ListBucketResult><IsTruncated>false</IsTruncated>{listed}</ListBucketResult>".encode())

        def _target(self) -> tuple[str, dict[str, str]]:
            """Return the name of the object, and the query."""
            split = urlsplit(self.path)
            bucket, _, name = unquote(split.path).lstrip("/").partition("/")
            query = {key: values[0] for key, values in parse_qs(split.query, keep_blank_values=True).items()}
            return name if bucket == BUCKET else f"/{bucket}/{name}", query

        def _body(self) -> bytes:
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))

        def _written(self, stored: Stored | int) -> None:
            if isinstance(stored, int):
                self._refuse(stored, {412: "PreconditionFailed", 429: "SlowDown"}[stored])
            else:
                self._answer(200, b"", stored)

        def _refuse(self, status: int, code: str) -> None:
            self._answer(status, f"<?xml version='1.0'?><Error><Code>{code}</Code></Error>".encode())

        def _answer(
            self, status: int, content: bytes, stored: Stored | None = None, headers: dict[str, str] | None = None
        ) -> None:
            self.send_response(status)
            self.send_header("Last-Modified", _DATE)
            self.send_header("Content-Length", "0" if status == 304 else str(len(content)))
            if stored is not None:
                self.send_header("ETag", stored.tag)
                self.send_header("x-goog-generation", str(stored.generation))
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

    return Requests

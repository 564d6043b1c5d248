"""Explains errors of object stores in one line, which is the same for the same error and contains no credential.

obstore's own texts contain the server's answer and the address of the request, which for Azure contains a signature.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

_REQUEST = re.compile(r"Error performing ([A-Z]+) (\S+?)(?: in [\d.]+\S*s)?(?:, after [^-]*)? - ")
_CODE = re.compile(r"<Code>([\w.]+)</Code>|\(code: (\w+)\)")
_MESSAGE = re.compile(r"<Message>([^<\n]*)")
_STORE = re.compile(r"^Generic \w+ error: ")
_STATUS = "Server returned non-2xx status code: "
_METADATA = re.compile(r"/latest/api/token|/latest/meta-data/|/computeMetadata/|/metadata/identity/")
_NO_BUCKET = re.compile(r"\b(NoSuchBucket|ContainerNotFound)\b")
_DENIED = re.compile(r"\b(AccessDenied|AuthorizationPermissionMismatch)\b")
_UNKNOWN_KEY = re.compile(
    r"\b(ExpiredToken|InvalidToken|TokenRefreshRequired|InvalidAccessKeyId|SignatureDoesNotMatch)\b"
)
_LONGEST = 300

_MEANINGS = [
    (r"expecting '([\w-]+)'", r"the bucket is in another region: set AWS_REGION=\1"),
    (r"redirect without LOCATION", "the bucket is in another region: set AWS_REGION to it"),
    (r"RequestTimeTooSkewed", "the clock of this machine is wrong"),
    (r"HTTP error: builder error", "an http:// endpoint needs {}_ALLOW_HTTP=true"),
    (r"ETag Header missing", "an answer without an ETag: what answers there is no such object store"),
    (r"Account must be specified", "set AZURE_STORAGE_ACCOUNT_NAME"),
    (r"Invalid Access Key", "AZURE_STORAGE_ACCOUNT_KEY is no key of an account"),
    (
        r"Unable to decode service account file",
        "GOOGLE_SERVICE_ACCOUNT_KEY or GOOGLE_APPLICATION_CREDENTIALS has no key of a service account",
    ),
]
_ASKED = {"GET": "read or list", "HEAD": "read", "PUT": "write", "POST": "write", "DELETE": "delete"}
_KEYS = {
    "AWS": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "GOOGLE": "GOOGLE_APPLICATION_CREDENTIALS",
    "AZURE": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}


def reason(error: BaseException, prefix: str) -> str:
    """Return why an operation failed. `prefix` is the prefix of the environment variables: AWS, GOOGLE or AZURE."""
    text = _text(error)
    if meaning := _meaning(text, prefix):
        return meaning
    requests = [*_REQUEST.finditer(text)]
    what = _said(text) or (text[requests[-1].end() :] if requests else _STORE.sub("", text))
    what = (
        what.strip().split("\n", 1)[0].removeprefix(_STATUS).replace("HTTP error: error sending request", "no answer")
    )
    return what[:_LONGEST] + (_from(requests[-1][2]) if requests else "")


def denial(error: BaseException, prefix: str) -> str:
    """Return why access is denied, and what to do."""
    text = _text(error)
    requests = [*_REQUEST.finditer(text)]
    said = _said(text)
    if meaning := _meaning(text, prefix):
        return meaning
    if said and not _DENIED.search(text):  # the credentials are wrong; they do not merely lack a right
        return f"{said}: check {_KEYS[prefix]}"
    method, address = (requests[-1][1], requests[-1][2]) if requests else ("DELETE", "")
    asked = "delete" if "?delete" in address else _ASKED.get(method, "use")
    return f"these credentials may not {asked} objects there: give them the right"


def no_credentials(prefix: str) -> str:
    return f"no credentials: set {_KEYS[prefix]}, or give this machine a role"


def is_without_credentials(error: BaseException) -> bool:
    """Whether no credentials were found, so that the machine's metadata service was asked as the last resort."""
    return _METADATA.search(_text(error)) is not None


def is_without_bucket(error: BaseException) -> bool:
    return _NO_BUCKET.search(_text(error)) is not None


def is_denied(error: BaseException) -> bool:
    """Whether the text of an error says that access is denied.

    For listings and deletions, obstore raises a generic error instead of PermissionDeniedError.
    """
    text = _text(error)
    return bool(_DENIED.search(text) or _UNKNOWN_KEY.search(text))


def _meaning(text: str, prefix: str) -> str:
    for pattern, meaning in _MEANINGS:
        if found := re.search(pattern, text):
            return found.expand(meaning).format(prefix)
    return ""


def _text(error: BaseException) -> str:
    return str(error).partition("\n\nDebug source")[0]


def _said(text: str) -> str:
    """Return the server's error code and the first line of its message; "" if it sent neither.

    Later lines name the request.
    """
    code = _CODE.search(text)
    message = _MESSAGE.search(text)
    return ": ".join(part for part in (code and (code[1] or code[2]), message and message[1].strip(" .")) if part)


def _from(address: str) -> str:
    """Return a text that names the server of a request, without a password; "" if the address has no host."""
    split = urlsplit(address)
    return f" from {split.scheme}://{split.netloc.rpartition('@')[2]}" if split.netloc else ""

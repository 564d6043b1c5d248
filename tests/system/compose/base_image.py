"""A base image: the public one, or one made from this machine's own Debian mirror where public images cannot be pulled.

The mirror, pip's index settings and the trusted certificates are read from the machine and end up in the image alone:
nothing of them is in the tree, and the Dockerfile knows nothing about them.
"""

from __future__ import annotations

import configparser
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.support.programs import ROOT
from tests.system.compose.commands import CommandError, run, scratch

TAG = "paramsync-base:local"
PACKAGES = ("python3", "python3-venv", "ca-certificates")
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
PIP_FILES = tuple(map(Path, ("~/.config/pip/pip.conf", "~/.pip/pip.conf", "/etc/pip.conf")))  # strongest first
PIP_SETTINGS = ("index-url", "extra-index-url", "trusted-host")


class NoBaseImageError(Exception):
    """No base image can be made here; the text says why."""


@dataclass(frozen=True, slots=True)
class Mirror:
    url: str
    suite: str
    components: tuple[str, ...]


def this_mirror() -> Mirror:
    """The mirror and suite this machine installs its own packages from."""
    suite = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    listed = run("apt-get", "indextargets", "--format", "$(RELEASE) $(COMPONENT) $(SITE)", "Identifier: Packages")
    of_suite = [
        (site, component) for release, component, site in map(str.split, listed.splitlines()) if release == suite
    ]
    if not of_suite:
        raise NoBaseImageError(f"apt has no source for this machine's own suite {suite!r}")
    url = of_suite[0][0]
    return Mirror(url, suite, tuple(dict.fromkeys(component for site, component in of_suite if site == url)))


def find_or_make(engine: Mapping[str, str]) -> str:
    """The image that the Dockerfile names where it can be had, else one made here. NoBaseImageError."""
    (public,) = re.findall(r"^ARG BASE_IMAGE=(\S+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    for tag, pull in ((public, True), (TAG, False)):
        if can_be_had(engine, tag, pull=pull):
            return tag
    with scratch("base") as folder:
        make(TAG, engine=engine, folder=folder)
    return TAG


def can_be_had(engine: Mapping[str, str], tag: str, *, pull: bool = True) -> bool:
    """Whether the engine has this image, after it was pulled where that is allowed."""
    for get in ("inspect", "pull") if pull else ("inspect",):
        with suppress(CommandError, subprocess.TimeoutExpired):
            run("docker", "image", get, tag, env=engine, timeout=300)
            return True
    return False


def make(tag: str, *, engine: Mapping[str, str], folder: Path) -> None:
    """Imports `tag` into the engine. Needs root and mmdebstrap; the folder is on a filesystem that allows devices."""
    if os.geteuid() != 0:
        raise NoBaseImageError("mmdebstrap needs root")
    for program in ("mmdebstrap", "apt-get"):
        if shutil.which(program) is None:
            raise NoBaseImageError(f"{program} is not installed")
    mirror = this_mirror()
    settings = folder / "pip.conf"
    settings.write_text(pip_settings())
    packed = folder / "base.tar"
    run(
        "mmdebstrap",
        "--variant=minbase",
        f"--include={','.join(PACKAGES)}",
        f"--components={','.join(mirror.components)}",
        f"--customize-hook=upload {CERTIFICATES} {CERTIFICATES}",
        f"--customize-hook=upload {settings} /etc/pip.conf",
        mirror.suite,
        str(packed),
        mirror.url,
        env={**os.environ, "TMPDIR": str(folder)},
        timeout=600,
    )
    run("docker", "import", str(packed), tag, env=engine, timeout=300)


def pip_settings() -> str:
    """This machine's indexes as pip's configuration file; those that are folders of this machine are left out."""
    lines = [f"{name} = {' '.join(urls)}" for name in PIP_SETTINGS if (urls := list(dict.fromkeys(_pip_values(name))))]
    return "\n".join(["[global]", f"cert = {CERTIFICATES}", *lines, ""])


def _pip_values(name: str) -> Iterator[str]:
    said = [os.environ.get(f"PIP_{name.upper().replace('-', '_')}", "")]
    for path in PIP_FILES:
        file = configparser.RawConfigParser()
        file.read(path.expanduser())
        said.append(file.get("global", name, fallback=""))
    strongest = next(filter(None, said), "")
    return (url for url in strongest.split() if not url.startswith(("file:", "/")))

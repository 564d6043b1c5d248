"""Runs pages of the documentation as readers do: every block of code in order, beginning in an empty folder.

A page becomes one bash script. A kernel namespace gives the script its own ports, /dev/shm and /var/tmp, and ends all
processes that it started. Shell blocks are copied into the script. Python blocks run in one interpreter: a block that
begins with an import starts afresh, any other block continues the block before, and a block that begins with
`# NAME.py` is saved instead. The output of a `console` block must appear; any number matches a number, and `...`
matches anything. Long-running programs (serve, train, up, watch) run in the background once they are ready, until a
line of the page begins with Stop and mentions Ctrl-C. `<!-- not run: REASON -->` skips the block after it.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.support.programs import PATIENCE, ROOT

RUN = ("sh", "python", "console")
_SESSION = Path(__file__).with_name("page_session.py")
SHOWN = ("text", "json", "toml", "ini", "yaml")
_PARTS = re.compile(
    r"(?:<!-- not run: (?P<spared>[^\n]+) -->\n)?^ *```(?P<language>\w*)\n(?P<text>.*?)^ *```$"
    r"|^(?P<stop>Stop [^\n]*Ctrl-C)",
    re.DOTALL | re.MULTILINE,
)
_PRELUDE = r"""
set -Emeuo pipefail
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /var/tmp
page=$(mktemp -d)
coproc python_of_page { exec python "$page_session"; }
read -r page_answer <&"${python_of_page[0]}"
page_python() {
    cat >"$page/block.py"
    echo "$page/block.py" >&"${python_of_page[1]}"
    read -r page_answer <&"${python_of_page[0]}"
    test "$page_answer" = done
}
page_shows() {
    [[ $1 =~ ^$2$ ]] || { printf 'expected %s\nfound %s\n' "$2" "$1"; return 1; }
}
page_keep() {
    local log pattern program
    log=$(mktemp "$page/XXXXXX.log") program=$(type -P "$1")
    pattern=$2
    shift 2
    "$program" "$@" >"$log" 2>&1 </dev/null &
    echo $! >>"$page/kept"
    until grep -Eqz "$pattern" "$log"; do
        kill -0 $! 2>/dev/null || { cat "$log"; wait $!; return; }
        sleep 0.1
    done
}
page_stop() {
    while read -r pid; do kill -INT -- "-$pid" 2>/dev/null || true; tail --pid="$pid" -f /dev/null; done <"$page/kept"
    rm "$page/kept"
}
paramsync() {
    case "$1 $*" in
        train*--steps*) command paramsync "$@" ;;
        serve*) page_keep paramsync 'ready: .*version [0-9]+ serves|version [0-9]+ serves.*ready: ' "$@" ;;
        train*) page_keep paramsync 'trainer ready' "$@" ;;
        watch*) page_keep paramsync '' "$@" ;;
        *) command paramsync "$@" ;;
    esac
}
make() {
    if [ "$1" = up ]; then page_keep make 'page: http' "$@"; else command make "$@"; fi
}
trap 'tail -n 40 "$page"/*.log 2>/dev/null' ERR
"""


@dataclass(frozen=True)
class Part:
    """A block of code, or a sentence that ends running programs. `spared` is the reason for not running a block."""

    line: int
    language: str
    text: str
    spared: str = ""


def parts(page: str) -> list[Part]:
    text = (ROOT / page).read_text()
    found = []
    for match in _PARTS.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        if match["stop"]:
            found.append(Part(line, "stop", match["stop"]))
        else:
            found.append(Part(line, match["language"], match["text"], match["spared"] or ""))
    return found


def run(page: str, folder: Path, *, checkout: bool) -> None:
    """Run a page in a `checkout` or an empty folder. If a block fails, fails with the whole output."""
    script = _PRELUDE + "".join(
        f"echo '== {page}:{part.line}'\n{_run(part)}" for part in parts(page) if not part.spared
    )
    (folder / "page.sh").write_text(script)
    (folder / "empty").mkdir()
    if checkout:
        for file in ROOT.iterdir():
            (folder / "empty" / file.name).symlink_to(file)
    whose = [] if os.geteuid() == 0 else ["--map-root-user"]
    namespaces = ["unshare", *whose, "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    command = [*namespaces, sys.executable, str(_SESSION), "bash", str(folder / "page.sh")]
    path = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
    environment = {"page_session": str(_SESSION), "PATH": path, "HOME": str(folder), "LANG": "C.UTF-8"}
    done = subprocess.run(
        command,
        cwd=folder / "empty",
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
        timeout=4 * PATIENCE,
    )
    assert done.returncode == 0, done.stdout


def _run(part: Part) -> str:
    if part.language == "sh":
        return part.text
    if part.language == "python":
        name = re.match(r"# (\w+\.py)\n", part.text)
        taking = f"cat >{name[1]}" if name else "page_python"
        return f"{taking} <<'END_OF_BLOCK'\n{part.text}END_OF_BLOCK\n"
    if part.language == "console":
        return "".join(map(_shown, re.findall(r"^\$ (.*\n)((?:(?!\$ ).*\n)*)", part.text, re.MULTILINE)))
    return "page_stop\n" if part.language == "stop" else ""


def _shown(command_and_output: tuple[str, str]) -> str:
    command, output = command_and_output
    if not output:
        return command
    pattern = re.sub(r"-?\d[\d.]*(?:e[-+]?\d+)?", "NUMBER", output.rstrip("\n"))
    pattern = re.escape(pattern).replace(r"\.\.\.", ".*").replace("NUMBER", "-?[0-9][0-9.]*(e[-+]?[0-9]+)?")
    return f'page_shows "$({command.rstrip()})" {shlex.quote(pattern)}\n'

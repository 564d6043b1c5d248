"""`paramsync completion`: what a shell needs to complete commands, options, files and models, made from the parser."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from paramsync.cli.arguments import parser
from paramsync.errors import ParamsyncError

_FILES = {"STORE", "SOURCE", "LOGDIR", "FILE", "PATH", "DIR", "KEYFILE", "PREFIX"}
"""What arguments are called that are names of files."""


@dataclass(frozen=True, slots=True)
class Option:
    """`names` are as they are typed; `value` is what its argument is called, empty where it takes none."""

    names: Sequence[str]
    summary: str
    value: str
    choices: Sequence[str]

    @property
    def takes_file(self) -> bool:
        return self.value in _FILES


@dataclass(frozen=True, slots=True)
class Command:
    """`words` are what is typed for it behind `paramsync`, none for paramsync itself."""

    words: tuple[str, ...]
    summary: str
    options: Sequence[Option]
    commands: Sequence[Command]
    choices: Sequence[str]
    takes_file: bool
    takes_model: bool

    def every(self) -> Iterator[Command]:
        """Itself and all below."""
        yield self
        for command in self.commands:
            yield from command.every()


def run(arguments: Namespace) -> bool:
    if arguments.shell == "models":
        sys.stdout.write("".join(f"{name}\n" for name in _models()))
        return True
    tree = read(parser())
    sys.stdout.write({"bash": _bash, "zsh": _zsh, "fish": _fish}[arguments.shell](tree))
    return True


def _models() -> list[str]:
    """Of the servers that commands ask unless told others. Only names that mean nothing else to a shell."""
    from paramsync.cli.servers import ask_all, connected  # the scripts are made without

    default = Namespace(servers=None, token_file=None, tls_ca=None, tls_cert=None, tls_key=None)
    with connected(default) as inferencers:
        answers = ask_all(inferencers, lambda inferencer: inferencer.status())
    names = {model.model for answer in answers if not isinstance(answer, ParamsyncError) for model in answer}
    return sorted(name for name in names if re.fullmatch(r"[\w.@+-]+", name, re.ASCII))


def read(known: argparse.ArgumentParser, words: tuple[str, ...] = (), summary: str = "") -> Command:
    """All that the parser takes, but for what its help does not show."""
    options, commands, choices, takes_file, takes_model = [], [], [], False, False
    for action in known._actions:  # argparse has no other way to ask for them
        if isinstance(action, argparse._SubParsersAction):
            summaries = {choice.dest: choice.help or "" for choice in action._choices_actions}
            commands = [read(sub, (*words, name), summaries[name]) for name, sub in action.choices.items()]
        elif action.option_strings and action.help != argparse.SUPPRESS:
            options.append(_option(action))
        elif not action.option_strings:
            choices += [str(choice) for choice in action.choices or ()]
            takes_model = takes_model or action.metavar == "MODEL"
            takes_file = takes_file or action.metavar in _FILES or action.nargs == "*"  # of the programs
    return Command(words, summary, options, commands, choices, takes_file, takes_model)


def _option(action: argparse.Action) -> Option:
    value = "" if action.nargs == 0 else str(action.metavar or action.dest.upper())
    choices = [str(choice) for choice in action.choices or ()]
    return Option(action.option_strings, (action.help or "").replace("%%", "%"), value, choices)


def _bash(tree: Command) -> str:
    commands = list(tree.every())
    paths = "|".join(f'" {" ".join(command.words)}"' for command in commands if command.words)
    values = [
        f"        {_case(command, name)}) {_bash_values(option)};;\n"
        for command in commands
        for option in command.options
        for name in option.names
        if option.value
    ]
    words = [f"        {shlex.quote(_key(command))}) words={shlex.quote(_words(command))};;\n" for command in commands]
    files = "|".join(shlex.quote(_key(command)) for command in commands if command.takes_file)
    models = "|".join(shlex.quote(_key(command)) for command in commands if command.takes_model)
    return f"""\
# paramsync in bash: source <(paramsync completion bash)
_paramsync() {{
    local IFS=$' \\t\\n' at="" words="" index word
    local current="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD-1]}}"
    if [[ $current == "=" ]]; then
        current=""
    elif [[ $previous == "=" ]]; then
        previous="${{COMP_WORDS[COMP_CWORD-2]}}"
    fi
    for ((index = 1; index < COMP_CWORD; index++)); do
        word="${{COMP_WORDS[index]}}"
        case "$at $word" in
            {paths}) at="$at $word";;
        esac
    done
    COMPREPLY=()
    case "$at $previous" in
{"".join(values)}    esac
    case "$at" in
{"".join(words)}    esac
    if [[ $current != -* ]]; then
        case "$at" in
            {files}) _paramsync_files "$current"; return;;
            {models}) words=$(paramsync completion models 2>/dev/null);;
        esac
    fi
    COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
_paramsync_files() {{
    local IFS=$'\\n'
    compopt -o filenames 2>/dev/null
    COMPREPLY=($(compgen -f -- "$1"))
}}
complete -F _paramsync paramsync
"""


def _key(command: Command) -> str:
    return "".join(f" {word}" for word in command.words)


def _case(command: Command, name: str) -> str:
    return shlex.quote(f"{_key(command)} {name}")


def _words(command: Command) -> str:
    """Options only where one is begun: a shell shows commands first."""
    names = [below.words[-1] for below in command.commands]
    return " ".join([*names, *command.choices, *(name for option in command.options for name in option.names)])


def _bash_values(option: Option) -> str:
    if option.takes_file:
        return '_paramsync_files "$current"; return'
    if option.choices:
        return f'COMPREPLY=($(compgen -W {shlex.quote(" ".join(option.choices))} -- "$current")); return'
    return "return"


def _zsh(tree: Command) -> str:
    commands = list(tree.every())
    paths = "|".join(f'" {" ".join(command.words)}"' for command in commands if command.words)
    values = [
        f"        {_case(command, name)}) {_zsh_values(option)}; return;;\n"
        for command in commands
        for option in command.options
        for name in option.names
        if option.value
    ]
    return f"""\
#compdef paramsync
# paramsync in zsh: source <(paramsync completion zsh), or as a file _paramsync in a directory of $fpath
_paramsync() {{
    local at="" index
    local -a commands options
    for ((index = 2; index < CURRENT; index++)); do
        case "$at $words[index]" in
            {paths}) at="$at $words[index]";;
        esac
    done
    case "$at $words[CURRENT-1]" in
{"".join(values)}    esac
    case "$at" in
{"".join(map(_zsh_command, commands))}    esac
}}
if [[ "$funcstack[1]" == _paramsync ]]; then
    _paramsync "$@"
else
    compdef _paramsync paramsync
fi
"""


def _zsh_command(command: Command) -> str:
    options = [(name, option.summary) for option in command.options for name in option.names]
    lines = [f"        {shlex.quote(_key(command))})\n", f"            options=({_described(options)})\n"]
    below = [(each.words[-1], each.summary) for each in command.commands] + [(word, "") for word in command.choices]
    lines.append(f"            commands=({_described(below)})\n")
    lines.append("            if [[ $words[CURRENT] == -* ]]; then _describe -o option options\n")
    if below:
        lines.append("            else _describe command commands\n")
    elif command.takes_file:
        lines.append("            else _files\n")
    elif command.takes_model:
        lines.append('            else compadd -- ${(f)"$(paramsync completion models 2>/dev/null)"}\n')
    lines.append("            fi;;\n")
    return "".join(lines)


def _described(names: Sequence[tuple[str, str]]) -> str:
    texts = (f"{name.replace(':', chr(92) + ':')}:{summary}" if summary else name for name, summary in names)
    return " ".join(map(shlex.quote, texts))


def _zsh_values(option: Option) -> str:
    if option.takes_file:
        return "_files"
    if option.choices:
        return f"compadd {shlex.join(option.choices)}"
    return f"_message {shlex.quote(option.value)}"


def _fish(tree: Command) -> str:
    lines = ["# paramsync in fish: paramsync completion fish | source", "complete -c paramsync -f"]
    for command in tree.every():
        here = _fish_here(command)
        for below in command.commands:
            lines.append(f"complete -c paramsync -n {here} -a {below.words[-1]} -d {_fish_quoted(below.summary)}")
        for choice in command.choices:
            lines.append(f"complete -c paramsync -n {here} -a {choice}")
        if command.takes_file:
            lines.append(f"complete -c paramsync -n {here} -F")
        if command.takes_model:
            lines.append(f"complete -c paramsync -n {here} -a '(paramsync completion models 2>/dev/null)'")
        lines += [f"complete -c paramsync -n {here} {_fish_option(option)}" for option in command.options]
    return "\n".join(lines) + "\n"


def _fish_here(command: Command) -> str:
    """The condition under which this command, and none below it, is what is typed."""
    if not command.words:
        return "__fish_use_subcommand"
    seen = [f"__fish_seen_subcommand_from {word}" for word in command.words]
    names = " ".join(below.words[-1] for below in command.commands)
    return f"'{'; and '.join([*seen, *([f'not __fish_seen_subcommand_from {names}'] if names else [])])}'"


def _fish_option(option: Option) -> str:
    words = [f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names]
    if option.takes_file:
        words.append("-r -F")
    elif option.choices:
        words.append(f"-x -a {_fish_quoted(' '.join(option.choices))}")
    elif option.value:
        words.append("-x")
    return " ".join([*words, f"-d {_fish_quoted(option.summary)}"])


def _fish_quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"

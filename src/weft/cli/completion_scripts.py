"""What shells need to complete weft's commands, written from the commands' own parsers."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from weft.records import dataclass

MODELS = ("onnx", "weft")  # suffixes
_LONGEST = 60  # characters of a text beside a word


@dataclass(frozen=True, slots=True)
class Argument:
    """An option, or without names what stands by itself; `kind` says what completes its value, "" that it has none."""

    options: tuple[str, ...]
    text: str
    kind: str
    choices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Command:
    name: str
    summary: str
    arguments: tuple[Argument, ...]

    @property
    def options(self) -> list[Argument]:
        return [argument for argument in self.arguments if argument.options]

    @property
    def own(self) -> Argument | None:
        """What stands by itself."""
        return next((argument for argument in self.arguments if not argument.options), None)


def bash(commands: Sequence[Command]) -> str:
    """For bash 3.2 and later, with or without the bash-completion package."""
    names = " ".join(command.name for command in commands)
    return f"""# bash completion for weft
_weft_words() {{ COMPREPLY=($(compgen -W "$1" -- "$current")); }}
_weft_ask() {{ _weft_words "$("${{COMP_WORDS[0]}}" completion --words "$@" 2>/dev/null)"; }}
_weft_folders() {{ compopt -o filenames 2>/dev/null; COMPREPLY=($(compgen -d -- "$current")); }}
_weft_models() {{
    local IFS=$'\\n' file
    compopt -o filenames 2>/dev/null
    for file in $(compgen -f -- "$current"); do
        case "$file" in {" | ".join(f"*.{suffix}" for suffix in MODELS)}) COMPREPLY+=("$file") ;;
        *) [ -d "$file" ] && COMPREPLY+=("$file") ;; esac
    done
}}
_weft_named() {{
    if [ -n "$model" ]; then compopt -o nospace 2>/dev/null; _weft_ask "$1" "$model"; fi
}}
_weft() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}} command= model= word
    COMPREPLY=()
    if [ "$current" = "=" ]; then
        current=
        case "$previous" in --*) ;; *) return ;; esac
    elif [ "$previous" = "=" ]; then
        previous=${{COMP_WORDS[COMP_CWORD-2]}}
        case "$previous" in --*) ;; *) return ;; esac
    fi
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        case "$word" in
            -*) ;;
            {" | ".join(f"*.{suffix}" for suffix in MODELS)}) [ -z "$model" ] && model=${{word/#\\~/$HOME}} ;;
            *) [ -z "$command" ] && command=$word ;;
        esac
    done
    case "$command" in
        "") _weft_words "{names} --help --version --debug"; return ;;
{chr(10).join(_bash_command(command) for command in commands)}
    esac
}}
complete -o default -F _weft weft
"""


def _bash_command(command: Command) -> str:
    values = "\n".join(
        f"                {' | '.join(option.options)}) {_bash_values(option)}return ;;"
        for option in command.options
        if option.kind
    )
    own = "" if command.own is None else _bash_values(command.own).rstrip("; ")
    words = " ".join(name for option in command.options for name in option.options)
    return f"""        {command.name})
            case "$previous" in
{values}
            esac
            case "$current" in -*) _weft_words "{words}" ;; *) {own or ":"} ;; esac ;;"""


def _bash_values(argument: Argument) -> str:
    match argument.kind:
        case "words":
            return f'_weft_words "{" ".join(argument.choices)}"; '
        case "devices" | "operators":
            return f"_weft_ask {argument.kind}; "
        case "inputs" | "dims":
            return f"_weft_named {argument.kind}; "
        case "models" | "folders":
            return f"_weft_{argument.kind}; "
        case _:
            return ""


def zsh(commands: Sequence[Command]) -> str:
    """For zsh, read by eval after compinit, or as the file _weft in a folder of fpath."""
    listed = " ".join(_zsh_word(command.name, command.summary) for command in commands)
    suffixes = "|".join(MODELS)
    return f"""#compdef weft
_weft() {{
    local current=$words[CURRENT] previous=$words[CURRENT-1] command= model= word
    local -a found
    for word in ${{words[2,CURRENT-1]}}; do
        case $word in
            -*) ;;
            *.({suffixes})) [[ -z $model ]] && model=${{~word}} ;;
            *) [[ -z $command ]] && command=$word ;;
        esac
    done
    if [[ $current == --*=* ]]; then
        previous=${{current%%=*}}
        compset -P 1 '*='
    elif [[ $current == *=* && $previous == --* ]]; then
        compset -P 1 '*='
        _files
        return
    fi
    if [[ -z $command ]]; then
        found=({listed})
        if [[ $current == -* ]]; then compadd -- --help --version --debug; else _describe command found; fi
        return
    fi
    case $command in
{chr(10).join(_zsh_command(command) for command in commands)}
    esac
}}
if [[ $funcstack[1] == _weft ]]; then _weft "$@"; elif (( $+functions[compdef] )); then compdef _weft weft; fi
"""


def _zsh_command(command: Command) -> str:
    values = "\n".join(
        f"                {'|'.join(option.options)}) {_zsh_values(option)}; return ;;"
        for option in command.options
        if option.kind
    )
    words = " ".join(_zsh_word(name, option.text) for option in command.options for name in option.options)
    own = "_files" if command.own is None else _zsh_values(command.own)
    return f"""        {command.name})
            case $previous in
{values}
            esac
            found=({words})
            if [[ $current == -* ]]; then _describe -o option found; else {own}; fi ;;"""


def _zsh_word(word: str, text: str) -> str:
    return shlex.quote(f"{word}:{_short(text)}".replace("\\", ""))


def _zsh_values(argument: Argument) -> str:
    match argument.kind:
        case "words":
            return f"compadd -- {' '.join(argument.choices)}"
        case "devices" | "operators":
            return f'compadd -- ${{(f)"$($words[1] completion --words {argument.kind} 2>/dev/null)"}}'
        case "inputs" | "dims":
            asked = f"$words[1] completion --words {argument.kind} $model 2>/dev/null"
            return f"""[[ -n $model ]] && compadd -S '' -- ${{(f)"$({asked})"}}"""
        case "models":
            return f"_files -g '*.({'|'.join(MODELS)})(-.)'"
        case "folders":
            return "_files -/"
        case "anything":
            return "_message value"
        case _:
            return "_files"


def fish(commands: Sequence[Command]) -> str:
    """For fish, read from its folder of completions."""
    lines = [
        "# fish completion for weft",
        "function __weft_model",
        "    for word in (commandline -opc)",
        f"        if string match -qr '\\.({'|'.join(MODELS)})$' -- $word",
        "            string replace -r '^~' $HOME -- $word",
        "            return",
        "        end",
        "    end",
        "end",
        "complete -c weft -f",
    ]
    for command in commands:
        lines.append(
            f"complete -c weft -n __fish_use_subcommand -a {command.name} -d {shlex.quote(_short(command.summary))}"
        )
        condition = f"complete -c weft -n '__fish_seen_subcommand_from {command.name}'"
        lines += [f"{condition} {_fish_option(option)}" for option in command.options]
        if command.own is not None:
            lines.append(f"{condition} {_fish_values(command.own)}")
    return "\n".join(lines) + "\n"


def _fish_option(option: Argument) -> str:
    names = " ".join(f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.options)
    values = f" {_fish_values(option)}" if option.kind else ""
    return f"{names}{values} -d {shlex.quote(_short(option.text))}"


def _fish_values(argument: Argument) -> str:
    match argument.kind:
        case "words":
            return f"-xa {shlex.quote(' '.join(argument.choices))}"
        case "devices" | "operators":
            return f"-xa '(weft completion --words {argument.kind} 2>/dev/null)'"
        case "inputs" | "dims":
            return f"-ra '(weft completion --words {argument.kind} (__weft_model) 2>/dev/null)'"
        case "models":
            return f"-k -xa '({'; '.join(f'__fish_complete_suffix .{suffix}' for suffix in reversed(MODELS))})'"
        case "folders":
            return "-xa '(__fish_complete_directories)'"
        case "anything":
            return "-x"
        case _:
            return "-rF"


def _short(text: str) -> str:
    """A few words beside a completion, without what shells take for their own."""
    first = text.partition(";")[0].partition(" (default")[0].replace("'", "").replace("`", "").replace("[", "(")
    first = first.replace("]", ")").replace(":", ",")
    return first if len(first) <= _LONGEST else first[:_LONGEST].rpartition(" ")[0]


SCRIPTS = {"bash": bash, "zsh": zsh, "fish": fish}

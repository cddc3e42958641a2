"""`flowzoo completion`: shell completion of commands, options and choices."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from flowzoo.arguments import Common, arguments_of
from flowzoo.commands.line import COMMANDS, actions_of, options_of

Shell = Literal["bash", "zsh", "fish"]

# The scripts use a table of candidates, so completion does not import flowzoo. A row has the words
# before the candidate (`train`, or `train --optimizer`), the candidate and a description. The
# command is the first word that is not an option; `sandbox` includes the next such word. After an
# option with choices these are offered, else options if the word starts with a dash, else choices
# of positional arguments; without candidates the shell completes file names.
BASH = r"""_flowzoo_offer() {
    local command="" before="$1" current="$2" word key row candidate text
    shift 2
    for word in "$@"; do
        [[ $word == -* ]] && continue
        if [[ -z $command ]]; then command=$word
        elif [[ $command == sandbox ]]; then command="sandbox $word"; fi
    done
    for key in "$command $before" "$command"; do
        while IFS=$'\t' read -r row candidate text; do
            [[ $row == ":$key" && $candidate == "$current"* ]] || continue
            [[ $candidate == -* && $current != -* ]] || COMPREPLY+=("$candidate")
        done <<< "$_flowzoo_table"
        (( ${#COMPREPLY[@]} )) && return
    done
}
_flowzoo() {
    COMPREPLY=()
    _flowzoo_offer "${COMP_WORDS[COMP_CWORD-1]}" "${COMP_WORDS[COMP_CWORD]}" \
        "${COMP_WORDS[@]:1:COMP_CWORD-1}"
}
complete -o default -F _flowzoo flowzoo
"""
ZSH = r"""_flowzoo() {
    local command="" word row key current="${words[CURRENT]}" before="${words[CURRENT-1]}"
    local -a fields candidates
    for word in "${(@)words[2,CURRENT-1]}"; do
        [[ $word == -* ]] && continue
        if [[ -z $command ]]; then command=$word
        elif [[ $command == sandbox ]]; then command="sandbox $word"; fi
    done
    for key in "$command $before" "$command"; do
        candidates=()
        for row in "${(@f)_flowzoo_table}"; do
            fields=("${(@ps:\t:)row}")
            [[ ${fields[1]#:} == "$key" && ${fields[2]} == "$current"* ]] || continue
            [[ ${fields[2]} == -* && $current != -* ]] && continue
            candidates+=("${fields[2]}${fields[3]:+:${fields[3]}}")
        done
        if (( $#candidates )); then _describe flowzoo candidates; return; fi
    done
    _files
}
if [[ $funcstack[1] == _flowzoo ]]; then _flowzoo "$@"; else compdef _flowzoo flowzoo; fi
"""
FISH = r"""function _flowzoo_offer
    set -l tokens (commandline -opc)
    set -l current (commandline -ct)
    set -l command ''
    for word in $tokens[2..]
        string match -q -- '-*' $word; and continue
        if test -z "$command"
            set command $word
        else if test "$command" = sandbox
            set command "sandbox $word"
        end
    end
    set -l tab (printf '\t')
    for key in "$command $tokens[-1]" "$command"
        set -l rows (string replace -f -- ":$key$tab" '' $_flowzoo_table)
        string match -q -- '-*' "$current"; or set rows (string match -v -- '-*' $rows)
        set rows (string match -- "$current*" $rows)
        if test (count $rows) -gt 0
            printf '%s\n' $rows
            return
        end
    end
    __fish_complete_path "$current"
end
complete -c flowzoo -f -a '(_flowzoo_offer)'
"""


@dataclass(frozen=True, slots=True)
class Options:
    """Arguments of `flowzoo completion`."""

    shell: Shell = field(metadata={"positional": "{bash,zsh,fish}"})
    """The shell; see docs/install.md for the file of its completions."""


def run(options: Options) -> int:
    """Print the script; the exit status is 0."""
    print(completions(options.shell), end="")
    return 0


def completions(shell: Shell) -> str:
    """Make the completion script of a shell."""
    rows = ["\t".join((f":{key}", *row)) for key, *row in candidates()]
    if shell == "fish":
        lines = [f"set -a _flowzoo_table {_quote(row)}" for row in rows]
        return "\n".join(("set -g _flowzoo_table", *lines, FISH))
    table = f"_flowzoo_table={_quote(chr(10).join(rows))}\n"
    return table + BASH if shell == "bash" else f"#compdef flowzoo\ntypeset -g {table}{ZSH}"


def _quote(text: str) -> str:
    # Shells interpret quotes and backslashes.
    return "'" + text.replace("'", "’").replace("\\", "/") + "'"


def candidates() -> Iterator[tuple[str, str, str]]:
    """Preceding words, candidate and description of all completions."""
    for name, purpose in COMMANDS.items():
        yield "", name, _first_line(purpose)
        actions = actions_of(options_of(name))
        for action, options in actions.items():
            yield name, action, _first_line(options.__doc__)
            yield from _arguments(f"{name} {action}", options)
        if not actions:
            yield from _arguments(name, options_of(name))


def _arguments(command: str, options: type) -> Iterator[tuple[str, str, str]]:
    for argument in [*arguments_of(options), *arguments_of(Common)]:
        if argument.is_refused:
            continue
        if argument.is_option:
            yield command, argument.shown_label, argument.help
        key = f"{command} {argument.label}" if argument.is_option else command
        for choice in argument.choices:
            yield key, str(choice), ""


def _first_line(text: str) -> str:
    return text.partition("\n")[0]

"""Files that name hosts, one per line, in the words of MPICH and of Open MPI."""

from __future__ import annotations

import pathlib
import re

from gradred.errors import UsageError
from gradred.launch.hosts import Host, Hosts, merged, parse_host, require_own_user

_COMMENT = re.compile(r"/\*.*?\*/|(?:#|//)[^\n]*", re.DOTALL)
_SETTING = re.compile(r"([\w-]+)\s*=\s*(\S+)")

# The MPIs' words for a setting, by the word that gradred uses for it.
_WORDS = {
    "slots": ("slots", "count", "cpu"),
    "max_slots": ("max_slots", "max-slots", "slots_max", "slots-max"),
    "user": ("user", "username", "user_name", "user-name"),
}
_SYNONYMS = {word: name for name, words in _WORDS.items() for word in words}
# Settings that gradred has an option for, or that belong to ssh.
_ELSEWHERE = {
    "binding": "Remove it; --bind core binds ranks",
    "ifname": "Remove it; --mpi-option='-iface NAME' chooses the network",
    "port": "Name the port in ~/.ssh/config",
}


def parse_file(path: str) -> Hosts:
    """Parse a file with one host per line, see `parse_lines`.

    Raises:
        UsageError: the file cannot be read, or a line is not a host.
    """
    try:
        text = pathlib.Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        found = f"it cannot be read ({error})"
        raise UsageError(f"--hostfile {path}", found, "Give a text file") from error
    hosts = parse_lines(text, f"--hostfile {path}")
    if not hosts:
        raise UsageError(f"--hostfile {path}", "it names no host", "Name one per line")
    return Hosts(f"--hostfile {path}", hosts)


def parse_lines(text: str, where: str) -> tuple[Host, ...]:
    """Parse lines like `h1`, `h1:2` (MPICH) or `h1 slots=2` (Open MPI); may return no hosts.

    A host is one more slot each time that it stands in a line without a number. `max_slots` alone
    is the number of slots, as for Open MPI. Comments begin with `#` or `//`, or are in `/* */`.

    `where` is the place of the lines, for messages.

    Raises:
        UsageError: a line is not a host, or has a setting that gradred does not carry out.
    """
    hosts = []
    without = _COMMENT.sub(lambda comment: "\n" * comment[0].count("\n"), text)
    for number, line in enumerate(without.splitlines(), 1):
        if content := line.strip():
            hosts.append(_line(content, f"{where}, line {number}"))
    return merged(hosts)


def _line(text: str, where: str) -> Host:
    name, *rest = text.split(maxsplit=1)
    host = parse_host(name, where)
    settings = _settings(rest[0], where) if rest else {}
    if "user" in settings:
        require_own_user(settings["user"], host.name, where)
    slots = host.slots
    if "slots" in settings:
        if slots is not None:
            raise UsageError(where, f"{text!r} has two numbers of slots", "Write one")
        slots = _number(settings["slots"], where)
    if "max_slots" in settings:
        most = _number(settings["max_slots"], where)
        if slots is not None and slots > most:
            raise UsageError(where, f"{slots} slots are more than {most}, their maximum", "Fewer")
        slots = most if slots is None else slots
    return Host(host.name, slots)


def _settings(text: str, where: str) -> dict[str, str]:
    """Parse `slots=2 max_slots = 4`; the keys are those of `_WORDS`."""
    remedy = "Write host, host:slots or host slots=N"
    if rest := _SETTING.sub("", text).strip():
        raise UsageError(where, f"{rest!r} is not a setting", remedy)
    found: dict[str, str] = {}
    for word, value in _SETTING.findall(text):
        if word not in _SYNONYMS:
            remedy = _ELSEWHERE.get(word, remedy)
            raise UsageError(where, f"gradred does not carry out {word}={value}", remedy)
        name = _SYNONYMS[word]
        if name in found:
            raise UsageError(where, f"{word}={value} says again what {name} is", "Say it once")
        found[name] = value
    return found


def _number(text: str, where: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise UsageError(where, f"{text!r} is not a number of slots", "Write one, at least 1")
    return int(text)

"""Several hosts on this machine, made of Linux namespaces, for tests that need a network.

Each host has its own name, network, process ids, shared memory and message queues; files are those
of this machine. Jobs are launched on the host named `head`; its bridge is the switch to which the
others are connected. Processes of all hosts are below head's first process. If that is killed, none
of them is left. Needs root, iproute2 and util-linux.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

HEAD = "head"
_NETWORK = "10.91.7"
_CABLE = Path(__file__).with_name("lossy_cable.py")
_TOOLS = ("ip", "unshare", "nsenter", "mount", "taskset")

# The first process of a host. $0: its name, $1: the file that becomes its /etc/hosts.
_FIRST = """
hostname "$0"
ip link set lo up
mount --bind "$1" /etc/hosts
mount -t tmpfs -o size=256m tmpfs /dev/shm
echo up
while :; do sleep 3600; done
"""

# As from ssh, a command gets a shell and almost no environment; options are ignored. $0 is the
# folder of the hosts. Their TMPDIRs differ because their process ids do not.
_SSH = """#!/bin/sh
while :; do
  case $1 in
    -[bcDEeFIiJLlmOopQRSWw]) shift 2 ;;
    -*) shift ;;
    *) break ;;
  esac
done
name=$1
shift
pid=$(cat '{folder}'/"$name".pid-on-head) || exit 255
exec taskset -c "$(cat '{folder}'/"$name".cores)" nsenter -t "$pid" -a \
  env -i HOME="$HOME" PATH=/usr/local/bin:/usr/bin:/bin \
  TMPDIR='{folder}'/"$name".tmp sh -c "$*"
"""


def missing() -> str | None:
    """Why hosts cannot be made here; None if they can."""
    if os.geteuid() != 0:
        return "hosts are made of namespaces, which takes root"
    lacking = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if lacking:
        return f"no {', '.join(lacking)} (apt-get install iproute2 util-linux)"
    probe = ["unshare", "-fpnuim", "--mount-proc", "ip", "link", "add", "switch", "type", "bridge"]
    answer = subprocess.run(probe, capture_output=True, text=True, timeout=20)
    return f"no namespaces or bridges ({answer.stderr.strip()})" if answer.returncode else None


class Machines:
    """Hosts h1, h2, ...; used with `with`.

    With `own_cores` each has its part of this machine's cores, or shares one with others.
    """

    def __init__(self, count: int, own_cores: bool = False) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="hosts-"))
        self._names = [f"h{number}" for number in range(1, count + 1)]
        self._own_cores = own_cores
        self._keepers: list[subprocess.Popen[str]] = []
        self._cables: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Machines:
        lines = ["127.0.0.1 localhost", f"{_NETWORK}.254 {HEAD}"]
        lines += [f"{_NETWORK}.{number} {name}" for number, name in enumerate(self._names, 1)]
        (self._folder / "hosts").write_text("\n".join(lines) + "\n")
        for number, name in enumerate(self._names):
            (self._folder / f"{name}.cores").write_text(",".join(map(str, self._cores_of(number))))
        ssh = self._folder / "bin" / "ssh"
        ssh.parent.mkdir()
        ssh.write_text(_SSH.format(folder=self._folder))
        ssh.chmod(ssh.stat().st_mode | stat.S_IXUSR)
        try:
            self._make_all()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.close()

    def _cores_of(self, number: int) -> list[int]:
        cores, hosts = sorted(os.sched_getaffinity(0)), len(self._names)
        if not self._own_cores:
            return cores
        first, end = (len(cores) * one // hosts for one in (number, number + 1))
        return cores[first : max(end, first + 1)]

    @property
    def path(self) -> str:
        """The prefix of PATH on head by which launchers find the ssh of these hosts."""
        return str(self._folder / "bin")

    def start(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], folder: Path
    ) -> subprocess.Popen[str]:
        """Start a command on a host, in a folder."""
        enter = ["nsenter", "-t", str(self._pid(name)), "-a", "sh", "-c", 'cd "$0" && exec "$@"']
        return subprocess.Popen(
            [*enter, str(folder), *command],
            env={**environment, "TMPDIR": str(self._folder / f"{name}.tmp")},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def commands(self, name: str) -> list[str]:
        """The command lines of a host's processes, except its first process and what that runs."""
        look = 'for p in /proc/[0-9]*; do tr "\\0\\n" "  " <$p/cmdline; echo; done 2>/dev/null'
        process = self.start(name, ["sh", "-c", look], os.environ, Path("/"))
        lines = process.communicate(timeout=20)[0].splitlines()
        own = ("sleep 3600", "for p in /proc")  # in the first process, and in this command
        return [line for line in lines if line.strip() and not any(word in line for word in own)]

    def cut(self, name: str) -> None:
        """Disconnect a host's cable: packets are lost, processes keep running."""
        self._on_head("ip", "link", "set", f"port-{name}", "down")

    def lose(self, name: str, percent: float) -> None:
        """Lose a share of the packets that arrive at a host, and of those that leave it."""
        port, plug, end = f"port-{name}", f"plug-{name}", f"end-{name}"
        self._on_head("ip", "link", "add", plug, "type", "veth", "peer", "name", end)
        self._on_head("ip", "link", "set", port, "nomaster")
        self._on_head("ip", "link", "set", plug, "master", "switch", "up")
        self._on_head("ip", "link", "set", end, "up")
        # Use packets of the size that a wire carries: by default a veth passes 64 KiB as one.
        sizes = ["gso_max_size", "1514", "gso_max_segs", "1"]
        self._on_head("ip", "link", "set", plug, *sizes)
        enter = ["nsenter", "-t", str(self._pid(name)), "-n"]
        subprocess.run([*enter, "ip", "link", "set", "eth0", *sizes], check=True)
        words = [sys.executable, str(_CABLE), f"{percent}", str(self._lost(name)), port, end]
        cable = self.start(HEAD, words, os.environ, self._folder)
        assert cable.stdout is not None
        if not cable.stdout.readline():
            raise RuntimeError(f"no cable: {cable.communicate()[1]}")
        self._cables.append(cable)

    def limit(self, name: str, rate: str) -> None:
        """Limit a host's cable to a rate in each direction, such as `1gbit`."""
        shape = ["root", "tbf", "rate", rate, "burst", "256kb", "latency", "20ms"]
        self._on_head("tc", "qdisc", "add", "dev", f"port-{name}", *shape)
        enter = ["nsenter", "-t", str(self._pid(name)), "-n"]
        subprocess.run([*enter, "tc", "qdisc", "add", "dev", "eth0", *shape], check=True)

    def kill(self, name: str) -> None:
        """A power failure: the other hosts receive nothing more from it."""
        self.cut(name)
        os.kill(self._pid(name), 9)

    def lost_packets(self, name: str) -> int:
        """How many packets `lose` has dropped of those that left the host or arrived at it."""
        return int(self._lost(name).read_text() or 0)

    def kill_one(self, name: str, word: str) -> None:
        """Send SIGKILL to one Python process of a host whose command line contains a word."""
        script = """
            for file in /proc/[0-9]*/cmdline; do
              case $(cat "${file%cmdline}comm") in python*) ;; *) continue ;; esac
              pid=${file#/proc/}
              grep -qa -- "$0" "$file" && kill -9 "${pid%/cmdline}" && exit 0
            done 2>/dev/null
            exit 1
        """
        process = self.start(name, ["sh", "-c", script, word], os.environ, Path("/"))
        process.communicate(timeout=20)
        assert process.returncode == 0, f"no {word} on {name}"

    def close(self) -> None:
        """End every process of every host, and remove everything that was made."""
        head = self._folder / f"{HEAD}.pid"
        if head.exists():
            os.kill(int(head.read_text()), 9)
        for cable in self._cables:
            cable.communicate(timeout=20)
        for keeper in self._keepers:
            keeper.wait(timeout=20)
            assert keeper.stdout is not None
            keeper.stdout.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _make_all(self) -> None:
        self._make(HEAD, [])
        self._on_head("ip", "link", "add", "switch", "type", "bridge")
        self._on_head("ip", "addr", "add", f"{_NETWORK}.254/24", "dev", "switch")
        self._on_head("ip", "link", "set", "switch", "up")
        for number, name in enumerate(self._names, 1):
            self._make(name, ["nsenter", "-t", str(self._pid(HEAD)), "-a"])
            port, pid = f"port-{name}", str(self._pid(name))
            outside = ["nsenter", "-t", str(self._pid(HEAD)), "-n"]
            inside = ["nsenter", "-t", pid, "-n", "ip"]
            pair = ["type", "veth", "peer", "name", "eth0", "netns", pid]
            subprocess.run([*outside, "ip", "link", "add", port, *pair], check=True)
            subprocess.run(
                [*outside, "ip", "link", "set", port, "master", "switch", "up"], check=True
            )
            subprocess.run(
                [*inside, "addr", "add", f"{_NETWORK}.{number}/24", "dev", "eth0"], check=True
            )
            subprocess.run([*inside, "link", "set", "eth0", "up"], check=True)

    def _make(self, name: str, prefix: Sequence[str]) -> None:
        (self._folder / f"{name}.tmp").mkdir()
        first = ["sh", "-c", _FIRST, name, str(self._folder / "hosts")]
        apart = ["unshare", "--kill-child", "-fpnuim", "--mount-proc"]
        with (self._folder / "log").open("a") as log:  # unshare prints an error when it is killed
            keeper = subprocess.Popen(
                [*prefix, *apart, *first], stdout=subprocess.PIPE, stderr=log, text=True
            )
        self._keepers.append(keeper)
        assert keeper.stdout is not None
        if keeper.stdout.readline() != "up\n":
            log_text = (self._folder / "log").read_text()
            raise RuntimeError(f"host {name} did not come up: {log_text}")
        pid = _innermost(keeper.pid)
        (self._folder / f"{name}.pid").write_text(str(pid))
        status = Path(f"/proc/{pid}/status").read_text()
        views = next(line for line in status.splitlines() if line.startswith("NSpid:")).split()[1:]
        (self._folder / f"{name}.pid-on-head").write_text(views[1])

    def _lost(self, name: str) -> Path:
        return self._folder / f"{name}.lost"

    def _on_head(self, *command: str) -> None:
        subprocess.run(["nsenter", "-t", str(self._pid(HEAD)), "-n", *command], check=True)

    def _pid(self, name: str) -> int:
        return int((self._folder / f"{name}.pid").read_text())


def _innermost(pid: int) -> int:
    """The shell that is a host's first process: below unshare, and perhaps below nsenter."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        name = Path(f"/proc/{pid}/comm").read_text().strip()
        if name == "sh":
            return pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        pid = int(children[0]) if children else pid
    raise RuntimeError("a host has no first process")

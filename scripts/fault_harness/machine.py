"""What there is on this machine that belongs to one world: listed before and after, and compared.

Others may use the machine at the same time, so only what is ours is listed: by the world's own name in command lines
and paths, by the names that the runtime has written down, and by the links that its bridge was seen with. Numbers of
processes and namespaces are used again by the kernel, so nothing is told by them.
"""

import json
import os
import subprocess

KINDS = ["process", "mount", "link", "namespace", "nft table", "cgroup", "file"]
NAMESPACES = ["net", "mnt", "pid", "ipc", "uts", "user", "cgroup"]
CGROUPS = "/sys/fs/cgroup"
# Databases grow logs and lose them, and a server that is killed leaves its socket and its kept room.
COMES_AND_GOES = ("-wal", "-shm", ".new", ".sock", ".lock", "reserve")
# A node writes these when it has heard from its API for the first time.
OF_THE_NODE = ("api-store", "services.json")
# A database that cannot be read is kept for a look.
KEPT_ASIDE = ".corrupt-"


def pids():
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def command_of(pid):
    """The arguments of a process; none if it is gone."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().decode(errors="replace").split("\0")
    except OSError:
        return []


def namespaces_of(pid):
    found = set()
    for kind in NAMESPACES:
        try:
            found.add(os.readlink(f"/proc/{pid}/ns/{kind}"))
        except OSError:
            pass
    return found


class Machine:
    """Everything that one world has on this machine."""

    def __init__(self, home, data):
        self.home, self.data = home, data
        self.common = namespaces_of(os.getpid())
        self.seen_links = set()
        self.names = []

    def remember_links(self):
        """What the bridge of the pods has now."""
        for names in self.names:
            try:
                self.seen_links |= set(os.listdir(f"/sys/class/net/{names['bridge']}/brif"))
            except OSError:
                pass

    def learn_names(self):
        """What the machine calls the cgroups and the bridge of this data directory."""
        for root, below, files in os.walk(self.data):
            # What is mounted for containers may be the whole machine.
            below[:] = [name for name in below if name not in ("containers", "pods", "images")]
            if "place.json" in files:
                with open(os.path.join(root, "place.json"), encoding="utf-8") as file:
                    self.names.append(json.load(file)["names"])

    def listing(self):
        """Names by their kind."""
        found = {kind: set() for kind in KINDS}
        for pid in pids():
            self.list_process(pid, found)
        self.list_mounts(found)
        self.list_links(found)
        self.list_cgroups(found)
        for root, _, names in os.walk(self.data):
            below = os.path.relpath(root, self.data)
            passing = COMES_AND_GOES + OF_THE_NODE
            stays = [name for name in names if not name.endswith(passing) and KEPT_ASIDE not in name]
            found["file"] |= {os.path.join(below, name) for name in stays}
        return found

    def list_process(self, pid, found):
        command = " ".join(command_of(pid))
        if pid != os.getpid() and (os.path.basename(self.home) in command or self.is_in_cgroup(pid)):
            found["process"].add(f"{pid} {command}")
            found["namespace"] |= namespaces_of(pid) - self.common

    def is_in_cgroup(self, pid):
        try:
            with open(f"/proc/{pid}/cgroup", encoding="utf-8") as file:
                text = file.read()
        except OSError:
            return False
        return any(f"/{names['cgroup']}" in text for names in self.names)

    def list_mounts(self, found):
        with open("/proc/self/mountinfo", encoding="utf-8") as mounts:
            for line in mounts:
                if self.data in line:
                    root, place = line.split()[3:5]
                    found["mount"].add(place)
                    # A namespace that is pinned is mounted by its name.
                    if "[" in root:
                        found["namespace"].add(root)

    def list_links(self, found):
        ours = self.seen_links | {names["bridge"] for names in self.names}
        found["link"] = ours & set(os.listdir("/sys/class/net"))
        tables = subprocess.run(["nft", "list", "tables"], capture_output=True, text=True, check=False).stdout
        for names in self.names:
            ending = names["bridge"].replace("-", "_")
            found["nft table"] |= {line for line in tables.splitlines() if line.endswith(ending)}

    def list_cgroups(self, found):
        names = {names["cgroup"] for names in self.names}
        for root, below, _ in os.walk(CGROUPS):
            found["cgroup"] |= {os.path.join(root, name) for name in below if name in names}
            if root.count("/") > 5:
                below.clear()


class PidLimit:
    """A cgroup that lets a server have so many processes and threads."""

    def __init__(self, name):
        hierarchy = os.path.join(CGROUPS, "pids")
        self.path = os.path.join(hierarchy if os.path.isdir(hierarchy) else CGROUPS, name)

    def write(self, file, value):
        with open(os.path.join(self.path, file), "w", encoding="utf-8") as control:
            control.write(str(value))

    def take(self, pid):
        os.makedirs(self.path, exist_ok=True)
        self.write("cgroup.procs", pid)

    def allow_more(self, count):
        """So many more than there are."""
        with open(os.path.join(self.path, "pids.current"), encoding="utf-8") as file:
            self.write("pids.max", int(file.read()) + count)

    def lift(self):
        if os.path.isdir(self.path):
            self.write("pids.max", "max")

    def remove(self):
        try:
            os.rmdir(self.path)
        except OSError:
            pass

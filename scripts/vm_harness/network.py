"""Several machines on one emulated network, which loses, delays and cuts off what the first machine asks it to.

The first machine conducts: it runs the checks (scripts/vm-guest/cluster) and prints what is to be done to the others.
"""

import datetime
import heapq
import os
import random
import select
import shutil
import socket
import tempfile
import threading
import time

from .build import command_of_build
from .image import CACHE, Missing, quietly
from .machine import GUEST, REPOSITORY, make_work_disk

# How far the clock of each machine is off, in seconds: one is ahead, one behind.
SKEWS = [0, 90, -200]
# The last byte of a machine's address, of its hardware's too.
FIRST = 1
# Bytes of the largest frame.
FRAME = 65536


class Switch(threading.Thread):
    """Passes frames between machines. Each has a socket here, at which the emulator sends and receives frames, one a packet."""

    def __init__(self, count, seed):
        super().__init__(daemon=True)
        self.random = random.Random(seed)
        self.sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(count)]
        self.peers = []
        for one in self.sockets:
            one.bind(("127.0.0.1", 0))
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
                free.bind(("127.0.0.1", 0))
                self.peers.append(free.getsockname()[1])
        self.loss, self.delay, self.cut = 0.0, 0.0, set()
        self.waiting, self.count = [], 0

    def words(self, number):
        """What connects the machine of that number, for the emulator."""
        here = self.sockets[number].getsockname()[1]
        inet = "type=inet,{0}.host=127.0.0.1,{0}.port={1}"
        local, remote = (f"{name}.{inet.format(name, port)}" for name, port in (("local", self.peers[number]), ("remote", here)))
        device = f"virtio-net-pci,netdev=net,mac=52:54:00:00:00:{FIRST + number:02x},romfile="
        return ["-netdev", f"dgram,id=net,{local},{remote}", "-device", device]

    def run(self):
        while True:
            patience = max(0, self.waiting[0][0] - time.monotonic()) if self.waiting else 1
            readable, _, _ = select.select(self.sockets, [], [], patience)
            for one in readable:
                self.take(self.sockets.index(one), one.recv(FRAME))
            while self.waiting and self.waiting[0][0] <= time.monotonic():
                _, _, target, frame = heapq.heappop(self.waiting)
                if target not in self.cut:
                    self.sockets[target].sendto(frame, ("127.0.0.1", self.peers[target]))

    def take(self, source, frame):
        for target in range(len(self.sockets)):
            for_all = frame[0] & 1
            if target == source or not (for_all or frame[5] == FIRST + target):
                continue
            if {source, target} & self.cut or self.random.random() < self.loss:
                continue
            self.count += 1
            due = time.monotonic() + self.random.uniform(0, 2 * self.delay)
            heapq.heappush(self.waiting, (due, self.count, target, frame))


class Room:
    """All machines of one scenario."""

    def __init__(self, machine, work, scenario, names, seed):
        self.machine, self.work, self.scenario, self.names = machine, work, scenario, names
        self.switch = Switch(len(names), seed)
        self.running, self.threads, self.failed, self.over = {}, [], [], threading.Event()
        self.days = 0
        for name in names:
            quietly(["mke2fs", "-q", "-t", "ext4", "-L", "data", f"{work}/{name}.img", "1G"])

    def start(self, name):
        thread = threading.Thread(target=self.live, args=[name], daemon=True)
        self.threads.append(thread)
        thread.start()

    def live(self, name):
        """One life of a machine, to its end."""
        number = self.names.index(name)
        own = f"{self.work}/{name}-work.img"
        shutil.copy(f"{self.work}/work.img", own)
        now = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(days=self.days, seconds=SKEWS[number])
        more = [*self.switch.words(number), "-rtc", f"base={now:%Y-%m-%dT%H:%M:%S}"]
        disk = f"file={self.work}/{name}.img,format=raw,if=virtio,cache=writeback"
        command = f"python3 cluster {self.scenario} {name} {' '.join(self.names)}\n"
        watch = lambda line, process: self.hear(name, line, process)
        try:
            self.machine.run(command, "/cluster", own, [disk], watch=watch, more=more)
        except Missing as error:
            self.failed.append(str(error))
        if name == self.names[0]:
            self.over.set()

    def hear(self, name, line, process):
        self.running[name] = process
        word, _, rest = line.partition(" ")
        words = rest.split()
        print(f"{name}: {line}", flush=True)
        if word == "FAIL":
            self.failed.append(rest)
        elif word == "WEATHER":
            self.switch.loss, self.switch.delay = float(words[0]), float(words[1])
        elif word == "CUT":
            self.switch.cut.add(self.names.index(words[0]))
        elif word == "JOIN":
            self.switch.cut.discard(self.names.index(words[0]))
        elif word == "OFF":
            self.running[words[0]].kill()
        elif word == "ON":
            self.start(words[0])
        elif word == "DAYS":
            self.days = int(words[0])
        elif word == "OVER":
            self.over.set()

    def run(self, patience):
        self.switch.start()
        try:
            for name in self.names:
                self.start(name)
            if not self.over.wait(patience):
                self.failed.append(f"not over after {patience} s")
        finally:
            # Also where somebody ends this program. One that has not said a word yet is booted again, so once is not enough.
            end = time.monotonic() + 30
            while any(thread.is_alive() for thread in self.threads) and time.monotonic() < end:
                for process in list(self.machine.emulators):
                    process.kill()
                time.sleep(0.1)


SCENARIOS = {"nodes": ["api", "node-1", "node-2"], "certificates": ["api", "node-1", "node-2"], "etcd": ["etcd-1", "etcd-2", "etcd-3"]}


def network(machine, options):
    """An API and its nodes on three machines, then three API servers on an etcd of three."""
    seed = options.seed if options.seed is not None else random.randrange(1 << 32)
    program = options.binary or command_of_build(options.narrow)
    failed = []
    for scenario in options.scenario or list(SCENARIOS):
        print(f"vm: {scenario}, seed {seed}", flush=True)
        places = [(program, "pulselet"), (f"{GUEST}/cluster", "cluster"), (f"{REPOSITORY}/scripts/fault_harness/client.py", "client.py")]
        if scenario == "etcd":
            if not shutil.which("etcd"):
                raise Missing("it has no etcd; install etcd-server")
            places.append((os.path.realpath(shutil.which("etcd")), "etcd"))
        with tempfile.TemporaryDirectory(dir=CACHE) as work:
            make_work_disk(f"{work}/work.img", places)
            room = Room(machine, work, scenario, SCENARIOS[scenario], seed)
            room.run(options.patience)
        failed += room.failed
    for failure in failed:
        print(f"vm: failed: {failure}")
    return len(failed) > 0

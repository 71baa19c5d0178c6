"""A server whose power is cut again and again."""

import json
import random
import subprocess
import tempfile
import threading

from .build import command_of_build
from .image import CACHE, quietly
from .machine import BOOTS, GUEST, LOST, REPOSITORY, make_work_disk


class Storm:
    """What a machine has acknowledged over all of its lives."""

    def __init__(self, seed):
        self.seed, self.random = seed, random.Random(seed)
        self.acknowledged = {"written": {}, "deleted": [], "pods": [], "images": {}}
        self.violations = []
        self.checked = self.lost = False
        self.count = 0

    def hear(self, line, machine, last):
        word, _, rest = line.partition(" ")
        if word in ("ACK", "ASK"):
            self.note(word, json.loads(rest))
            return
        print(line, flush=True)
        self.lost |= LOST in line
        if word == "VIOLATION":
            self.violations.append(rest)
            machine.kill()
        elif word == "CHECKED":
            self.checked = True
        elif word == "STORM" and not last:
            # Some cuts come while the first pods are made, some in the thick of it.
            threading.Timer(self.random.uniform(1, 30), machine.kill).start()

    def note(self, word, what):
        """A deletion that was only asked for may or may not have happened: nothing is known of that object any more."""
        known = self.acknowledged
        self.count += word == "ACK"
        if name := what.get("deleted"):
            known["written"].pop(name, None)
            if word == "ACK":
                known["deleted"].append(name)
        elif name := what.get("written"):
            known["written"][name] = what["value"]
        elif (name := what.get("pod")) and name not in known["pods"]:
            known["pods"].append(name)
        elif name := what.get("image"):
            known["images"][name] = what["text"]


class Disk:
    """A disk that keeps whatever it was given, or that loses, with the power, what it was not told to keep."""

    def __init__(self, work):
        self.data, self.volatile = f"{work}/data.img", f"{work}/volatile.qcow2"
        quietly(["mke2fs", "-q", "-t", "ext4", "-L", "data", self.data, "1G"])

    def drive(self, loses):
        if not loses:
            return f"file={self.data},format=raw,if=virtio,cache=none"
        # What is written to new clusters is found again only once the emulated disk was flushed.
        quietly(["qemu-img", "create", "-q", "-f", "qcow2", "-b", self.data, "-F", "raw", self.volatile])
        return f"file={self.volatile},format=qcow2,if=virtio,cache=writeback"

    def settle(self):
        """Keeps what was kept."""
        subprocess.run(["qemu-img", "check", "-q", "-r", "leaks", self.volatile], check=False, stderr=subprocess.DEVNULL)
        quietly(["qemu-img", "commit", "-q", self.volatile])


def power_cuts(machine, options):
    """A server on a disk that loses, with the power, what it was not told to keep; on a second one every other time, which
    keeps whatever it was given."""
    seed = options.seed if options.seed is not None else random.randrange(1 << 32)
    print(f"vm: power cuts, seed {seed}")
    storm = Storm(seed)
    programs = [options.binary or command_of_build(options.narrow), *options.other]
    places = [(program, f"programs/{number}") for number, program in enumerate(programs)]
    places += [(f"{GUEST}/storm", "storm"), (f"{REPOSITORY}/scripts/fault_harness/client.py", "faults")]
    with tempfile.TemporaryDirectory(dir=CACHE) as work:
        make_work_disk(f"{work}/work.img", places)
        disk = Disk(work)

        def live(number):
            """One life of the machine, to its cut."""
            print(f"vm: boot {number}", flush=True)
            last, loses = number == options.cuts, number % 2 == 0
            command = f"python3 storm {seed} {number}{' --last' if last else ''}\n"
            known = {"acknowledged": json.dumps(storm.acknowledged)}
            hear = lambda line, running: storm.hear(line, running, last)
            storm.checked = storm.lost = False
            machine.run(command, "/storm", f"{work}/work.img", [disk.drive(loses)], known, hear)
            if loses:
                disk.settle()

        for number in range(options.cuts + 1):
            for _ in range(BOOTS):
                live(number)
                if storm.checked or storm.violations or not storm.lost:
                    break
                print("vm: the emulator has lost the kernel, which is one more cut", flush=True)
            if storm.violations or not storm.checked:
                print(f"vm: broken after {number} cuts, seed {seed}: {storm.violations or 'the machine never came so far'}")
                return 1
    print(f"vm: {options.cuts} power cuts, {storm.count} acknowledged writes, {len(storm.acknowledged['images'])} images, nothing lost")
    return 0

"""A server whose power is cut again and again."""

import json
import random
import subprocess
import tempfile
import threading

from .build import command_of_build
from .image import CACHE, quietly
from .machine import GUEST, REPOSITORY, make_work_disk


class Storm:
    """What a machine has acknowledged over all of its lives."""

    def __init__(self, seed):
        self.seed, self.random = seed, random.Random(seed)
        self.acknowledged = {"written": {}, "deleted": [], "pods": [], "images": {}}
        self.violations = []
        self.checked = False
        self.count = 0

    def hear(self, line, machine, last):
        word, _, rest = line.partition(" ")
        if word in ("ACK", "ASK"):
            self.note(word, json.loads(rest))
            return
        print(line, flush=True)
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
        data, volatile = f"{work}/data.img", f"{work}/volatile.qcow2"
        quietly(["mke2fs", "-q", "-t", "ext4", "-L", "data", data, "1G"])
        for number in range(options.cuts + 1):
            print(f"vm: boot {number}", flush=True)
            last = number == options.cuts
            loses = number % 2 == 0
            disk = f"file={data},format=raw,if=virtio,cache=none"
            if loses:
                # What is written to new clusters is found again only once the emulated disk was flushed.
                quietly(["qemu-img", "create", "-q", "-f", "qcow2", "-b", data, "-F", "raw", volatile])
                disk = f"file={volatile},format=qcow2,if=virtio,cache=writeback"
            command = f"python3 storm {seed} {number}{' --last' if last else ''}\n"
            known = {"acknowledged": json.dumps(storm.acknowledged)}
            hear = lambda line, running, last=last: storm.hear(line, running, last)
            storm.checked = False
            machine.run(command, "/storm", f"{work}/work.img", [disk], known, hear)
            if loses:
                subprocess.run(["qemu-img", "check", "-q", "-r", "leaks", volatile], check=False, stderr=subprocess.DEVNULL)
                quietly(["qemu-img", "commit", "-q", volatile])
            if storm.violations or not storm.checked:
                print(f"vm: broken after {number} cuts, seed {seed}: {storm.violations or 'the machine never came so far'}")
                return 1
    print(f"vm: {options.cuts} power cuts, {storm.count} acknowledged writes, {len(storm.acknowledged['images'])} images, nothing lost")
    return 0

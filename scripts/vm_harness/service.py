"""The package as a service of systemd, over several boots of one machine."""

import os
import tempfile

from .build import command_of_build
from .image import CACHE, quietly
from .machine import GUEST, LOST, REPOSITORY, make_work_disk


class Boots:
    """What a machine says over several boots, each of which goes on where the last one ended."""

    def __init__(self):
        self.failed, self.ended, self.over = [], False, False

    def hear(self, line, machine):
        word, _, rest = line.partition(" ")
        if word in ("CHECK", "FAIL") or not word.startswith("[") or LOST in line:
            print(line, flush=True)
        if word == "FAIL":
            self.failed.append(rest)
        elif word == "CUT":
            self.ended = True
            machine.kill()
        elif word in ("REBOOT", "OVER"):
            self.ended, self.over = True, word == "OVER"


def systemd(machine, options):
    """The package on a machine with systemd: installed, run as a service, restarted, upgraded, rebooted, cut off, purged."""
    program = options.binary or command_of_build(options.narrow)
    boots = Boots()
    with tempfile.TemporaryDirectory(dir=CACHE) as work:
        environment = dict(os.environ, PULSELET_PACKAGE_COMPRESSION="none")
        quietly([f"{REPOSITORY}/scripts/package", "--binary", program, "--output", f"{work}/package"], env=environment)
        package = next(name for name in os.listdir(f"{work}/package") if name.endswith(".deb"))
        make_work_disk(f"{work}/work.img", [(f"{work}/package/{package}", "pulselet.deb"), (f"{GUEST}/service", "service")])
        # What is installed in one boot is there in the next.
        quietly(["qemu-img", "create", "-q", "-f", "qcow2", "-b", machine.image, "-F", "raw", f"{work}/root.qcow2"])
        machine.root_drive = f"file={work}/root.qcow2,format=qcow2,if=virtio,cache=writeback"
        while not boots.over:
            boots.ended = False
            machine.run("python3 service\n", "/work", f"{work}/work.img", watch=boots.hear)
            if not boots.ended:
                print("vm: the machine ended before it was done")
                return 1
    for failure in boots.failed:
        print(f"vm: failed: {failure}")
    return len(boots.failed) > 0

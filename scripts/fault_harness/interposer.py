"""A library between the servers and the C library: EIO from their files, and a wall clock that jumps.

Devices that fail on demand are not in every kernel, and the clock of a machine belongs to everybody on it.
"""

import mmap
import os
import struct
import subprocess

HERE = os.path.dirname(os.path.abspath(__file__))
# As struct control of interpose.c.
CONTROL = struct.Struct("<IIIIqQQ")


class Interposer:
    """What the servers of one world get; others are not touched."""

    def __init__(self, home, below):
        self.library = os.path.join(home, "interpose.so")
        self.path = os.path.join(home, "interpose.control")
        self.below = below
        source = os.path.join(HERE, "interpose.c")
        subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", self.library, source, "-ldl"], check=True)
        with open(self.path, "wb") as file:
            file.write(bytes(CONTROL.size))
        with open(self.path, "r+b") as file:
            self.page = mmap.mmap(file.fileno(), CONTROL.size)

    def environment(self):
        return {"LD_PRELOAD": self.library, "INTERPOSE_CONTROL": self.path, "INTERPOSE_BELOW": self.below}

    def errors(self, reads=0, writes=0, syncs=0):
        """From now on so many of a hundred calls fail."""
        struct.pack_into("<III", self.page, 4, reads, writes, syncs)

    def clock(self, seconds):
        """The wall clock is so much ahead, or behind."""
        struct.pack_into("<q", self.page, 16, seconds)

    def counts(self):
        """How often it was loaded, how many calls failed, how often another time was told."""
        loaded, _, _, _, _, failed, shifted = CONTROL.unpack(self.page[: CONTROL.size])
        return loaded, failed, shifted

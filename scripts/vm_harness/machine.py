"""An emulated machine: how it is booted, what it runs, what it reports."""

import lzma
import os
import shlex
import shutil
import subprocess
import tempfile
import threading

from .image import CACHE, Failed, Missing, install_programs, quietly, the_kernel, the_root

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
GUEST = os.path.join(REPOSITORY, "scripts/vm-guest")
# Emulators that run several processors at once sometimes lose a kernel that changes its own code: most often before anything
# else runs, but also when a first container has a cgroup made that the kernel was not prepared for.
BOOTS = 3
# Seconds after which a machine that has said nothing is taken for lost. Usually it takes ten.
BOOT_PATIENCE = 240
# What the kernel needs before it has a root.
FIRST_MODULES = ["virtio_pci", "virtio_blk"]
# By Debian's name for a processor: the emulator, its package, what it emulates, and where the kernel prints.
EMULATORS = {
    # Emulators of Debian 12 get one instruction wrong, at which newer kernels die.
    "amd64": ("qemu-system-x86_64", "qemu-system-x86", ["-cpu", "max,-cx16,-la57"], "ttyS0"),
    "arm64": ("qemu-system-aarch64", "qemu-system-arm", ["-machine", "virt", "-cpu", "cortex-a72"], "ttyAMA0"),
}
# What a machine says last of all, before its command's exit code.
ENDED = "machine: ended with "
# What a kernel says last that the emulator has lost. Nothing that is tested here makes a kernel say it.
LOST = "Kernel panic"
KERNEL_OPTIONS = [
    "quiet",
    "panic=-1",
    # A machine that waits for its turn on a busy one must not take its clock for broken.
    "no_timer_check",
    "systemd.show_status=false",
    "cgroup_no_v1=all",
    "lsm=landlock,yama,apparmor,bpf",
]


def print_line(line, _):
    print(line, flush=True)


class Machine:
    """What a machine is made of, and how it is run."""

    def __init__(self, options):
        self.options = options
        if os.uname().machine != "x86_64":
            raise Missing("machines are made on x86-64 alone")
        try:
            self.emulator, package, self.board, self.console = EMULATORS[options.arch]
            install_programs(self.emulator, package)
            self.kernel = the_kernel(options.kernel, options.arch)
            self.image, self.busybox = the_root(options.root == "systemd", options.arch)
        except (Failed, OSError, LookupError, StopIteration) as error:
            raise Missing(str(error)) from error
        self.release = os.listdir(f"{self.kernel}/lib/modules")[0]
        # The emulators that run, of which there are several on a network.
        self.emulators = set()
        self.root_drive = f"file={self.image},format=raw,if=virtio,snapshot=on"

    def initrd(self, work, command, directory, files):
        """Files that the kernel unpacks before anything runs; `files` are texts by name."""
        root = os.path.join(work, "initrd")
        machine = os.path.join(root, "machine")
        os.makedirs(machine)
        shutil.copy(self.busybox, f"{machine}/busybox")
        shutil.copy(f"{GUEST}/init", f"{root}/init")
        for name in ("second-init", "machine.service"):
            shutil.copy(f"{GUEST}/{name}", machine)
        modules = self.unpack_modules(machine)
        with open(f"{machine}/settings", "w", encoding="utf-8") as file:
            file.write(f"ROOT={self.options.root}\nWORK={shlex.quote(directory)}\nMODULES='{' '.join(modules)}'\n")
        for name, text in {"command": command, **files}.items():
            with open(f"{machine}/{name}", "w", encoding="utf-8") as file:
                file.write(text)
        names = subprocess.run(["find", "."], cwd=root, stdout=subprocess.PIPE, check=True).stdout
        packed = subprocess.run(["cpio", "-o", "-H", "newc", "--quiet"], cwd=root, input=names, stdout=subprocess.PIPE, check=True)
        path = os.path.join(work, "initrd.img")
        with open(path, "wb") as file:
            file.write(packed.stdout)
        return path

    def unpack_modules(self, directory):
        """Puts the first modules there; their names, in the order in which they are loaded."""
        modules = []
        for name in FIRST_MODULES:
            depends = ["modprobe", "-d", self.kernel, "-S", self.release, "--show-depends", name]
            for line in quietly(depends).splitlines():
                path = line.split()[1] if line.startswith("insmod") else None
                module = os.path.basename(path or "").removesuffix(".xz")
                if path and module not in modules:
                    modules.append(module)
                    opened = lzma.open(path) if path.endswith(".xz") else open(path, "rb")
                    with opened as packed, open(f"{directory}/{module}", "wb") as plain:
                        shutil.copyfileobj(packed, plain)
        return modules

    def command(self, initrd, disks, more):
        """The emulator's command line."""
        options = self.options
        line = [self.emulator, "-accel", options.accel, *self.board]
        line += ["-m", str(options.memory), "-smp", str(options.cpus), "-display", "none", "-no-reboot", "-nodefaults", "-serial", "stdio"]
        said = " ".join([f"console={self.console}", *KERNEL_OPTIONS])
        line += ["-kernel", f"{self.kernel}/vmlinuz", "-initrd", initrd, "-append", said]
        modules = f"file={self.kernel}/modules.img,format=raw,if=virtio,readonly=on"
        for drive in [self.root_drive, modules, *disks]:
            line += ["-drive", drive]
        return line + list(more)

    def run(self, command, directory, work_disk=None, disks=(), files=None, watch=print_line, more=()):
        """Boots a machine and runs a command in it. Returns its exit code; None if it never came to report one. `watch` is
        called with each line that the machine prints and a way to cut its power; `more` are words for the emulator."""
        with tempfile.TemporaryDirectory(dir=CACHE) as work:
            initrd = self.initrd(work, command, directory, files or {})
            disks = list(disks)
            if work_disk:
                disks.append(f"file={work_disk},format=raw,if=virtio,cache=unsafe")
            line = self.command(initrd, disks, more)
            for _ in range(BOOTS):
                is_up, said = self.boot(line, watch)
                if is_up:
                    break
                print("vm: the emulator failed before the machine was up; once more", flush=True)
            else:
                raise Missing(f"no machine boots here, after {BOOTS} tries: {' / '.join(said)}")
            codes = [text.removeprefix(ENDED) for text in said if text.startswith(ENDED)]
            return int(codes[0]) if codes else None

    def boot(self, line, watch):
        """Runs a machine until it ends. Returns whether it was ever up, and what it said last."""
        machine = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
        self.emulators.add(machine)
        late = [threading.Timer(patience, machine.kill) for patience in (BOOT_PATIENCE, self.options.patience)]
        for timer in late:
            timer.start()
        said, is_up = [], False
        try:
            for text in machine.stdout:
                text = text.rstrip("\r\n")
                # All that kernels and emulators say begins like that.
                if not is_up and text and not text.startswith(("[", self.emulator)):
                    is_up = True
                    late[0].cancel()
                said = [*said[-9:], text[:200]]
                watch(text, machine)
        finally:
            for timer in late:
                timer.cancel()
            machine.kill()
            machine.wait()
            self.emulators.discard(machine)
        return is_up, said


def make_work_disk(path, files):
    """A disk with files at their paths below its root; programs without what only a debugger reads."""
    with tempfile.TemporaryDirectory(dir=CACHE) as staging:
        size = 0
        for source, place in files:
            place = os.path.join(staging, place.lstrip("/"))
            os.makedirs(os.path.dirname(place), exist_ok=True)
            if os.path.isdir(source):
                shutil.copytree(source, place, symlinks=True)
            else:
                shutil.copy(source, place)
                with open(source, "rb") as file:
                    if file.read(4) == b"\x7fELF":
                        # Those of another processor stay as they are.
                        subprocess.run(["strip", "--strip-debug", place], check=False, stderr=subprocess.DEVNULL)
        for directory, _, names in os.walk(staging):
            size += sum(os.lstat(os.path.join(directory, name)).st_size + 8192 for name in names)
        quietly(["mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-L", "work", "-d", staging, path, f"{(size >> 20) + 128}M"])

"""Kernels and disks of emulated machines, made of Debian's packages once and kept."""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile

CACHE = os.environ.get("PULSELET_VM_CACHE", os.path.expanduser("~/.cache/pulselet-vm"))
# Programs of this machine, and the packages that have them.
PROGRAMS = {
    "qemu-img": "qemu-utils",
    "debootstrap": "debootstrap",
    "cpio": "cpio",
    "modprobe": "kmod",
    "mke2fs": "e2fsprogs",
    "debugfs": "e2fsprogs",
    "busybox": "busybox-static",
    "strip": "binutils",
}
# What tests want of a machine, beside the smallest Debian.
PACKAGES = [
    "apparmor",
    "busybox-static",
    "containernetworking-plugins",
    "iproute2",
    "iptables",
    "kmod",
    "nftables",
    "procps",
    "python3-minimal",
    "libpython3-stdlib",
]
# What every Debian has, for roots that are only unpacked.
ESSENTIAL = ["base-files", "base-passwd", "bash", "coreutils", "dash", "diffutils", "findutils", "grep", "hostname", "libc-bin", "mount", "sed", "tar", "util-linux"]
# What a machine has besides that runs services.
SYSTEMD = ["dbus", "libpam-systemd", "systemd", "systemd-sysv"]
# Small, and with everything that machines in clouds have.
KERNEL = "linux-image-cloud"
# The architecture whose programs this machine can run.
NATIVE = "amd64"
# Changes when the image has to be made anew.
IMAGE_VERSION = 2
IMAGE_SIZE = "1536M"
# Directories of a Debian root that no test looks at.
NEEDLESS = ["usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info", "var/cache/apt", "var/lib/apt/lists"]


class Missing(Exception):
    """This machine cannot emulate another."""


class Failed(Exception):
    """A command failed."""


def quietly(command, **options):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **options)
    if done.returncode != 0:
        raise Failed(f"{shlex.join(command)} failed: {done.stdout.strip()[-600:]}")
    return done.stdout


def install_programs(emulator, package):
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    wanted = {**PROGRAMS, emulator: package}
    missing = sorted({package for program, package in wanted.items() if not shutil.which(program)})
    if not missing:
        return
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise Missing(f"it has no {', '.join(missing)}; install them, or run this as root on Debian")
    print(f"vm: installing {' '.join(missing)}", file=sys.stderr)
    quietly(["apt-get", "update", "-q"])
    quietly(["apt-get", "install", "-qy", "--no-install-recommends", *missing])


def kept(name, make):
    """A directory or file below the cache. What was made half is made again."""
    path = os.path.join(CACHE, name)
    if not os.path.exists(path):
        os.makedirs(CACHE, exist_ok=True)
        print(f"vm: making {path}", file=sys.stderr)
        with tempfile.TemporaryDirectory(dir=CACHE) as work:
            made = make(work)
            os.rename(made, path)
    return path


class Packages:
    """Packages of a release of Debian for an architecture, downloaded; nothing of them is installed."""

    def __init__(self, work, release, arch):
        self.work = work
        for name in ("lists/partial", "archives/partial"):
            os.makedirs(os.path.join(work, name))
        key = "/usr/share/keyrings/debian-archive-keyring.gpg"
        with open(f"{work}/sources.list", "w", encoding="utf-8") as file:
            file.write(f"deb [signed-by={key}] {mirror()} {release} main\n")
        places = {"Etc::SourceList": "sources.list", "Etc::SourceParts": "none", "State::Lists": "lists", "Cache": "."}
        self.options = [word for name, place in places.items() for word in ("-o", f"Dir::{name}={work}/{place}")]
        for setting in ("Dir::State::Status=/dev/null", f"APT::Architecture={arch}", f"APT::Architectures={arch}"):
            self.options += ["-o", setting]
        self.apt("update")

    def apt(self, *words):
        quietly(["apt-get", "-qy", *self.options, *words], cwd=self.work)

    def depends_of(self, package, prefixes):
        """The packages that one depends on whose names begin so. Newer kernels are several packages."""
        lines = quietly(["apt-cache", *self.options, "depends", package]).splitlines()
        names = [line.split("Depends: ")[1] for line in lines if line.startswith("  Depends: ")]
        return [name for name in names if name.startswith(tuple(prefixes))]

    def unpack(self, directory, root):
        """Unpacks everything that was downloaded there. Newer packages have no /lib, it is a link in a root; older ones have."""
        for name in ("bin", "sbin", "lib"):
            os.makedirs(f"{root}/usr/{name}")
            os.symlink(f"usr/{name}", f"{root}/{name}")
        unpack = 'dpkg-deb --fsys-tarfile "$1" | tar -x --keep-directory-symlink -C "$2"'
        for name in sorted(os.listdir(directory)):
            if name.endswith(".deb"):
                quietly(["sh", "-c", unpack, "sh", os.path.join(directory, name), root])


def make_kernel(release, arch):
    """A kernel of any release of Debian, with a disk of its modules."""

    def make(work):
        packages, kernel, made = Packages(work, release, arch), f"{KERNEL}-{arch}", f"{work}/kernel"
        newest = packages.depends_of(kernel, ["linux-image-"])
        names = newest + [name for one in newest for name in packages.depends_of(one, ["linux-base-", "linux-binary-", "linux-modules-"])]
        packages.apt("download", *(names or [kernel]))
        packages.unpack(work, made)
        version = os.listdir(f"{made}/lib/modules")[0]
        places = [f"{made}/boot/vmlinuz-{version}", f"{made}/lib/modules/{version}/vmlinuz"]
        os.rename(next(place for place in places if os.path.exists(place)), f"{made}/vmlinuz")
        quietly(["depmod", "-b", made, version])
        # A disk of its own, so that one root goes with every kernel.
        quietly(["mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-d", f"{made}/lib/modules", f"{made}/modules.img", "512M"])
        return made

    return make


def suite():
    with open("/etc/os-release", encoding="utf-8") as file:
        words = dict(line.strip().split("=", 1) for line in file if "=" in line)
    if words.get("ID") != "debian":
        raise Missing("machines are made of this machine's own release of Debian, and this is another system")
    return words["VERSION_CODENAME"]


def mirror():
    """Where this machine gets its own packages from."""
    targets = quietly(["apt-get", "indextargets", "--format", "$(CODENAME) $(REPO_URI)", "Created-By: Packages"])
    for line in targets.splitlines():
        codename, _, address = line.partition(" ")
        if codename == suite():
            return address
    raise Missing(f"apt names no place for packages of {suite()}: add one to its sources and run 'apt-get update'")


def disk_of(root, image):
    for name in NEEDLESS:
        shutil.rmtree(os.path.join(root, name), ignore_errors=True)
    for name in ("machine", "usr/lib/modules"):
        os.makedirs(os.path.join(root, name), exist_ok=True)
    quietly(["mke2fs", "-q", "-t", "ext4", "-L", "root", "-d", root, image, IMAGE_SIZE])
    return image


def make_image(packages):
    """A disk with a Debian root."""

    def make(work):
        if os.geteuid() != 0:
            raise Missing("making a Debian root needs root, once")
        root = os.path.join(work, "root")
        include = ",".join(packages)
        quietly(["debootstrap", "--variant=minbase", f"--include={include}", suite(), root, mirror()])
        return disk_of(root, f"{work}/image")

    return make


def make_foreign_image(arch):
    """The same for a processor that this machine is not: packages are unpacked, and none of their programs is run."""

    def make(work):
        if os.geteuid() != 0:
            raise Missing("making a Debian root needs root, once")
        packages, root = Packages(work, suite(), arch), f"{work}/root"
        packages.apt("install", "--download-only", "--no-install-recommends", *PACKAGES, *ESSENTIAL)
        packages.unpack(f"{work}/archives", root)
        for name in ("dev", "etc", "proc", "root", "run", "sys", "tmp"):
            os.makedirs(os.path.join(root, name), exist_ok=True)
        os.chmod(f"{root}/tmp", 0o1777)
        for name in ("passwd", "group"):
            shutil.copy(f"{root}/usr/share/base-passwd/{name}.master", f"{root}/etc/{name}")
        os.makedirs(f"{work}/made")
        shutil.copy(f"{root}/bin/busybox", f"{work}/made/busybox")
        disk_of(root, f"{work}/made/image")
        return f"{work}/made"

    return make


def the_kernel(release, arch):
    """The directory of an unpacked kernel of that release of Debian, with a disk of its modules."""
    return kept(f"kernel-{release}-{arch}-{IMAGE_VERSION}", make_kernel(release, arch))


def the_root(has_systemd, arch):
    """A disk with a Debian root, and a busybox for its processor."""
    if arch != NATIVE:
        made = kept(f"root-{suite()}-{arch}-{IMAGE_VERSION}", make_foreign_image(arch))
        return f"{made}/image", f"{made}/busybox"
    kind, more = ("systemd-", SYSTEMD) if has_systemd else ("", [])
    return kept(f"root-{suite()}-{kind}{IMAGE_VERSION}.img", make_image(PACKAGES + more)), shutil.which("busybox")

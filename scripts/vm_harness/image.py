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
    "qemu-system-x86_64": "qemu-system-x86",
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
# What a machine has besides that runs services.
SYSTEMD = ["dbus", "libpam-systemd", "systemd", "systemd-sysv"]
# Small, and with everything that machines in clouds have.
KERNEL = "linux-image-cloud-amd64"
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


def install_programs():
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    missing = sorted({package for program, package in PROGRAMS.items() if not shutil.which(program)})
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


def depends_of(apt, package, prefixes):
    """The packages that one depends on whose names begin so. Newer kernels are several packages."""
    lines = quietly(["apt-cache", *apt, "depends", package]).splitlines()
    names = [line.split("Depends: ")[1] for line in lines if line.startswith("  Depends: ")]
    return [name for name in names if name.startswith(tuple(prefixes))]


def make_kernel(release):
    """A kernel of any release of Debian, unpacked; nothing of that release is installed."""

    def make(work):
        for name in ("lists/partial", "archives/partial", "kernel/usr/lib"):
            os.makedirs(os.path.join(work, name))
        # Newer packages have no /lib: it is a link in a root.
        os.symlink("usr/lib", f"{work}/kernel/lib")
        key = "/usr/share/keyrings/debian-archive-keyring.gpg"
        with open(f"{work}/sources.list", "w", encoding="utf-8") as file:
            file.write(f"deb [signed-by={key}] {mirror()} {release} main\n")
        places = {"Etc::SourceList": "sources.list", "Etc::SourceParts": "none", "State::Lists": "lists", "Cache": "."}
        apt = [word for name, place in places.items() for word in ("-o", f"Dir::{name}={work}/{place}")]
        apt += ["-o", "Dir::State::Status=/dev/null"]
        quietly(["apt-get", "-q", *apt, "update"])
        newest = depends_of(apt, KERNEL, ["linux-image-"])
        names = newest + [name for package in newest for name in depends_of(apt, package, ["linux-base-", "linux-binary-", "linux-modules-"])]
        quietly(["apt-get", "-q", *apt, "download", *(names or [KERNEL])], cwd=work)
        for name in os.listdir(work):
            if name.endswith(".deb"):
                unpack = 'dpkg-deb --fsys-tarfile "$1" | tar -x --keep-directory-symlink -C "$2"'
                quietly(["sh", "-c", unpack, "sh", os.path.join(work, name), f"{work}/kernel"])
        version = os.listdir(f"{work}/kernel/lib/modules")[0]
        places = [f"{work}/kernel/boot/vmlinuz-{version}", f"{work}/kernel/lib/modules/{version}/vmlinuz"]
        os.rename(next(place for place in places if os.path.exists(place)), f"{work}/kernel/vmlinuz")
        quietly(["depmod", "-b", f"{work}/kernel", version])
        # A disk of its own, so that one root goes with every kernel.
        quietly(["mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-d", f"{work}/kernel/lib/modules", f"{work}/kernel/modules.img", "512M"])
        return f"{work}/kernel"

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


def make_image(packages):
    """A disk with a Debian root."""

    def make(work):
        if os.geteuid() != 0:
            raise Missing("making a Debian root needs root, once")
        root = os.path.join(work, "root")
        include = ",".join(packages)
        quietly(["debootstrap", "--variant=minbase", f"--include={include}", suite(), root, mirror()])
        for name in NEEDLESS:
            shutil.rmtree(os.path.join(root, name), ignore_errors=True)
        for name in ("machine", "usr/lib/modules"):
            os.makedirs(os.path.join(root, name), exist_ok=True)
        image = os.path.join(work, "image")
        quietly(["mke2fs", "-q", "-t", "ext4", "-L", "root", "-d", root, image, IMAGE_SIZE])
        return image

    return make


def the_kernel(release):
    """The directory of an unpacked kernel of that release of Debian, with a disk of its modules."""
    return kept(f"kernel-{release}-{IMAGE_VERSION}", make_kernel(release))


def the_root(has_systemd):
    """A disk with a Debian root."""
    kind, more = ("systemd-", SYSTEMD) if has_systemd else ("", [])
    return kept(f"root-{suite()}-{kind}{IMAGE_VERSION}.img", make_image(PACKAGES + more))

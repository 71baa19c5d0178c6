"""The tests of the built-in runtime, in an emulated machine."""

import os
import shlex
import tempfile

from .build import command_of_build, executables
from .image import CACHE, Failed
from .machine import GUEST, REPOSITORY, make_work_disk

# What an emulated machine has and that of CI may not: version 2 of cgroups, AppArmor, device rules by BPF.
BRIEF = [
    "app_armor::",
    "escapes::",
    "limits::",
    "pod_cgroups::",
    "oom_score::",
    "wounds::files::files_of_the_cgroups",
    "wounds::processes::",
    "network::a_port_of_the_host_leads_to_the_pod",
]
# Seconds after which a machine is taken for hung. On two idle processors it takes three minutes.
BRIEF_PATIENCE = 1200
# The packages whose tests are run.
PACKAGES = ["pulselet-runtime-oci", "pulselet-cgroup"]
# Machines that are lost in the middle of their work are booted so often.
LIVES = 2


def boundary(machine, options):
    """The tests of the runtime's library and against the kernel, and of cgroups."""
    built = [one for one in executables(PACKAGES, options.narrow) if one[0] in ("oci", "cgroup")]
    tests = [path for _, kind, is_test, path in built if is_test and kind in ("lib", "test")]
    programs = [path for _, kind, is_test, path in built if kind == "bin" and not is_test]
    if not tests or not programs:
        raise Failed("cargo has built no tests of the runtime")
    places = [(path, os.path.relpath(path, REPOSITORY)) for path in tests + programs]
    places += [(f"{GUEST}/run-tests", "run-tests")]
    places += [(f"{REPOSITORY}/crates/testing/data", "crates/testing/data")]
    words = ["--at-once", str(options.at_once), "--retries", str(options.retries)]
    words += [word for text in options.only for word in ("--only", text)]
    words += [word for text in options.skip for word in ("--skip", text)]
    command = "export CI=true RUST_BACKTRACE=0\n" + shlex.join(["python3", "run-tests", *words, *tests]) + "\n"
    with tempfile.TemporaryDirectory(dir=CACHE) as work:
        for _ in range(LIVES):
            disk = f"{work}/work.img"
            make_work_disk(disk, places)
            code = machine.run(command, REPOSITORY, disk)
            if code is not None:
                return code
            print("vm: the machine was lost in the middle of its work", flush=True)
    return None


def brief(machine, options):
    """A part of them that takes minutes: what the machine of CI cannot try itself."""
    options.only, options.skip, options.at_once, options.retries = BRIEF, [], 3, 1
    options.patience = min(options.patience, BRIEF_PATIENCE)
    return boundary(machine, options)


def smoke(machine, options):
    """The least that Pulselet does wherever it runs."""
    program = options.binary or command_of_build(options.narrow)
    places = [(program, "pulselet"), (f"{GUEST}/smoke", "smoke"), (f"{REPOSITORY}/examples/web.yaml", "web.yaml")]
    with tempfile.TemporaryDirectory(dir=CACHE) as work:
        make_work_disk(f"{work}/work.img", places)
        return machine.run("python3 smoke /smoke/pulselet web.yaml\n", "/smoke", f"{work}/work.img")

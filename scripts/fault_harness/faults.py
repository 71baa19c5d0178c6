"""The list of faults. Each is done to a running world, and leaves its servers running, or about to be."""

import http.client
import os
import signal
import socket
import threading
import time

from .client import Violation, wait_for
from .machine import KEPT_ASIDE
from .world import CONFIG_MAPS, PODS, SUBJECTS

# How long a condemned container may live: its failures, its grace period, and a restart of the agent in between.
CONDEMNED_LIVES = 60
# What a damaged object holds, so that it can be found on the disk.
MARK = b"a-value-that-the-disk-will-damage"
FAULTS = {}


def fault(name, subjects=tuple(SUBJECTS)):
    """Puts a fault on the list, for these subjects."""

    def add(function):
        FAULTS[name] = (function, subjects)
        return function

    return add


def faults_of(subject):
    return [name for name, (_, subjects) in FAULTS.items() if subject in subjects]


# Servers that end, stop, or are away


@fault("kill")
def kill_server(world):
    world.end(signal.SIGKILL)
    world.start()


@fault("end")
def end_server(world):
    world.end(signal.SIGTERM)
    world.start()


@fault("stop")
def stop_server(world):
    stop(world, world.subject, world.random.uniform(0.5, 3))


def stop(world, role, seconds):
    world.servers[role].send_signal(signal.SIGSTOP)
    time.sleep(seconds)
    world.servers[role].send_signal(signal.SIGCONT)


@fault("kill-node", ["cri"])
def kill_node(world):
    world.end(signal.SIGKILL, "node")
    world.start("node")


@fault("api-away", ["node", "cri"])
def api_away(world):
    """Nobody needs the API to go on: also a condemned container dies without it."""
    before = world.one_process("victim")
    volume = wait_for("the victim's volume is known", lambda: world.volume("victim"), 30)
    if world.random.random() < 0.5:
        stop(world, "api", world.random.uniform(1, 6))
        return
    world.end(signal.SIGKILL, "api")
    if world.random.random() < 0.5:
        time.sleep(world.random.uniform(1, 6))
    else:
        condemn_in(world, volume, before)
    world.start("api")


@fault("runtime-away", ["cri"])
def runtime_away(world):
    """Nothing can be said about a container meanwhile; who is condemned dies when the runtime is back."""
    before = world.one_process("victim")
    volume = wait_for("the victim's volume is known", lambda: world.volume("victim"), 30)
    if world.random.random() < 0.3:
        stop(world, world.subject, world.random.uniform(1, 6))
        return
    world.end(signal.SIGKILL)
    sick = os.path.join(volume, "sick")
    if world.random.random() < 0.5:
        open(sick, "w", encoding="utf-8").close()
    time.sleep(world.random.uniform(1, 6))
    world.start()
    if os.path.exists(sick):
        condemn_in(world, volume, before)


# Disks


@fault("full-disk")
def full_disk(world):
    fill(world, world.random.uniform(1, 4))


def fill(world, seconds):
    path = os.path.join(world.disk, "filler")
    end = time.monotonic() + seconds
    with open(path, "wb", buffering=0) as file:
        while time.monotonic() < end:
            try:
                file.write(b"\0" * 65536)
            except OSError:
                time.sleep(0.001)
    os.remove(path)


@fault("full-disk-and-kill")
def full_disk_and_kill(world):
    path = os.path.join(world.disk, "filler")
    with open(path, "wb", buffering=0) as file:
        try:
            while True:
                file.write(b"\0" * 65536)
        except OSError:
            pass
    world.end(signal.SIGKILL)
    world.start()
    time.sleep(world.random.uniform(1, 3))
    os.remove(path)


@fault("bad-disk")
def bad_disk(world):
    """Some or all writes fail with EIO, or some reads do."""
    choices = [{"writes": 100, "syncs": 100}, {"writes": 30, "syncs": 30}, {"syncs": 100}, {"reads": 20}]
    world.interposer.errors(**world.random.choice(choices))
    time.sleep(world.random.uniform(1, 4))
    world.interposer.errors()


@fault("bad-disk-and-kill")
def bad_disk_and_kill(world):
    """It may not start on such a disk; it may not do harm either."""
    world.interposer.errors(**world.random.choice([{"writes": 100, "syncs": 100}, {"reads": 20}, {"reads": 100}]))
    world.end(signal.SIGKILL)
    world.start()
    time.sleep(world.random.uniform(1, 3))
    world.interposer.errors()


@fault("condemn-on-bad-disk")
def condemn_on_bad_disk(world):
    before = world.one_process("victim")
    volume = wait_for("the victim's volume is known", lambda: world.volume("victim"), 30)
    world.interposer.errors(writes=100, syncs=100)
    try:
        condemn_in(world, volume, before)
    finally:
        world.interposer.errors()


# Files that are lost or damaged


@fault("lost-database")
def lost_database(world):
    node = world.role("node")
    world.end(signal.SIGKILL, node)
    for name in ("node.db", "node.db-wal", "node.db-shm"):
        try:
            os.remove(os.path.join(world.place("node"), name))
        except FileNotFoundError:
            pass
    world.start(node)


@fault("flipped-database")
def flipped_database(world):
    """Bytes anywhere in the node's database are not what they were."""
    node = world.role("node")
    world.end(world.random.choice([signal.SIGKILL, signal.SIGTERM]), node)
    for name in os.listdir(world.place("node")):
        # Whoever has looked at them removes them, or they fill a small disk.
        if KEPT_ASIDE in name:
            os.remove(os.path.join(world.place("node"), name))
    path = os.path.join(world.place("node"), "node.db")
    flip(path, [world.random.random() for _ in range(world.random.choice([1, 10, 100]))])
    world.start(node)


def flip(path, places):
    """Flips bytes at these parts of a file."""
    with open(path, "r+b") as file:
        size = os.fstat(file.fileno()).st_size
        for place in places:
            at = int(place * size)
            file.seek(at)
            byte = file.read(1)
            file.seek(at)
            file.write(bytes([byte[0] ^ 0xFF]))


def asked(world, path):
    """An answer, if there is one."""
    status, answer = world.api.ask("GET", path)
    return status and (status, answer)


@fault("flipped-object")
def flipped_object(world):
    """One object of the API is damaged: it is an error, and the others are served."""
    api, path = world.role("api"), f"{CONFIG_MAPS}/damaged"
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "damaged"}, "data": {"n": MARK.decode()}}
    wait_for("an object is made", lambda: world.api.ask("POST", CONFIG_MAPS, body)[0] in (201, 409), 30)
    # A server that ends leaves one file that has everything.
    world.end(signal.SIGTERM, api)
    database = os.path.join(world.place("api"), "api.db")
    with open(database, "r+b") as file:
        content = file.read()
        at = content.find(MARK)
        if at < 0:
            raise Violation("an object is not in the database of a server that has ended")
        while at >= 0:
            file.seek(at)
            file.write(bytes(byte ^ 0xFF for byte in MARK))
            at = content.find(MARK, at + 1)
    world.start(api)
    world.is_up()
    if world.api.ask("GET", path)[0] == 200:
        raise Violation("a damaged object is served")
    status, listed = wait_for("objects are listed", lambda: asked(world, CONFIG_MAPS), 30)
    if status != 200 or not listed or "items" not in listed:
        raise Violation(f"objects beside a damaged one are not listed: {status}")
    wait_for("the damaged object is deleted", lambda: world.api.ask("DELETE", path)[0] in (200, 404), 30)


@fault("empty-life")
def empty_life(world):
    world.end(signal.SIGKILL)
    for root, below, names in os.walk(world.data):
        if os.path.basename(os.path.dirname(root)) == "containers":
            below.clear()
            if "life.json" in names:
                open(os.path.join(root, "life.json"), "wb").close()
    world.start()


@fault("garbled-record")
def garbled_record(world):
    """Nobody knows any more what this container was asked to be: it ends, and its pod gets another."""
    before = world.one_process("victim")
    status, pod = world.api.ask("GET", f"{PODS}/victim")
    world.end(signal.SIGKILL)
    if status == 200:
        for root, below, names in os.walk(world.data):
            if os.path.basename(os.path.dirname(root)) != "containers":
                continue
            below.clear()
            record = os.path.join(root, "container.json")
            if "container.json" in names and pod["metadata"]["uid"] in open(record, encoding="utf-8").read():
                with open(record, "r+b") as file:
                    file.write(b"\xff\x00\xff")
    world.start()
    if status == 200:
        wait_for("the container without a record is dead", lambda: not before & world.pids("victim"), CONDEMNED_LIVES)


# Limits and clocks


@fault("few-descriptors")
def few_descriptors(world):
    world.end(signal.SIGKILL)
    world.start(descriptors=world.random.choice([32, 48, 64]))
    end_what_is_left(world)


def end_what_is_left(world):
    """It may have ended by itself for want of something."""
    time.sleep(2)
    if world.server.poll() is None:
        world.end(signal.SIGKILL)
    world.start()


@fault("few-processes")
def few_processes(world):
    """No process and no thread can be begun any more, or only a few."""
    world.pid_limit.take(world.server.pid)
    world.pid_limit.allow_more(world.random.choice([0, 1, 3]))
    time.sleep(world.random.uniform(1, 5))
    world.pid_limit.lift()


@fault("few-processes-at-start")
def few_processes_at_start(world):
    world.end(signal.SIGKILL)
    world.start(processes=world.random.choice([1, 3, 8, 20]))
    end_what_is_left(world)
    world.pid_limit.lift()


@fault("clock-jump")
def clock_jump(world):
    """The wall clock is wrong for a while; also for a server that starts then, and for who is condemned then."""
    hour = 3600
    world.interposer.clock(world.random.choice([-12 * hour, -hour, -90, 90, hour, 12 * hour]))
    try:
        what = world.random.choice(["wait", "kill", "condemn"])
        if what == "kill":
            kill_server(world)
        elif what == "condemn":
            condemn(world)
        time.sleep(world.random.uniform(0.5, 3))
    finally:
        world.interposer.clock(0)


# Clients


@fault("slow-clients")
def slow_clients(world):
    clients = []
    for _ in range(20):
        try:
            connection = world.api.connect(5)
            connection.request("GET", f"{CONFIG_MAPS}?watch=true")
            clients.append(connection)
        except (OSError, http.client.HTTPException):
            pass
    time.sleep(world.random.uniform(1, 3))
    for connection in clients:
        connection.close()


@fault("dead-clients")
def dead_clients(world):
    for _ in range(50):
        try:
            with socket.create_connection(("127.0.0.1", world.port), 2) as client:
                client.send(b"\x16\x03\x01\xff")
        except OSError:
            pass


# Containers that must die, and those whose shim does not help


@fault("condemn")
def condemn(world):
    before = world.one_process("victim")
    volume = wait_for("the victim's volume is known", lambda: world.volume("victim"), 30)
    condemn_in(world, volume, before)


def condemn_in(world, volume, before):
    """Makes the victim fail its probe until its process is dead."""
    sick = os.path.join(volume, "sick")
    open(sick, "w", encoding="utf-8").close()
    try:
        wait_for("the condemned container is dead", lambda: not before & world.pids("victim"), CONDEMNED_LIVES)
    finally:
        os.remove(sick)


@fault("condemn-on-full-disk")
def condemn_on_full_disk(world):
    filler = threading.Thread(target=fill, args=(world, world.random.uniform(1, 4)))
    filler.start()
    try:
        condemn(world)
    finally:
        filler.join()


@fault("stuck-shim")
def stuck_shim(world):
    """A shim that is stopped runs no probe of its container, so that one is killed for its time-outs or by a delete."""
    before = world.one_process("victim")
    shim = world.shim_of("victim")
    if not shim:
        return
    os.kill(shim, signal.SIGSTOP)
    world.api.ask("DELETE", f"{PODS}/victim?gracePeriodSeconds=0")
    try:
        wait_for("the container of a stuck shim is dead", lambda: not before & world.pids("victim"), CONDEMNED_LIVES)
    finally:
        try:
            os.kill(shim, signal.SIGCONT)
        except OSError:
            pass
    world.is_up()
    wait_for("the victim is gone", lambda: world.api.ask("GET", f"{PODS}/victim")[0] == 404, 60)
    world.add_pod("victim")


@fault("lost-shim")
def lost_shim(world):
    before = world.one_process("victim")
    shim = world.shim_of("victim")
    if shim:
        os.kill(shim, signal.SIGKILL)
        wait_for("the container of a lost shim is dead", lambda: not before & world.pids("victim"), CONDEMNED_LIVES)

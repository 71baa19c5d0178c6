"""What goes on while faults are done: writes, watches, and pods that come and go."""

import http.client
import json
import random
import threading
import time
import urllib.parse

from .client import Violation
from .world import CONFIG_MAPS, PODS

# So many objects are there at a time; older ones are deleted.
KEPT = 200
# How long a pod that comes and goes may take to run before it goes all the same.
CHURN_PATIENCE = 6


class Load:
    """The work of several threads, and what they have seen."""

    def __init__(self, world):
        self.world, self.api = world, world.api
        self.acknowledged, self.deleted, self.watched = {}, set(), {}
        # Healthy pods that were ready once, and what was wrong with one later.
        self.ready, self.flips = set(), []
        self.churned = 0
        self.over, self.lock = threading.Event(), threading.Lock()
        work = (self.write, self.watch_objects, self.watch_pods, self.churn)
        self.threads = [threading.Thread(target=one) for one in work]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        for thread in self.threads:
            thread.join()

    def write(self):
        number = 0
        while not self.over.is_set():
            name = f"write-{number}"
            number += 1
            body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"n": "x" * 500}}
            status, answer = self.api.ask("POST", CONFIG_MAPS, body, timeout=5)
            if status == 201:
                with self.lock:
                    self.acknowledged[name] = int(answer["metadata"]["resourceVersion"])
            if number > KEPT:
                old = f"write-{number - KEPT}"
                if self.api.ask("DELETE", f"{CONFIG_MAPS}/{old}", timeout=5)[0] == 200:
                    with self.lock:
                        self.deleted.add(old)
            self.over.wait(0.05)

    def watch_objects(self):
        def see(item):
            metadata = item["metadata"]
            self.watched[metadata["name"]] = int(metadata["resourceVersion"])

        self.follow(CONFIG_MAPS, see)

    def watch_pods(self):
        self.follow(PODS, self.see_pod)

    def see_pod(self, pod):
        """A healthy pod that was ready stays ready, and its container is never restarted."""
        name = pod["metadata"]["name"]
        if not name.startswith("healthy-"):
            return
        status = pod.get("status", {})
        ready = any(it["type"] == "Ready" and it["status"] == "True" for it in status.get("conditions", []))
        restarts = sum(it.get("restartCount", 0) for it in status.get("containerStatuses", []))
        ending = "deletionTimestamp" in pod["metadata"]
        if ready:
            self.ready.add(name)
        if restarts or (name in self.ready and not ready and not ending):
            conditions = json.dumps(status.get("conditions"))
            self.flips.append(f"{name} is ready {ready} and was restarted {restarts} times: {conditions}")

    def follow(self, path, see):
        """Lists, and watches from there on; `see` gets every object."""
        position = None
        while not self.over.is_set():
            if position is None:
                status, listed = self.api.ask("GET", path, timeout=5)
                if status != 200 or listed is None:
                    self.over.wait(0.2)
                    continue
                position = listed["metadata"]["resourceVersion"]
                for item in listed["items"]:
                    see(item)
            position = self.watch(path, position, see)

    def watch(self, path, position, see):
        """Watches until the connection breaks; the position to go on from, or None to list anew."""
        query = urllib.parse.urlencode({"watch": "true", "resourceVersion": position, "timeoutSeconds": 20})
        try:
            connection = self.api.connect(5)
            connection.request("GET", f"{path}?{query}")
            answer = connection.getresponse()
            if answer.status != 200:
                self.over.wait(0.2)
                return None
            while line := answer.readline():
                event = json.loads(line)
                if event["type"] == "ERROR":
                    return None
                position = event["object"]["metadata"]["resourceVersion"]
                see(event["object"])
        except (OSError, http.client.HTTPException, ValueError):
            self.over.wait(0.05)
        return position

    def churn(self):
        """One pod at a time is made and removed, at whatever moment the faults leave for it."""
        dice = random.Random(f"{self.world.seed} churn")
        while not self.over.is_set():
            name = f"churn-{self.churned}"
            try:
                self.world.add_pod(name, probed=False)
            except Violation:
                continue
            self.churned += 1
            end = time.monotonic() + dice.uniform(0, CHURN_PATIENCE)
            while time.monotonic() < end and not self.world.pids(name) and not self.over.is_set():
                self.over.wait(0.1)
            self.world.machine.remember_links()
            grace = dice.choice([0, 1])
            while self.api.ask("DELETE", f"{PODS}/{name}?gracePeriodSeconds={grace}")[0] not in (200, 202, 404):
                if self.over.wait(0.2):
                    return
            self.over.wait(0.5)

    def check(self):
        """No acknowledged write is lost, no watch had a gap, no healthy pod flipped."""
        status, listed = self.api.ask("GET", CONFIG_MAPS, timeout=30)
        if status != 200 or listed is None:
            raise Violation("the objects cannot be listed at the end")
        there = {item["metadata"]["name"] for item in listed["items"]}
        lost = [name for name in self.acknowledged if name not in there and name not in self.deleted]
        # A deletion whose answer was lost has happened all the same.
        newest = max((int(name.split("-")[1]) for name in self.acknowledged), default=0)
        lost = [name for name in lost if int(name.split("-")[1]) > newest - KEPT + 10]
        if lost:
            raise Violation(f"acknowledged writes are lost: {lost[:5]}")
        if gap := [name for name in self.acknowledged if name not in self.watched]:
            raise Violation(f"watches have gaps: {gap[:5]}")
        self.check_flips()

    def check_flips(self):
        if self.flips:
            raise Violation(f"a healthy pod flipped: {self.flips[0]}")

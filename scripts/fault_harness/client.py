"""Requests to the API of a server that may be away."""

import base64
import http.client
import json
import os
import ssl
import tempfile
import time


class Violation(Exception):
    """Something that must hold does not."""


def wait_for(what, holds, patience):
    """Waits until something holds, and returns it."""
    end = time.monotonic() + patience
    while True:
        found = holds()
        if found:
            return found
        if time.monotonic() > end:
            raise Violation(f"not within {patience} s: {what}")
        time.sleep(0.05)


class Api:
    """Requests as the administrator, whose kubeconfig is in the data directory."""

    def __init__(self, data, port):
        self.data, self.port, self.context = data, port, None

    def credentials(self):
        text = open(os.path.join(self.data, "admin.kubeconfig"), encoding="utf-8").read()
        lines = dict(line.strip().split(": ", 1) for line in text.splitlines() if ": " in line)
        context = ssl.create_default_context(cadata=base64.b64decode(lines["certificate-authority-data"]).decode())
        context.check_hostname = False
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as pem:
            for name in ("client-certificate-data", "client-key-data"):
                pem.write(base64.b64decode(lines[name]).decode())
            pem.flush()
            context.load_cert_chain(pem.name)
        return context

    def connect(self, timeout):
        if self.context is None:
            self.context = self.credentials()
        return http.client.HTTPSConnection("127.0.0.1", self.port, context=self.context, timeout=timeout)

    def ask(self, method, path, body=None, timeout=10):
        """The status and the answer; None where there is no answer, or none that can be read."""
        try:
            connection = self.connect(timeout)
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            text = answer.read()
        except (OSError, http.client.HTTPException, ValueError, KeyError):
            return None, None
        try:
            # Health is told in plain words.
            return answer.status, json.loads(text) if text.startswith(b"{") else {}
        except ValueError:
            return answer.status, None

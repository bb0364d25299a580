"""A dp-controller alone, and how tests talk to it: HTTP by urllib, gRPC by python3-grpcio."""

import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import pathlib
import urllib.error
import urllib.request

from support import BIN, SOURCE, wait_for

PROTOS = SOURCE / "api" / "proto"


def planner_stubs(directory):
    """dp.v1.planner_pb2, compiled; None where protoc or the libraries are missing."""
    try:
        import google.protobuf  # noqa: F401
        import grpc  # noqa: F401
        subprocess.run(["protoc", f"-I{PROTOS}", f"--python_out={directory}",
                        "dp/v1/history.proto", "dp/v1/plan.proto", "dp/v1/planner.proto"], check=True)
    except (ImportError, FileNotFoundError):
        return None
    sys.path.insert(0, str(directory))
    return importlib.import_module("dp.v1.planner_pb2")


class Answer:
    def __init__(self, code, headers, body):
        self.code, self.headers, self.body = code, headers, body

    def json(self):
        return json.loads(self.body)


class Controller:
    def __init__(self, *arguments):
        self.directory = tempfile.TemporaryDirectory(prefix="dpc")
        root = pathlib.Path(self.directory.name)
        self.log = open(root / "log", "w+", encoding="utf-8")
        self.process = subprocess.Popen(
            [BIN / "dp-controller", "--state-dir", root / "state", "--address-file", root / "addr",
             "--http-port", "0", "--http-address-file", root / "http", *arguments],
            stderr=self.log, env={**os.environ, "NO_COLOR": "1"})
        wait_for("the controller serves", lambda: (root / "addr").exists() or
                 self.process.poll() is not None)
        if self.process.poll() is not None:
            text = self.text()
            self.close()
            raise AssertionError(text)
        self.address = (root / "addr").read_text().strip()
        self.http = (root / "http").read_text().strip()

    def text(self):
        self.log.flush()
        self.log.seek(0)
        return self.log.read()

    def stop(self):
        """The exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=180)

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.log.close()
        self.directory.cleanup()

    def ask(self, verb, path, body=None, headers=None, timeout=120):
        """`body`: an object is sent as JSON, bytes as they are."""
        headers = dict(headers or {})
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
            headers.setdefault("Content-Type", "application/json")
        request = urllib.request.Request(f"http://{self.http}{path}", data=body, method=verb,
                                         headers=headers)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=timeout) as answer:
                return Answer(answer.status, answer.headers, answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, error.headers, error.read())

    def metrics(self):
        """Every value by its series, as Prometheus' own parser reads it."""
        from prometheus_client.parser import text_string_to_metric_families
        text = self.ask("GET", "/metrics").body.decode()
        return {(sample.name, *sorted(sample.labels.items())): sample.value
                for family in text_string_to_metric_families(text) for sample in family.samples}

#!/usr/bin/env python3
"""An outside server, python3-grpcio, asked by the client runtime: how long each call says it waits."""
import concurrent.futures
import os
import subprocess
import sys
import unittest

try:
    import grpc
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

CLIENT = os.path.join(os.environ["DP_BIN"], "test_call_client")
# What takes long; the rest 10 s.
DEADLINES_S = {"ValidateJob": 60, "CheckpointJob": 130, "Plan": 300, "Simulate": 60}
LONG_S = 60


class Recorder(grpc.GenericRpcHandler):
    def __init__(self):
        self.waits_s = {}

    def service(self, details):
        name = details.method.rsplit("/", 1)[1]

        def answer(_, context):
            self.waits_s[name] = context.time_remaining()
            return b""
        return grpc.unary_unary_rpc_method_handler(answer)


class ForeignServer(unittest.TestCase):
    def test_each_method_has_the_deadline_that_its_work_needs(self):
        recorder = Recorder()
        server = grpc.server(concurrent.futures.ThreadPoolExecutor(1), handlers=[recorder])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        done = subprocess.run([CLIENT, f"127.0.0.1:{port}"], capture_output=True, text=True,
                              timeout=LONG_S, check=False)
        server.stop(None)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertGreater(len(recorder.waits_s), 8)
        for name, wait_s in recorder.waits_s.items():
            limit_s = DEADLINES_S.get(name, 10)
            # What is left on arrival: a slow machine may have used some, and gRPC rounds up to
            # whole seconds beyond 100.
            self.assertLessEqual(wait_s, limit_s + 1.1, name)
            self.assertGreater(wait_s, limit_s - 9, name)


if __name__ == "__main__":
    unittest.main()

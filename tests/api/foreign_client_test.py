#!/usr/bin/env python3
"""An outside client, python3-grpcio, against the server runtime: what it says on the wire, what it
does with clients that err, and how it stops."""
import importlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

try:
    import grpc
    import google.protobuf  # noqa: F401
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

SOURCE = os.environ["DP_SOURCE"]
SERVER = os.path.join(os.environ["DP_BIN"], "test_echo_server")
PROTOS = os.path.join(SOURCE, "api", "proto")
LONG_S = 60


def make_stubs(directory):
    names = [name.removesuffix(".proto") for name in os.listdir(os.path.join(PROTOS, "dp", "v1"))]
    try:
        subprocess.run(["protoc", f"-I{PROTOS}", f"--python_out={directory}"]
                       + [f"dp/v1/{name}.proto" for name in names], check=True)
    except FileNotFoundError:
        print("skipped: no protoc")
        sys.exit(77)
    sys.path.insert(0, directory)
    return [importlib.import_module(f"dp.v1.{name}_pb2") for name in ("controller", "agent")]


class Server:
    def __init__(self, listen="127.0.0.1:0"):
        self.process = subprocess.Popen([SERVER, listen], stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True)
        self.address = self.process.stdout.readline().strip()

    def stop(self):
        """The exit status and what was written to stderr."""
        self.process.send_signal(signal.SIGTERM)
        _, stderr = self.process.communicate(timeout=LONG_S)
        return self.process.returncode, stderr


class ForeignClient(unittest.TestCase):
    def setUp(self):
        self.server = Server()
        self.channel = grpc.insecure_channel(self.server.address, options=[
            ("grpc.max_send_message_length", -1), ("grpc.enable_http_proxy", 0)])

    def tearDown(self):
        self.channel.close()
        status, stderr = self.server.stop()
        self.assertEqual(status, 0)
        # Clients' mistakes are no news for the server's log.
        self.assertEqual(stderr, "")

    def method(self, kind, name, answer, service="dp.v1.Controller"):
        return getattr(self.channel, kind)(
            f"/{service}/{name}",
            request_serializer=lambda m: m if isinstance(m, bytes) else m.SerializeToString(),
            response_deserializer=answer.FromString)

    def get_job(self, request, **options):
        if isinstance(request, str):
            request = controller.GetJobRequest(id=request)
        options.setdefault("timeout", LONG_S)
        return self.method("unary_unary", "GetJob", controller.Job)(request, **options)

    def refused(self, code, call, *args, **options):
        with self.assertRaises(grpc.RpcError) as caught:
            call(*args, **options)
        self.assertEqual(caught.exception.code(), code, caught.exception.details())
        return caught.exception

    def cancelled(self, least):
        """Waits until the server has noticed so many calls that ended early."""
        call = self.method("unary_unary", "GetVersion", controller.VersionInfo)
        deadline = time.monotonic() + LONG_S
        while call(controller.GetVersionRequest()).started_ns < least:
            self.assertLess(time.monotonic(), deadline)

    def test_a_unary_call(self):
        self.assertEqual(self.get_job("job-3").id, "job-3")

    def test_an_error_has_a_code_a_text_and_our_status(self):
        error = self.refused(grpc.StatusCode.NOT_FOUND, self.get_job, "missing")
        self.assertEqual(error.details(), 'no job "missing"')
        self.assertEqual(dict(error.trailing_metadata())["dp-status"], "NOT_FOUND")

    def test_a_long_text_is_cut_in_the_status_and_whole_beside_it(self):
        error = self.refused(grpc.StatusCode.RESOURCE_EXHAUSTED, self.get_job, "unschedulable")
        self.assertEqual(error.details(), "x" * 1000)
        trailers = dict(error.trailing_metadata())
        self.assertEqual(trailers["dp-status"], "UNSCHEDULABLE")
        self.assertEqual(trailers["dp-message-bin"], b"x" * 1796 + b"end.")

    def test_a_stream(self):
        call = self.method("unary_stream", "WatchJob", controller.JobEvent)
        events = call(controller.WatchJobRequest(id="a", after_step=10), timeout=LONG_S)
        self.assertEqual([event.step.step for event in events], list(range(1, 11)))

    def test_a_session(self):
        call = self.method("stream_stream", "Session", agent.ControllerMessage,
                           service="dp.v1.AgentService")
        beats = [agent.AgentMessage(heartbeat=agent.Heartbeat(sequence=i)) for i in range(1, 13)]
        acks = [answer.ack.sequence for answer in call(iter(beats), timeout=LONG_S)]
        self.assertEqual(acks, list(range(1, 13)))

    def test_an_unknown_method_is_unimplemented_at_once(self):
        for service, name in (("dp.v1.Controller", "Nothing"), ("no.Such", "GetJob")):
            call = self.method("unary_unary", name, controller.Job, service=service)
            error = self.refused(grpc.StatusCode.UNIMPLEMENTED, call,
                                 controller.GetJobRequest(), timeout=LONG_S)
            self.assertIn(f"/{service}/{name}", error.details())

    def test_a_call_without_a_message_is_invalid(self):
        call = self.method("stream_unary", "GetJob", controller.Job)
        error = self.refused(grpc.StatusCode.INVALID_ARGUMENT, call, iter([]), timeout=LONG_S)
        self.assertIn("no message", error.details())

    def test_bytes_that_are_no_request_are_invalid(self):
        self.refused(grpc.StatusCode.INVALID_ARGUMENT, self.get_job, b"\x0a\xff")

    def test_a_message_over_the_limit_is_refused_and_the_next_one_served(self):
        call = self.method("unary_unary", "SubmitJob", controller.Job)
        request = controller.SubmitJobRequest(job_toml=bytes(4 << 20))
        self.refused(grpc.StatusCode.RESOURCE_EXHAUSTED, call, request, timeout=LONG_S)
        # Small on the wire, over the limit once it is unpacked.
        self.refused(grpc.StatusCode.RESOURCE_EXHAUSTED, call, request, timeout=LONG_S,
                     compression=grpc.Compression.Gzip)
        request = controller.SubmitJobRequest(job_toml=b"\0" * 100000)
        answer = call(request, timeout=LONG_S, compression=grpc.Compression.Gzip)
        self.assertEqual(answer.job_toml, request.job_toml)

    def test_metadata_of_12_kB_is_taken_and_of_20_kB_refused(self):
        self.assertEqual(self.get_job("a", metadata=[("x-token", "t" * 12000)]).id, "a")
        self.refused(grpc.StatusCode.RESOURCE_EXHAUSTED, self.get_job, "a",
                     metadata=[("x-token", "t" * 20000)])
        # That costs the library its connection, not the server.
        self.channel.close()
        self.channel = grpc.insecure_channel(self.server.address)
        self.assertEqual(self.get_job("b").id, "b")

    def test_a_deadline_is_noticed_by_the_server(self):
        self.get_job("a")  # the server is there
        self.refused(grpc.StatusCode.DEADLINE_EXCEEDED, self.get_job, "never", timeout=3)
        self.cancelled(1)

    def test_a_cancelled_stream_is_noticed_by_the_server(self):
        call = self.method("unary_stream", "WatchJob", controller.JobEvent)
        events = call(controller.WatchJobRequest(id="forever", after_step=1))
        next(events)
        events.cancel()
        self.cancelled(1)

    def test_a_client_that_pings_as_often_as_agents_may_keeps_its_idle_stream(self):
        # Servers that keep gRPC's defaults hang up on the third such ping: "Too many pings".
        with grpc.insecure_channel(self.server.address, options=[
                ("grpc.enable_http_proxy", 0), ("grpc.keepalive_time_ms", 5000),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.http2.max_pings_without_data", 0)]) as channel:
            events = channel.unary_stream(
                "/dp.v1.Controller/WatchJob",
                request_serializer=controller.WatchJobRequest.SerializeToString,
                response_deserializer=controller.JobEvent.FromString)(
                    controller.WatchJobRequest(id="forever"), timeout=22)
            with self.assertRaises(grpc.RpcError) as caught:
                for _ in events:
                    pass
        # It ended by its own deadline, after four pings.
        self.assertEqual(caught.exception.code(), grpc.StatusCode.DEADLINE_EXCEEDED,
                         caught.exception.details())

    def test_a_client_that_dies_is_noticed_by_the_server(self):
        other = grpc.insecure_channel(self.server.address, options=[
            ("grpc.use_local_subchannel_pool", 1)])
        events = other.unary_stream(
            "/dp.v1.Controller/WatchJob",
            request_serializer=controller.WatchJobRequest.SerializeToString)(
                controller.WatchJobRequest(id="forever", after_step=1))
        next(events)
        other.close()
        self.cancelled(1)

    def test_what_is_not_http2_is_hung_up_on(self):
        host, port = self.server.address.rsplit(":", 1)
        for garbage in (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", os.urandom(1000)):
            with socket.create_connection((host, int(port)), LONG_S) as connection:
                connection.sendall(garbage)
                try:
                    while connection.recv(4096):
                        pass
                except ConnectionResetError:
                    pass
        self.assertEqual(self.get_job("a").id, "a")


class Stopping(unittest.TestCase):
    def test_open_streams_are_told_to_try_again(self):
        server = Server()
        with grpc.insecure_channel(server.address) as channel:
            events = channel.unary_stream(
                "/dp.v1.Controller/WatchJob",
                request_serializer=controller.WatchJobRequest.SerializeToString)(
                    controller.WatchJobRequest(id="forever", after_step=1))
            next(events)
            self.assertEqual(server.stop(), (0, ""))
            with self.assertRaises(grpc.RpcError) as caught:
                next(events)
            self.assertEqual(caught.exception.code(), grpc.StatusCode.UNAVAILABLE)
            self.assertIn("try again", caught.exception.details())

    def test_a_second_server_on_the_port_exits_with_6(self):
        first = Server()
        second = Server(first.address)
        self.assertEqual(second.process.wait(LONG_S), 6)
        self.assertIn("in use", second.process.stderr.read())
        second.process.stderr.close()
        second.process.stdout.close()
        self.assertEqual(first.stop(), (0, ""))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as stubs:
        controller, agent = make_stubs(stubs)
        unittest.main()

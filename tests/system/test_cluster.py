"""Descriptions of clusters: stored by name and version, and what nodes report of themselves."""

import concurrent.futures
import json
import os
import shutil
import signal
import subprocess
import tempfile
import unittest
import urllib.error
import urllib.request

from support import BIN, Client, Cluster, wait_for

LAB = """name = "lab"
accelerator = "H800-SXM"
nodes = 16
[[level]]
name = "leaf"
nodes = 4
[[level]]
name = "spine"
oversubscription = 2
"""
TOPOLOGY = """SwitchName=l1 Nodes=n[01-04]
SwitchName=l2 Nodes=n[05-07]   # one is broken
SwitchName=top Switches=l[1-2]
"""


class Daemons(Client):
    """A controller and agents that are started one by one, with what each is told."""

    def __init__(self):
        root = tempfile.mkdtemp(prefix="dpc")
        super().__init__(root, DPCTL_CONTROLLER=f"@{root}/address")
        self.processes = []
        self.controller = None

    def start(self, name, *args):
        log = open(self.root / f"{name}.log", "ab")
        process = subprocess.Popen([BIN / name, *map(str, args)], env=self.env, stderr=log,
                                   stdout=log)
        log.close()
        self.processes.append(process)
        return process

    def start_controller(self):
        for name in ("address", "http"):
            (self.root / name).unlink(missing_ok=True)
        self.controller = self.start(
            "dp-controller", "--state-dir", self.root / "controller", "--listen", "127.0.0.1:0",
            "--address-file", self.root / "address", "--http-port", "0", "--http-address-file",
            self.root / "http")
        wait_for("the controller serves", (self.root / "address").exists)

    def kill_controller(self):
        self.controller.send_signal(signal.SIGKILL)
        self.controller.wait(timeout=180)

    def start_agent(self, name, *args):
        (self.root / name).mkdir()
        # A profile, so that nothing is measured.
        return self.start("dp-worker", "--state-dir", self.root / name, "--name", name,
                          "--controller", f"@{self.root}/address", "--slots", "2", *args)

    def file(self, name, text):
        path = self.root / name
        path.write_text(text)
        return path

    def http(self, path, body=None):
        """(status, document) of a request."""
        address = (self.root / "http").read_text().strip()
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://{address}{path}", data=data,
                                         headers={"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=180) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def close(self):
        for process in reversed(self.processes):
            if process.poll() is None:
                process.terminate()
            process.wait(timeout=180)
        shutil.rmtree(self.root, ignore_errors=True)


class DaemonsTest(unittest.TestCase):
    def setUp(self):
        self.daemons = Daemons()
        self.addCleanup(self.daemons.close)
        self.daemons.start_controller()


class Stored(DaemonsTest):
    def test_what_is_applied_is_stored_once_and_changes_are_named(self):
        daemons = self.daemons
        path = daemons.file("lab.toml", LAB)
        self.assertIn("new: 16 hosts, 128 accelerators of h800",
                      daemons.dpctl("cluster", "apply", path).stdout)
        self.assertIn("unchanged, version 1", daemons.dpctl("cluster", "apply", path).stdout)
        path.write_text(LAB.replace("nodes = 16", "nodes = 32"))
        dry = daemons.dpctl("cluster", "apply", "--dry-run", path).stdout
        self.assertIn("nodes: 16 -> 32", dry)
        self.assertEqual(daemons.json("cluster", "show", "lab")["version"], 1)
        applied = daemons.json("cluster", "apply", path)
        self.assertEqual((applied["changed"], applied["cluster"]["version"]), (True, 2))
        self.assertEqual(applied["changes"], "nodes: 16 -> 32\n")
        shown = daemons.json("cluster", "show", "lab")
        self.assertEqual(shown["figures"]["ranks"], 256)
        self.assertEqual([level["groups"] for level in shown["figures"]["levels"]], [8, 1])
        self.assertEqual(shown["figures"]["levels"][1]["bandwidth"], 25e9)

    def test_clusters_survive_a_controller_that_is_killed(self):
        daemons = self.daemons
        for name in ("lab", "other"):
            daemons.dpctl("cluster", "apply",
                          daemons.file("c.toml", LAB.replace('"lab"', f'"{name}"')))
        before = daemons.json("cluster", "list")
        daemons.kill_controller()
        daemons.start_controller()
        self.assertEqual(daemons.json("cluster", "list"), before)
        self.assertIn("version 1 is deleted", daemons.dpctl("cluster", "delete", "lab").stdout)
        daemons.kill_controller()
        daemons.start_controller()
        names = [cluster["name"] for cluster in daemons.json("cluster", "list")["clusters"]]
        self.assertEqual(names, ["other"])
        self.assertIn("stored are other", daemons.dpctl("cluster", "show", "lab", check=4).stderr)
        daemons.dpctl("cluster", "delete", "lab", check=4)

    def test_a_plan_is_made_for_a_stored_cluster(self):
        daemons = self.daemons
        daemons.dpctl("cluster", "apply", daemons.file("lab.toml", LAB))
        question = ("plan", "--model", "deepseek-v2-lite", "--cluster")
        stored = daemons.json(*question, "lab")
        from_file = daemons.json(*question, "lab.toml")
        self.assertEqual(stored["chosen"], from_file["chosen"])
        refused = daemons.dpctl(*question, "labs", check=4).stderr
        self.assertIn("no cluster is called", refused)

    def test_a_topology_is_sent_with_what_it_says(self):
        daemons = self.daemons
        daemons.file("topology.conf", TOPOLOGY)
        path = daemons.file("t.toml", 'name = "t"\naccelerator = "h100"\n'
                                      'topology = "topology.conf"\n')
        daemons.dpctl("cluster", "apply", path)
        (daemons.root / "topology.conf").unlink()
        shown = daemons.dpctl("cluster", "show", "t").stdout
        self.assertIn('hosts = "n[01-07]"', shown)
        self.assertIn('groups = "4,3"', shown)
        # What is shown can be applied again as it is.
        again = daemons.file("again.toml", shown)
        self.assertIn("unchanged", daemons.dpctl("cluster", "apply", again).stdout)

    def test_a_plan_places_ranks_on_the_hosts_of_the_topology(self):
        daemons = self.daemons
        daemons.file("topology.conf", TOPOLOGY)
        path = daemons.file("t.toml", 'accelerator = "h100"\ntopology = "topology.conf"\n'
                                      'hosts = "n[01-02,05-06]"\n')
        question = ("plan", "--model", "qwen3-30b-a3b", "--cluster", path, "--global-batch", 512)
        fabric = daemons.json(*question, "--map")
        self.assertEqual({rank["node"] for rank in fabric["ranks"]}, {"n01", "n02", "n05", "n06"})
        chosen = daemons.json(*question)["chosen"]
        replicas = chosen["data"] * chosen.get("tensor", 1) * chosen.get("context", 1)
        self.assertEqual(sum(fabric["fabric"]["hops_by_level"]),
                         (chosen["pipeline"] - 1) * replicas)
        lines = daemons.dpctl(*question, "--export", "openmpi").stdout.splitlines()
        self.assertEqual(lines, [f"rank {rank['rank']}={rank['node']} slot={rank['slot']}"
                                 for rank in fabric["ranks"]])
        self.assertEqual(len({(rank["node"], rank["slot"]) for rank in fabric["ranks"]}), 32)

    def test_files_that_are_wrong_say_where(self):
        daemons = self.daemons
        path = daemons.file("w.toml", 'accelerator = "h10"\nnodes = 1\n')
        self.assertIn("w.toml:1:15", daemons.dpctl("cluster", "apply", path, check=3).stderr)
        daemons.dpctl("cluster", "apply", "nothing.toml", check=4)
        daemons.dpctl("cluster", "apply", check=2)
        daemons.dpctl("cluster", "delete", check=2)
        daemons.dpctl("cluster", "list", "x", check=2)
        daemons.dpctl("cluster", "frobnicate", check=2)
        bad = daemons.file("n.toml", LAB.replace('"lab"', '"a b"'))
        self.assertIn("cannot be a cluster's name",
                      daemons.dpctl("cluster", "apply", bad, check=3).stderr)
        this = daemons.file("this.toml", LAB.replace('"lab"', '"this"'))
        daemons.dpctl("cluster", "apply", this, check=3)

    def test_the_same_over_http(self):
        daemons = self.daemons
        status, answer = daemons.http("/v1/clusters", {"cluster_toml": LAB})
        self.assertEqual((status, answer["cluster"]["version"]), (200, 1))
        status, answer = daemons.http("/v1/clusters")
        self.assertEqual([c["name"] for c in answer["clusters"]], ["lab"])
        status, answer = daemons.http("/v1/clusters/lab")
        self.assertIn('accelerator = "h800"', answer["cluster_toml"])
        self.assertEqual(daemons.http("/v1/clusters/nope")[0], 404)
        for wrong in ("", "name = 1", "\u0000", "[[level]]\n" * 50, "nodes = " + "9" * 400,
                      'accelerator = "h100"\nnodes = 2\ntopology = "/etc/passwd"\n',
                      'accelerator = "h100"\nhosts = "n[0-16000],m[0-16000]"\n'):
            status, answer = daemons.http("/v1/clusters", {"cluster_toml": wrong})
            self.assertEqual(status, 400, msg=wrong[:40])
        self.assertEqual(daemons.http("/v1/clusters/lab/delete", {})[0], 200)
        self.assertEqual(daemons.http("/v1/clusters")[1]["clusters"], [])

    def test_changes_that_arrive_at_once_build_on_each_other(self):
        daemons = self.daemons
        texts = [LAB.replace("nodes = 16", f"nodes = {nodes}") for nodes in range(8, 40, 4)]
        with concurrent.futures.ThreadPoolExecutor(len(texts)) as pool:
            answers = list(pool.map(
                lambda text: daemons.http("/v1/clusters", {"cluster_toml": text}), texts))
        self.assertEqual({status for status, _ in answers}, {200})
        versions = sorted(answer["cluster"]["version"] for _, answer in answers)
        self.assertEqual(versions, list(range(1, len(texts) + 1)))
        last = max(answers, key=lambda answer: answer[1]["cluster"]["version"])[1]["cluster"]
        self.assertEqual(daemons.json("cluster", "show", "lab")["cluster_toml"],
                         last["cluster_toml"])

    def test_without_a_controller_files_can_still_be_looked_at(self):
        daemons = self.daemons
        path = daemons.file("lab.toml", LAB)
        daemons.kill_controller()
        self.assertIn("16 hosts with 128 accelerators of h800 in 16 scale-up domains, 4 groups of "
                      "level leaf, 1 group of level spine",
                      daemons.dpctl("cluster", "show", path).stdout)
        daemons.dpctl("cluster", "list", check=8)


class Reported(DaemonsTest):
    def hardware(self):
        """A node's files as the kernel would have them: two adapters and two NUMA nodes."""
        root = self.daemons.root / "machine"
        texts = {"devices/system/node/node0/cpulist": "0-55",
                 "devices/system/node/node0/meminfo": "Node 0 MemTotal: 1048576 kB",
                 "devices/system/node/node1/cpulist": "56-111",
                 "bus/pci/devices/0000:1b:00.0/numa_node": "1"}
        for adapter, state in (("mlx5_0", "4: ACTIVE"), ("mlx5_1", "1: DOWN"),
                               ("mlx5_2", "4: ACTIVE"), ("mlx5_3", "4: ACTIVE")):
            at = f"class/infiniband/{adapter}"
            texts |= {f"{at}/ports/1/state": state, f"{at}/ports/1/rate": "200 Gb/sec (4X HDR)",
                      f"{at}/ports/1/link_layer": "InfiniBand", f"{at}/device/numa_node": "0"}
        for name, text in texts.items():
            path = root / "sys" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + "\n")
        return root

    def nodes_with_hardware(self, count):
        def seen():
            nodes = self.daemons.json("nodes")["nodes"]
            known = [node for node in nodes if (node.get("hardware") or {}).get("numa")]
            return nodes if len(known) == count else None
        return wait_for(f"{count} nodes have said what they have", seen)

    def test_nodes_report_accelerators_ports_and_numa_nodes(self):
        root = self.hardware()
        self.daemons.start_agent("gpu1", "--hardware-root", root, "--nvml", os.environ["DP_NVML"])
        hardware = self.nodes_with_hardware(1)[0]["hardware"]
        self.assertEqual([gpu["name"] for gpu in hardware["gpus"]], ["NVIDIA H100 80GB HBM3"] * 3)
        self.assertEqual([gpu["numa_node"] for gpu in hardware["gpus"]], [1, -1, -1])
        self.assertEqual([gpu["mig_instances"] for gpu in hardware["gpus"]], [0, 2, 0])
        self.assertEqual(hardware["gpus"][2]["error"], "memory: GPU is lost")
        self.assertEqual(hardware["driver_version"], "570.86.15")
        self.assertEqual([port["bytes_per_s"] for port in hardware["ports"]], [25e9] * 4)
        self.assertEqual([node["cpus"] for node in hardware["numa"]], ["0-55", "56-111"])
        # It is stored: another controller knows it before the agent is back.
        self.daemons.processes[-1].terminate()
        self.daemons.processes[-1].wait(timeout=180)
        self.daemons.kill_controller()
        self.daemons.start_controller()
        self.assertEqual(self.daemons.json("nodes")["nodes"][0]["hardware"], hardware)

    def test_the_connected_nodes_make_a_cluster(self):
        daemons = self.daemons
        self.assertIn("no node is connected", daemons.dpctl("cluster", "show", check=4).stderr)
        root = self.hardware()
        for name in ("gpu1", "gpu10", "gpu2"):
            daemons.start_agent(name, "--hardware-root", root, "--nvml", os.environ["DP_NVML"])
        daemons.start_agent("login", "--hardware-root", root)
        self.nodes_with_hardware(4)
        shown = daemons.json("cluster", "show", "this")
        figures = shown["figures"]
        self.assertEqual((shown["accelerator"], figures["nodes"], figures["ranks"]),
                         ("h100", 3, 9))
        self.assertEqual(figures["memory_bytes"], 85520809984)
        self.assertEqual(figures["scale_out_bandwidth"], 25e9)  # three ports up, three devices
        self.assertIn('hosts = "gpu[1-2,10]"', shown["cluster_toml"])
        self.assertIn('node "login" is left out', shown["warnings"])
        self.assertIn("split into instances count as whole: 3", shown["warnings"])
        self.assertRegex(daemons.dpctl("nodes").stdout, r"gpu10 .* 3 x NVIDIA H100 80GB HBM3 ")
        text = daemons.dpctl("cluster", "show").stdout
        path = daemons.file("live.toml", text.replace('name = "this"', 'name = "live"'))
        self.assertIn("new: 3 hosts", daemons.dpctl("cluster", "apply", path).stdout)


    def test_accelerators_that_are_not_known_ask_for_a_file(self):
        self.daemons.env["DP_FAKE_NVML"] = "other"
        self.daemons.start_agent("odd", "--hardware-root", self.hardware(), "--nvml",
                                 os.environ["DP_NVML"])
        self.nodes_with_hardware(1)
        refused = self.daemons.dpctl("cluster", "show", check=None)
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn('node "odd" has 3 x "NVIDIA L4"', refused.stderr)


class Local(unittest.TestCase):
    def test_the_local_cluster_is_one_of_cpus(self):
        cluster = Cluster(nodes=2, slots=2)
        self.addCleanup(cluster.close)
        cluster.up()
        shown = cluster.json("cluster", "show")
        self.assertEqual((shown["accelerator"], shown["figures"]["nodes"],
                          shown["figures"]["ranks_per_node"]), ("cpu", 2, 2))
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        # Two agents of two slots share one machine.
        self.assertAlmostEqual(shown["figures"]["memory_bytes"] / (memory / 4), 1, delta=0.05)


if __name__ == "__main__":
    unittest.main()

"""dpctl schedule: the commands and fields that others script, with figures from outside."""

import csv
import io
import json
import re
import unittest
import xml.dom.minidom

from support import SOURCE, Cluster

NAMES = {"gpipe", "1f1b", "interleaved", "interleaved-zb", "zb-h1", "zb-h2", "zb-v", "v-half",
         "v-half-late-w", "v-min", "chimera", "hanayo", "dualpipe", "dualpipev", "auto"}


class Schedule(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster()
        cls.addClassCleanup(cls.cluster.close)

    def schedule(self, verb, *args, check=0, **kwargs):
        return self.cluster.dpctl("schedule", verb, *args, check=check, **kwargs)

    def document(self, verb, *args, **kwargs):
        return json.loads(self.schedule(verb, *args, "-o", "json", **kwargs).stdout)

    def simulate(self, name, ranks, microbatches, *args):
        return self.document("simulate", "--schedule", name, "-P", ranks, "-M", microbatches, *args)

    def test_list_has_every_family(self):
        names = {row["name"] for row in self.document("list")["schedules"]}
        self.assertLessEqual(NAMES, names)

    def test_simulate_gives_the_published_figures(self):
        # P=8, M=16, a full stage of F=I=W=2: measured with the reference generators of
        # sail-sg/zero-bubble-pipeline-parallelism.
        full, half = "F=2,I=2,W=2", "F=1,I=1,W=1"
        for name, cost, makespan, own_span, peak in (
                ("1f1b", full, 138, 42, 8), ("interleaved", half, 117, 21, 11.5),
                ("zb-h1", full, 110, 14, 8), ("dualpipev", half, 110, 14, 8.5)):
            done = self.simulate(name, 8, 16, "--cost", cost)
            self.assertEqual(done["schema"], "dp.simulation/1")
            self.assertAlmostEqual(done["makespan"], makespan, msg=name)
            ranks = done["ranks"]
            self.assertAlmostEqual(max(r["own_span_bubble"] for r in ranks), own_span, msg=name)
            self.assertAlmostEqual(max(r["peak_activations"] for r in ranks), peak, msg=name)
            self.assertAlmostEqual(done["bubble_ratio"], 1 - 96 / makespan)
            for rank in ranks:
                self.assertAlmostEqual(rank["busy"] + rank["bubble"], makespan)
                self.assertAlmostEqual(sum(rank["bubble_by_cause"].values()), rank["bubble"])

    def test_the_critical_path_has_no_holes_but_messages(self):
        done = self.simulate("zb-h1", 8, 24, "--cost", "F=1,I=1.5,W=0.5", "--hop", 0.1)
        path = done["critical_path"]
        self.assertEqual((path[0]["cause"], path[0]["start"]), ("start", 0))
        self.assertAlmostEqual(path[-1]["end"], done["makespan"])
        for before, step in zip(path, path[1:]):
            gap = step["start"] - before["end"]
            self.assertAlmostEqual(gap, 0.1 if step["cause"] == "comm" else 0)
        self.assertGreater(done["simulate_s"], 0)
        self.assertEqual(done["actions"], 8 * 24 * 3)

    def test_messages_that_block_take_longer(self):
        # deepseek-ai/DualPipe's own placement of its commits takes 139 in this model.
        cost = ("--cost", "F=1,I=1,W=1,FB=3", "--hop", 0.25)
        free = self.simulate("dualpipe", 8, 40, *cost)
        blocking = self.simulate("dualpipe", 8, 40, *cost, "--p2p", "blocking")
        self.assertAlmostEqual(free["makespan"], 137)
        self.assertGreater(blocking["makespan"], 137)
        self.assertLess(blocking["makespan"], 139 * 1.01)
        at_once = self.simulate("dualpipe", 8, 40, *cost[:2], "--p2p", "blocking")
        self.assertAlmostEqual(at_once["makespan"], 126)

    def test_what_if_shows_the_difference(self):
        slow = self.simulate("1f1b", 4, 16, "--slow", "rank=3:1.5")
        self.assertEqual(slow["unchanged"]["makespan"], self.simulate("1f1b", 4, 16)["makespan"])
        self.assertEqual(slow["makespan"], self.simulate("1f1b", 4, 16, "--slow",
                                                         "rank=3:1.5x")["makespan"])
        # The slow rank is the bottleneck: 16 micro-batches of 4.5, and three stages on both sides.
        self.assertAlmostEqual(slow["makespan"], 16 * 4.5 + 3 * 3)
        link = self.simulate("1f1b", 4, 16, "--hop", 0.1, "--slow-link", "2-3:4x")
        self.assertGreater(link["makespan"], link["unchanged"]["makespan"])
        for args in (("--slow", "rank=9:1.5"), ("--slow-link", "0-9:2x"), ("--slow", "rank=1")):
            failed = self.schedule("simulate", "1f1b", "-P", 4, "-M", 8, *args, check=3)
            self.assertIn(args[0], failed.stderr)

    def test_auto_is_repeatable_and_not_worse_than_the_best_family(self):
        args = ("--cost", "F=1,I=1.2,W=0.8", "--slow", "rank=1:1.4", "--moves", 200)
        one = self.simulate("auto", 4, 8, *args)
        two = self.simulate("auto", 4, 8, *args)
        self.assertEqual(one["ranks"], two["ranks"])
        self.assertLessEqual(one["auto"]["moves"], 200)
        self.assertLessEqual(one["makespan"], one["auto"]["best_family_makespan"] * (1 + 1e-9))
        self.assertGreaterEqual(one["makespan"] * (1 + 1e-9), one["auto"]["bound"])
        odd = self.simulate("auto", 5, 7, "--placement", "bidirectional", "--moves", 50)
        self.assertEqual((odd["pipeline"], odd["stages"]), (5, 5))

    def test_auto_minimises_what_it_is_told_to(self):
        # Zero bubble (arXiv 2401.10241) within each rank's span takes 2P-1 micro-batches' memory;
        # the makespan has P-1 forwards more, whatever the order.
        common = ("--cost", "F=1,I=1,W=1", "--placement", "straight", "-v", 1)
        span = self.simulate("auto", 4, 12, *common, "--objective", "span")
        self.assertEqual((span["request"]["objective"], span["auto"]["objective"]),
                         ("span", "span"))
        self.assertAlmostEqual(span["auto"]["longest_span"], 36)
        self.assertAlmostEqual(span["auto"]["best_family_longest_span"], 36)
        self.assertAlmostEqual(span["auto"]["bound"], 36)
        self.assertEqual({r["own_span_bubble"] for r in span["ranks"]}, {0})
        plain = self.simulate("auto", 4, 12, *common)
        self.assertEqual(plain["auto"]["objective"], "makespan")
        self.assertAlmostEqual(plain["auto"]["makespan"], 39)
        self.assertIn("--objective", self.schedule("simulate", "1f1b", "-P", 4, "-M", 8,
                                                   "--objective", "span", check=2).stderr)
        self.assertIn("the longest own span is 36 s", self.schedule(
            "simulate", "auto", "-P", 4, "-M", 12, *common, "--objective", "span").stdout)

    def test_auto_keeps_its_cap(self):
        capped = self.simulate("auto", 4, 12, "--activation-bytes", 1000, "--weight-bytes", 1000,
                               "--memory-cap", 4000, "--moves", 100)
        self.assertLessEqual(max(r["peak_bytes"] for r in capped["ranks"]), 4000)
        failed = self.schedule("simulate", "auto", "-P", 4, "-M", 12, "--activation-bytes", 1000,
                               "--memory-cap", 10, check=3)
        self.assertIn("rank", failed.stderr)
        # Less than a byte a chunk is no reason to hold them all.
        tiny = self.simulate("auto", 4, 12, "--activation-bytes", 1, "--weight-bytes", 1,
                             "--memory-cap", 8, "--moves", 50)
        self.assertLessEqual(max(r["peak_activations"] for r in tiny["ranks"]), 8)
        self.assertIn("--activation-bytes", self.schedule(
            "simulate", "auto", "-P", 4, "-M", 12, "--memory-cap", 8, check=2).stderr)
        for args in (("--activation-bytes", 1e300), ("--hop", 1e300)):
            self.assertIn(args[0], self.schedule("simulate", "1f1b", "-P", 4, "-M", 8, *args,
                                                 check=2).stderr)

    def test_every_format_is_what_it_says(self):
        sizes = ("-P", 4, "-M", 10)
        form = json.loads(self.schedule("export", "zb-v", *sizes, "--format", "json").stdout)
        self.assertEqual(form["schema"], "dp.schedule/1")
        plain = self.schedule("export", "dualpipev", *sizes, "--format", "torch-csv").stdout
        rows = list(csv.reader(io.StringIO(plain)))
        self.assertEqual(len(rows), 4)
        self.assertFalse(any("SEND" in cell for row in rows for cell in row))
        comms = self.schedule("export", "dualpipev", *sizes, "--format", "torch-csv-comms").stdout
        cells = [cell for row in csv.reader(io.StringIO(comms)) for cell in row]
        sends = [cell for cell in cells if re.match(r"\d+SEND_", cell)]
        # 8 stages in a V over 4 ranks: 6 of 7 edges cross ranks, both ways, for 10 micro-batches.
        self.assertEqual(len(sends), 2 * 6 * 10)
        self.assertEqual(len([cell for cell in cells if "RECV_" in cell]), len(sends))
        self.assertNotIn("", cells)
        self.assertTrue(any("WAIT_SEND" in cell for cell in cells))
        older = self.schedule("export", "dualpipev", *sizes, "--format",
                              "torch-csv-comms-2.14").stdout
        self.assertEqual([cell for row in csv.reader(io.StringIO(older)) for cell in row],
                         [cell for cell in cells if "WAIT_SEND" not in cell])
        xml.dom.minidom.parseString(self.schedule("export", "zb-h1", *sizes,
                                                  "--format", "svg").stdout)
        trace = json.loads(self.schedule("export", "zb-h1", *sizes, "--format", "perfetto").stdout)
        self.assertEqual(trace["otherData"]["schema"], "dp.trace/1")
        flags = self.schedule("export", "interleaved", "-P", 4, "-M", 8, "-v", 2,
                              "--format", "megatron", "--layers", 16).stdout
        self.assertIn("--pipeline-model-parallel-size 4", flags)
        for name in ("dualpipe", "chimera"):
            failed = self.schedule("export", name, *sizes, "--format", "torch-csv", check=None)
            self.assertNotEqual(failed.returncode, 0)
            self.assertIn("dualpipev", failed.stderr)
        failed = self.schedule("export", "zb-h1", *sizes, "--format", "megatron", check=None)
        self.assertNotEqual(failed.returncode, 0)
        self.assertIn("Megatron", failed.stderr)

    def test_auto_is_exported_as_pytorch_can_have_it(self):
        # With pairs that overlap well, and hops, streams from both ends are the fastest.
        args = ("auto", "-P", 4, "-M", 12, "--cost", "F=1,I=1,W=1,FB=2", "--hop", 0.5, "-v", 1,
                "--moves", 50)
        self.assertIn("bidirectional", self.schedule("simulate", *args).stdout)
        for form in ("torch-csv", "torch-csv-comms", "torch-csv-comms-2.14"):
            done = self.schedule("export", *args, "--format", form)
            self.assertRegex(done.stderr, r"\Anote: [^\n]*--placement single\n\Z")
            self.assertEqual(len(done.stdout.splitlines()), 4)
        self.assertEqual(self.schedule("export", *args, "--format", "json").stderr, "")
        for form, why in (("torch-csv", "two ranks"), ("megatron", "Megatron")):
            failed = self.schedule("export", *args, "--placement", "bidirectional", "--format", form,
                                   check=None)
            self.assertNotEqual(failed.returncode, 0)
            self.assertIn(why, failed.stderr)

    def test_files_are_written_as_the_shell_would(self):
        args = ("export", "1f1b", "-P", 2, "-M", 2)
        link, file = self.cluster.root / "link.json", self.cluster.root / "linked.json"
        link.symlink_to(file)
        self.schedule(*args, "--out", link)
        self.assertTrue(link.is_symlink())
        self.assertEqual(json.loads(file.read_text())["schema"], "dp.schedule/1")
        full = self.cluster.root / "full"
        full.symlink_to("/dev/full")  # in case that it is replaced
        self.assertRegex(self.schedule(*args, "--out", full, check=1).stderr,
                         rf"cannot \w+ {full}: No space")
        self.assertTrue(full.is_char_device())
        for path, why in (("/", "directory"), ("", "empty"), ("/nowhere/x", "/nowhere/x: ")):
            self.assertIn(why, self.schedule(*args, "--out", path, check=None).stderr)

    def test_auto_in_a_comparison_can_be_had_again(self):
        sizes = ("-P", 4, "-M", 10, "--cost", "F=1,I=1.3,W=0.7")
        done = self.document("compare", *sizes, "--schedules", "auto,1f1b,auto", "--moves", 80)
        self.assertEqual([row["name"] for row in done["schedules"]], ["auto", "1f1b"])
        row = done["schedules"][0]
        unit = 720720  # bytes of a micro-batch: any number that the chunks divide
        again = self.simulate("auto", *sizes[1::2][:2], *sizes[4:], "--placement", "single",
                              "--seed", row["seed"], "--moves", 80, "--activation-bytes", unit,
                              "--weight-bytes", unit, "--memory-cap", unit * row["memory_cap"])
        self.assertEqual({key: row[key] for key in ("moves", "best_at", "placement", "virtual",
                                                    "parameters")},
                         {key: again["auto"][key] for key in ("moves", "best_at", "placement",
                                                              "virtual", "parameters")})
        self.assertAlmostEqual(row["makespan"], again["makespan"])
        text = self.schedule("compare", *sizes, "--schedules", "auto", "--moves", 80).stdout
        self.assertIn(f"{row['placement']} placement, {row['moves']} orders tried", text)
        self.assertRegex(self.schedule("simulate", "auto", *sizes, "--moves", 9).stdout,
                         r"auto: \w+ placement, \d+ chunks? per rank, parameters held [12]x\n")
        for placement in ("straight", "loop", "v", "wave", "bidirectional"):
            found = self.simulate("auto", 4, 8, "--placement", placement, "--moves", 9)["auto"]
            self.assertEqual((found["placement"], found["parameters"]),
                             (placement, 2 if placement == "bidirectional" else 1))

    def test_a_comparison_has_those_that_can_take_the_stages(self):
        costs = SOURCE / "examples" / "stage-cost.csv"  # eight stages, a pair of the outer two
        for ranks in (4, 8):
            done = self.document("compare", "-P", ranks, "-M", 16, "--stage-cost", costs, "--moves",
                                 30)
            rows = {row["name"]: row for row in done["schedules"]}
            self.assertIn("stage-cost.csv:", rows["1f1b"]["reason"])
            self.assertNotIn("\n", rows["1f1b"]["reason"])
            self.assertTrue(rows["dualpipe" if ranks == 8 else "dualpipev"]["legal"])
            self.assertEqual(done["equal_memory"]["activations"], ranks)
            text = self.schedule("compare", "-P", ranks, "-M", 16, "--stage-cost", costs,
                                 "--moves", 30).stdout
            self.assertIn("1f1b, which others are compared with, cannot be had: ", text)
        bad = self.cluster.root / "bad-stages.csv"
        bad.write_text("stage,F,B\n0,x,2\n")
        self.assertIn("bad-stages.csv:2:3: ", self.schedule(
            "compare", "-P", 2, "-M", 4, "--stage-cost", bad, check=3).stderr)

    def test_vain_options_are_named(self):
        sizes = ("-P", 4, "-M", 8)
        for verb, args, option in (
                ("simulate", ("1f1b", *sizes, "--out", "x"), "--out"),
                ("simulate", ("1f1b", *sizes, "--gpus", 8), "--gpus"),
                ("list", sizes, "-P"), ("show", ("1f1b", *sizes, "--moves", 9), "--moves"),
                ("show", ("1f1b", *sizes, "--memory-cap", 9, "--activation-bytes", 9),
                 "--memory-cap"),
                ("compare", (*sizes, "--memory", 0), "--memory"),
                ("compare", (*sizes, "--gpus", 8), "--gpus")):
            failed = self.schedule(verb, *args, check=2).stderr
            self.assertRegex(failed, rf"(take|:|not take) {option}( is |\n)", msg=failed)
        self.assertIn("did you mean 1f1b?", self.schedule("simulate", "1F1B", *sizes,
                                                          check=4).stderr)
        self.assertNotIn("-0.0", self.schedule("compare", *sizes, "--moves", 9).stdout)

    def test_files_say_nothing_to_the_terminal(self):
        path = self.cluster.root / "names.json"
        form = json.loads(self.schedule("export", "1f1b", "-P", 2, "-M", 2).stdout)
        for name in ("\033[2J", "\u009b31m", "bell\a"):
            path.write_text(json.dumps(form | {"name": name}))
            failed = self.schedule("simulate", path, check=3).stderr
            self.assertIn("control characters", failed)
        path.write_text('{"schema": \x9b2J')
        self.assertNotIn("\x9b", self.schedule("simulate", path, check=3).stderr)
        path.write_text("0F0,0B0\n")  # called JSON, so read as that
        self.assertIn("'{'", self.schedule("check", path, check=3).stderr)
        path.write_text("\ufeff" + json.dumps(form))
        self.assertTrue(self.document("check", path)["valid"])

    def test_the_request_in_an_answer_gives_the_answer_again(self):
        costs = self.cluster.root / "costs.csv"
        costs.write_text("stage,F,I,W\n" + "".join(f"{s},{1 + s % 3},1,{2 - s % 2}\n"
                                                   for s in range(8)))
        options = {"pipeline": "-P", "microbatches": "-M", "virtual": "-v", "hop_s": "--hop",
                   "memory_cap_bytes": "--memory-cap"}

        def again(verb, request):
            args = []
            for key, value in request.items():
                for item in value if isinstance(value, list) else [value]:
                    # What is for `auto` alone has a default that others must not be told.
                    if item is not None and (key not in ("seed", "objective") or
                                             request["schedule"] == "auto"):
                        args += [options.get(key, "--" + key.replace("_", "-")), item]
            return self.document(verb, *args)

        some = ("--hop", 0.25, "--p2p", "blocking", "--slow", "rank=1:1.4", "--slow", "stage=0:2",
                "--slow-link", "1>2:+0.5")
        memory = ("--activation-bytes", 700, "--weight-bytes", 300)
        search = (*memory, "--memory-cap", 9000, "--placement", "v", "--objective", "span", "--seed", 7,
                  "--moves", 60)
        for verb, args in (("simulate", ("auto", "-P", 4, "-M", 9, *some, *search)),
                           ("simulate", ("zb-v", "-P", 4, "-M", 9, *some, *memory, "--stage-cost",
                                        costs)),
                           ("show", ("hanayo", "-P", 4, "-M", 8, "--virtual", 4, *some)),
                           ("check", ("interleaved", "-P", 2, "-M", 4, "--cost", "F=1,B=3"))):
            one = self.document(verb, *args)
            two = again(verb, one["request"])
            self.assertEqual((one["request"], one["ranks"]), (two["request"], two["ranks"]))
        one = self.document("compare", "-P", 4, "-M", 8, *some, "--moves", 30, "--layers", 8,
                            "--memory", 3, "--step-s", 2, "--tokens-per-step", 1e6, "--gpus", 8)
        self.assertEqual(one["request"]["tokens_per_step"], 1e6)
        self.assertEqual(one["schedules"], again("compare", one["request"])["schedules"])

    def test_more_chunks_per_rank_shorten_the_bubble(self):
        # (P-1)(F+B)/v of Narayanan et al., arXiv 2104.04473, section 2.2.
        for v in (2, 4, 8):
            cost = f"F={2 / v},I={2 / v},W={2 / v}"
            done = self.simulate("interleaved", 8, 16, "--virtual", v, "--cost", cost)
            self.assertEqual(done["stages"], 8 * v)
            self.assertAlmostEqual(done["makespan"], 16 * 6 + 7 * 6 / v)
        compared = self.document("compare", "-P", 8, "-M", 16, "-v", 4, "--cost", "F=2,I=2,W=2",
                                 "--schedules", "interleaved,1f1b")["schedules"]
        self.assertEqual([row["name"] for row in compared], ["interleaved", "1f1b"])
        self.assertAlmostEqual(compared[0]["makespan"], 96 + 42 / 4)

    def test_waves_idle_as_long_as_their_page_says(self):
        for ranks in (3, 4, 7, 16):
            idle = {v: self.simulate("hanayo", ranks, ranks, "-v", v, "--cost", "F=1,B=2")
                       ["makespan"] - 3 * ranks * v for v in (2, 4, 16)}
            self.assertAlmostEqual(idle.pop(2), 4 * (ranks - 1))
            self.assertLess(max(idle.values()), 4.5 * (ranks - 1))

    def test_the_page_names_every_member_of_the_answers(self):
        def keys(value):
            if isinstance(value, dict):
                for key, inner in value.items():
                    yield key
                    yield from keys(inner) if key != "request" else ()
            elif isinstance(value, list):
                for inner in value:
                    yield from keys(inner)
        page = (SOURCE / "docs" / "schedules.md").read_text()
        sizes = ("-P", 4, "-M", 8)
        named = set(re.findall(r"`(\w+)[^`]*`", page))
        for verb, args, code in (
                ("list", (), 0), ("show", ("zb-h1", *sizes), 0), ("check", ("zb-h1", *sizes), 0),
                ("check", (SOURCE / "README.md",), 3),
                ("simulate", ("auto", *sizes, "--moves", 20, "--slow", "rank=1:2"), 0),
                ("compare", (*sizes, "--moves", 20, "--layers", 4, "--tokens-per-s", 1e5), 0)):
            members = set(keys(self.document(verb, *args, check=code))) - {"schema"}
            self.assertLessEqual(members, named, msg=verb)

    def test_stage_costs_come_from_a_file(self):
        path = self.cluster.root / "stages.csv"
        path.write_text("stage,F,I,W,activation_bytes\n0,1,2,3,100\n1,4,5,6,1000\n")
        done = self.simulate("gpipe", 2, 1, "--stage-cost", path)
        self.assertAlmostEqual(done["makespan"], 1 + 4 + (5 + 6) + (2 + 3))
        self.assertEqual([rank["peak_bytes"] for rank in done["ranks"]], [100, 1000])

    def test_a_change_that_changes_nothing_is_said_once(self):
        args = ("-P", 4, "-M", 8, "--slow-link", "0-3:4x", "--hop", 1)
        for verb in ("simulate", "show", "check", "export"):
            done = self.schedule(verb, "1f1b", *args)
            self.assertRegex(done.stderr, r"\Anote: [^\n]*0-3[^\n]*\n\Z", msg=verb)
        done = self.schedule("compare", *args, "--schedules", "1f1b,interleaved", "-o", "json")
        self.assertEqual(done.stderr, "")
        straight, loop = json.loads(done.stdout)["schedules"]
        self.assertIn("0-3", straight["note"])
        self.assertNotIn("note", loop)  # its last rank sends to the first

    def test_drawings_have_the_width_asked_for(self):
        def lines(*args):
            text = self.schedule("show", "1f1b", "-P", 4, "-M", 80, *args).stdout
            return [len(line) for line in text.splitlines()]
        self.assertLessEqual(max(lines("--width", 60)), 60)
        self.assertLessEqual(max(lines("--table", "--width", 60)), 60)
        self.assertGreater(len(lines("--table", "--width", 60)), len(lines("--table",
                                                                           "--width", 0)))
        self.assertGreater(max(lines("--table", "--width", 0)), 2 * 80)
        image = self.schedule("export", "1f1b", "-P", 4, "-M", 8, "--format", "svg",
                              "--width", 900).stdout
        self.assertEqual(xml.dom.minidom.parseString(image).documentElement.getAttribute("width"),
                         "900")
        self.assertIn("--width", self.schedule("show", "1f1b", "-P", 4, "-M", 8, "--width", 20,
                                               check=2).stderr)

    def test_letters_of_a_csv_are_seen_or_said(self):
        path = self.cluster.root / "letters.csv"
        # B is the whole backward today; with W after it, it was that of inputs.
        path.write_text("0F0,0B0,0W0\n1F0,1B0,1W0\n")
        for args in ((), ("--letters", "old")):
            self.assertEqual(self.document("check", path, *args)["letters"], "old")
        self.assertIn(":1:9", self.schedule("check", path, "--letters", "new", check=3).stderr)
        self.assertIn("--letters", self.schedule("check", path, "--letters", "odd",
                                                 check=2).stderr)

    def test_an_exported_file_is_the_schedule(self):
        for name in ("zb-h1", "interleaved", "zb-v", "dualpipev", "auto"):
            for form, end in (("json", "json"), ("torch-csv", "csv"), ("torch-csv-comms", "csv")):
                path = self.cluster.root / f"{name}.{form}.{end}"
                self.schedule("export", name, "-P", 4, "-M", 12, "--format", form, "--out", path)
                done = self.document("check", path)
                self.assertTrue(done["valid"], msg=str(path))
                self.assertEqual((done["pipeline"], done["microbatches"]), (4, 12))
                self.assertIn("bubble_ratio", done)

    def test_files_that_none_would_read_are_not_made(self):
        for form in ("json", "perfetto"):
            failed = self.schedule("export", "1f1b", "-P", 64, "-M", 65536, "--format", form,
                                   check=3)
            self.assertIn("8388608 actions as %s take" % form, failed.stderr)
            self.assertIn("fewer micro-batches", failed.stderr)
            self.assertEqual(failed.stdout, "")

    def test_check_finds_what_is_wrong_and_where(self):
        text = self.schedule("export", "1f1b", "-P", 3, "-M", 4, "--format", "torch-csv").stdout
        rows = [line.split(",") for line in text.replace("\r", "").strip().split("\n")]
        rows[0][1] = rows[0][0]  # F of micro-batch 0 twice, of 1 never
        rows[2] = rows[2][:-1]   # the last backward is missing
        path = self.cluster.root / "wrong.csv"
        path.write_text("\n".join(",".join(row) for row in rows) + "\n")
        done = self.document("check", path, check=3)
        self.assertFalse(done["valid"])
        places = {(p.get("line"), p.get("column")) for p in done["problems"]}
        self.assertIn((1, 5), places)  # "0F0," and then the second cell
        self.assertGreaterEqual(len(done["problems"]), 3)

    def test_a_deadlock_names_its_ring(self):
        path = self.cluster.root / "ring.csv"
        # Rank 0 wants the gradient of micro-batch 0 before it has sent the second forward, which
        # rank 1 wants before it makes that gradient.
        path.write_text("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n")
        done = self.document("check", path, check=3)
        message = " ".join(p["message"] for p in done["problems"])
        self.assertRegex(message, r"rank 0.*rank 1|rank 1.*rank 0")

    def test_broken_files_have_line_and_column(self):
        for name, text, place in (("a.csv", "0F0,0B0\n1F0,1X0\n", ":2:5"),
                                  ("b.json", '{"schema": "dp.schedule/1",\n "name": }\n', ":2:"),
                                  ("c.csv", "", ":1:1")):
            path = self.cluster.root / name
            path.write_text(text)
            self.assertIn(f"{name}{place}", self.schedule("check", path, check=3).stderr)

    def test_compare_is_one_table_and_answers_at_equal_memory(self):
        done = self.document("compare", "-P", 8, "-M", 16, "--cost", "F=2,I=2,W=2,FB=6",
                             "--tokens-per-s", 1e5, "--gpus", 64)
        rows = {row["name"]: row for row in done["schedules"]}
        self.assertLessEqual(NAMES, set(rows))
        base = rows["1f1b"]
        # 64 GPUs make 1e5 tokens in a second: 0.1778 GPU-hours for a million.
        self.assertAlmostEqual(base["gpu_hours_per_million_tokens"], 64 * 10 / 3600)
        for row in filter(lambda r: r["legal"], rows.values()):
            self.assertAlmostEqual(row["gpu_hours_per_million_tokens"] / row["makespan"],
                                   base["gpu_hours_per_million_tokens"] / base["makespan"])
            self.assertAlmostEqual(row["utilisation"], 1 - row["bubble_ratio"])
        self.assertEqual((rows["dualpipe"]["parameters"], rows["zb-v"]["parameters"]), (2, 1))
        self.assertAlmostEqual(rows["zb-v"]["p2p_volume"], 2)  # 14 edges of 15 against 7
        best = done["equal_memory"]["best"]
        self.assertLessEqual(rows[best]["peak_activations"], 8)
        self.assertLessEqual(rows[best]["makespan"], rows["zb-v"]["makespan"])
        per_step = self.document("compare", "-P", 8, "-M", 16, "--schedules", "1f1b", "--step-s",
                                 2, "--tokens-per-step", 2e5)  # the same tokens, on P of them
        self.assertAlmostEqual(per_step["schedules"][0]["gpu_hours_per_million_tokens"],
                               8 * 10 / 3600)
        # Memory is compared in micro-batches; bytes would mean nothing.
        self.assertIn("--activation-bytes", self.schedule(
            "compare", "-P", 8, "-M", 16, "--activation-bytes", 9, check=2).stderr)
        less = self.document("compare", "-P", 8, "-M", 16, "--cost", "F=2,I=2,W=2", "--memory", 5)
        rows = {row["name"]: row for row in less["schedules"]}
        best = rows[less["equal_memory"]["best"]]
        self.assertLessEqual(best["peak_activations"], 5)
        self.assertLessEqual(best["makespan"], rows["v-half"]["makespan"])
        short = self.document("compare", "-P", 8, "-M", 16, "--layers", 8)["schedules"]
        self.assertEqual({row["name"] for row in short if not row["legal"]},
                         {"interleaved", "interleaved-zb", "zb-v", "v-half", "v-half-late-w",
                          "v-min", "hanayo", "dualpipev", "dualpipev-full-b"})
        text = self.schedule("compare", "-P", 8, "-M", 16).stdout
        self.assertIn("at equal memory", text)

    def test_replay_reads_a_trace(self):
        done = self.document("replay", SOURCE / "examples" / "trace.csv")
        self.assertEqual(done["schema"], "dp.replay/1")
        self.assertGreaterEqual(done["S"], 1)
        self.assertTrue(self.schedule("replay", SOURCE / "examples" / "trace.csv").stdout)
        failed = self.schedule("replay", SOURCE / "README.md", check=3)
        self.assertRegex(failed.stderr, r"README.md:\d+:\d+: ")


if __name__ == "__main__":
    unittest.main(verbosity=2)

"""dpctl plan: the fields that others script, real models on real clusters, impossible requests."""

import ast
import csv
import io
import json
import shlex
import subprocess
import unittest

from support import SOURCE, Cluster

PARTS = ("forward_s", "backward_input_s", "weight_s", "overlapped_s", "bubble_s", "optimizer_s")
SIZES = ("pipeline", "expert", "data", "microbatches", "micro_batch_size", "stages", "tensor",
         "context", "expert_tensor")
DEEPSEEK = ("--model", "deepseek-v3", "--gpu", "h800", "--gpus", 2048, "--global-batch", 15360,
            "--seq-len", 4096)
TRAINED = (*DEEPSEEK, "--set", "pipeline=16", "--set", "expert=64", "--set", "schedule=dualpipe")
SMALL = ("--model", "mixtral-8x7b", "--gpu", "h100", "--gpus", 32, "--global-batch", 256)


class Plan(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster()
        cls.addClassCleanup(cls.cluster.close)

    def plan(self, *args, check=0, **kwargs):
        return self.cluster.dpctl("plan", *args, check=check, **kwargs)

    def document(self, *args, **kwargs):
        return json.loads(self.plan(*args, "-o", "json", **kwargs).stdout)

    def holds_the_contract(self, plan):
        """What every plan satisfies, whatever was asked."""
        self.assertEqual(plan["schema"], "dp.plan/1")
        chosen = plan["chosen"]
        for key in SIZES:
            self.assertGreaterEqual(chosen[key], 1, key)
        shards = chosen["tensor"] * chosen["context"]
        self.assertEqual(chosen["world"], chosen["pipeline"] * chosen["data"] * shards)
        self.assertEqual(len(plan["ranks"]), chosen["world"])
        self.assertEqual(len({(rank["node"], rank["slot"]) for rank in plan["ranks"]}),
                         chosen["world"], "no two ranks stand on one accelerator")
        samples = chosen["data"] * chosen["microbatches"] * chosen["micro_batch_size"]
        self.assertEqual(samples, plan["request"]["global_batch"])
        self.assertEqual(len(chosen["layers_per_stage"]), chosen["stages"])
        for rank in (chosen, *chosen["per_rank"]):
            self.assertAlmostEqual(sum(rank[key] for key in PARTS) / chosen["step_time_s"], 1,
                                   places=6)
        self.assertEqual(len(chosen["per_rank"]), chosen["pipeline"])
        self.assertEqual(len(chosen["memory_bytes_per_rank"]), chosen["pipeline"])
        critical = chosen["per_rank"][chosen["critical_rank"]]
        self.assertEqual({key: chosen[key] for key in PARTS}, {key: critical[key] for key in PARTS})
        for rank, total in zip(chosen["per_rank"], chosen["memory_bytes_per_rank"]):
            self.assertAlmostEqual(sum(rank["memory"].values()) / total, 1, places=6)
            if rank["memory_limit_bytes"] and not plan["request"]["ignore_memory"]:
                self.assertLessEqual(total, rank["memory_limit_bytes"])
        tokens = samples * plan["request"]["sequence"]
        self.assertAlmostEqual(chosen["tokens_per_day"] * chosen["step_time_s"] / tokens / 86400, 1)
        hours = chosen["world"] * chosen["step_time_s"] / 3600 * 1e12 / tokens
        self.assertAlmostEqual(chosen["gpu_hours_per_trillion_tokens"] / hours, 1)
        self.assertTrue(0 < plan["error_bar"] < 1)
        self.assertTrue(plan["provenance"])
        for row in plan["provenance"]:
            self.assertTrue(row["figure"] and row["source"], row)
        self.assertGreater(plan["searched"], 0)
        self.assertGreater(plan["search_s"], 0)
        for row in plan["runners_up"]:
            self.assertTrue(row["reason"], row)
        return chosen

    def test_the_fields_that_others_script(self):
        chosen = self.holds_the_contract(self.document(*TRAINED))
        self.assertEqual({key: chosen[key] for key in ("pipeline", "expert", "schedule")},
                         {"pipeline": 16, "expert": 64, "schedule": "dualpipe"})
        self.assertEqual((chosen["data"], sum(chosen["layers_per_stage"])), (128, 61))
        # arXiv 2505.09343, table 4: 19.926 s, 272.8 G tokens a day, MFU 43.73 and 38.94 %; what
        # dpctl says of its own error is held here, how near it comes by `make validate`.
        self.assertLess(abs(chosen["step_time_s"] / 19.926 - 1), 0.1)
        self.assertLess(abs(chosen["tokens_per_day"] / 272.8e9 - 1), 0.1)
        self.assertLess(abs(chosen["mfu_noncausal"] / 0.4373 - 1), 0.1)
        self.assertLess(abs(chosen["mfu_causal"] / 0.3894 - 1), 0.1)
        same, best = chosen["recovered"], chosen["recovered_best"]
        self.assertTrue(same["fits"])
        for base in (same, best):
            self.assertAlmostEqual(base["share"],
                                   1 - chosen["step_time_s"] / base["step_time_s"])
        self.assertGreater(best["share"], 0)
        self.assertGreaterEqual(same["share"], best["share"])
        self.assertEqual(best["schedule"], "1f1b")
        # 281.1 and 250.4 G operations a token, without MTP (facts of the same table).
        self.assertAlmostEqual(chosen["flops_per_token_causal"] / 250.4e9, 1, places=2)
        self.assertAlmostEqual(chosen["flops_per_token_noncausal"] / 281.1e9, 1, places=2)

    def test_one_screen_says_all_that_matters(self):
        for args in (TRAINED, DEEPSEEK, SMALL, (SOURCE / "examples" / "tiny-moe.toml",),
                     ("--model", "llama-3-70b", "--gpu", "h100", "--gpus", 64)):
            text = self.plan(*args).stdout
            lines = text.splitlines()
            self.assertLessEqual(len(lines), 40, text)
            self.assertLessEqual(max(map(len, lines)), 100, text)
            for word in ("schedule", "step", "cost", "memory", "rests on", "rank "):
                self.assertRegex(text, rf"(?m)^ *{word}", msg=text)
        self.assertGreater(len(self.plan(*DEEPSEEK, "--all").stdout.splitlines()), 40)

    def test_the_command_gives_the_same_strategy(self):
        plan = self.document(*SMALL)
        again = self.document(*shlex.split(plan["command"])[2:])
        for key in (*SIZES, "schedule", "virtual", "recompute", "precision", "shard"):
            self.assertEqual(plan["chosen"][key], again["chosen"][key], key)
        self.assertAlmostEqual(plan["chosen"]["step_time_s"], again["chosen"]["step_time_s"])
        words = shlex.split(self.document(*SMALL, "--set", "pipeline=auto", "--set", "tensor=2",
                                          "--set", "model.layers=8")["command"])
        keys = [word.split("=")[0] for option, word in zip(words, words[1:]) if option == "--set"]
        self.assertEqual(len(keys), len(set(keys)), "each key once")
        self.assertIn("model.layers", keys)

    def test_it_is_repeatable(self):
        one, two = self.document(*SMALL), self.document(*SMALL)
        del one["search_s"], two["search_s"]
        self.assertEqual(one, two)

    def test_real_models_on_real_clusters(self):
        for args in (("--model", "deepseek-v2", "--gpu", "h800", "--gpus", 256),
                     ("--model", "qwen3-235b-a22b", "--gpu", "h100", "--gpus", 256),
                     ("--model", "kimi-k2", "--gpu", "h800", "--gpus", 256),
                     ("--model", "gpt-oss-120b", "--gpu", "b200", "--gpus", 64),
                     ("--model", "llama-3.1-405b", "--gpu", "h100", "--gpus", 1024),
                     ("--model", "deepseek-v3", "--gpu", "gb200", "--gpus", 256)):
            with self.subTest(args=args):
                self.holds_the_contract(self.document(*args))

    def test_recovered_is_told_against_the_best_1f1b_of_the_search(self):
        plan = self.document(*DEEPSEEK)
        best = min((row for row in plan["runners_up"]
                    if row["schedule"] == "1f1b" and row["legal"]
                    and row["memory_bytes"] <= row["memory_limit_bytes"]),
                   key=lambda row: row["step_time_s"])
        told = plan["chosen"]["recovered_best"]
        self.assertEqual({key: told[key] for key in ("step_time_s", *SIZES) if key in told},
                         {key: best[key] for key in ("step_time_s", *SIZES) if key in told})
        # What an own search with nothing but 1F1B finds.
        alone = self.document(*DEEPSEEK, "--set", "schedule=1f1b")["chosen"]
        self.assertAlmostEqual(told["step_time_s"] / alone["step_time_s"], 1, places=6)
        text = " ".join(self.plan(*DEEPSEEK).stdout.split())
        self.assertRegex(text, r"[(][0-9.]+ %[)] recovered against the best 1f1b [(]")

    def test_a_model_with_learned_positions_is_planned_for_as_many(self):
        args = ("--model", "gpt-1.5b", "--gpu", "h100", "--gpus", 64, "--global-batch", 512)
        self.assertEqual(self.document(*args)["request"]["sequence"], 1024)
        self.assertEqual(self.document(*args, "--seq-len", 512)["request"]["sequence"], 512)
        self.plan(*args, "--seq-len", 2048, check=3)

    def test_experts_that_are_taken_away_are_told(self):
        words = "all 61 layers are dense now"
        gone = self.document(*DEEPSEEK, "--set", "model.experts=0")
        self.assertIn(words, "\n".join(gone["warnings"]))
        self.assertNotIn(words, "\n".join(self.document(*SMALL)["warnings"]))
        dense = self.document("--model", "llama-3-8b", "--gpu", "h100", "--gpus", 8)
        self.assertNotIn("dense now", "\n".join(dense["warnings"]))

    def test_the_imbalance_of_the_answer_is_what_was_counted_with(self):
        plan = self.document(*TRAINED)
        assumed = [line for line in plan["warnings"] if "(imbalance)" in line]
        self.assertEqual(len(assumed), 1)
        self.assertIn(f"{plan['chosen']['imbalance']:.2f} times", assumed[0])
        given = self.document(*TRAINED, "--set", "imbalance=1.5")["chosen"]
        self.assertEqual(given["imbalance"], 1.5)

    def test_flags_and_sets_say_the_same(self):
        flag = self.document(*SMALL)["chosen"]
        by_set = self.document(*SMALL[:-2], "--set", "train.global_batch=256", "--set",
                               "train.sequence=4096")["chosen"]
        self.assertEqual(flag, by_set)
        job = SOURCE / "examples" / "tiny-moe.toml"
        plan = self.document(job, "--global-batch", 32, "--seq-len", 64, "--set",
                             "microbatches=auto", "--set", "micro_batch_size=auto")
        self.assertEqual((plan["request"]["global_batch"], plan["request"]["sequence"]), (32, 64))

    def test_impossible_requests_say_why_and_what_would_do(self):
        few = ("--model", "deepseek-v3", "--gpu", "h800", "--gpus", 3)
        for args, code, words in (
                (few, 7, ("memory", "GiB")),
                ((*SMALL, "--set", "expert=3"), 3, ("expert", "8")),
                ((*SMALL, "--set", "model.experts=0", "--set", "expert=8"), 3, ("expert",)),
                ((*SMALL, "--set", "pipeline=8", "--set", "schedule=dualpipe", "--set",
                  "microbatches=4"), 3, ("dualpipe", "16")),
                ((*SMALL, "--set", "pipeline=64"), 3, ("64", "32")),
                ((*SMALL, "--set", "data=7"), 3, ("7",))):
            with self.subTest(args=args):
                failed = self.plan(*args, "-o", "json", check=None)
                self.assertEqual(failed.returncode, code, failed.stderr)
                answer = json.loads(failed.stdout)
                self.assertEqual((answer["schema"], answer["exit_code"]), ("dp.error/1", code))
                for word in words:
                    self.assertIn(word, answer["message"])
        self.holds_the_contract(self.document(*few, "--ignore-memory"))

    def test_hostile_words_are_refused_at_once(self):
        config = self.cluster.root / "broken.json"
        config.write_text('{"architectures": ["DeepseekV3ForCausalLM"], "hidden_size": 1e999}')
        for args, code, word in (
                ((), 2, "--model"),
                (("--model", "x", "--gpu", "h100"), 2, "--gpus"),
                (("--model", "x", "--gpu", "h100", "--gpus", 0), 2, "--gpus"),
                (("--model", "x", "--gpu", "h100", "--gpus", 10 ** 12), 2, "--gpus"),
                (("--model", "x", "--gpu", "h100", "--gpus", "8x"), 2, "8x"),
                ((*SMALL, "--seq-len", -1), 2, "--seq-len"),
                ((*SMALL, "--global-batch", 2 ** 40), 2, "--global-batch"),
                ((*SMALL, "--explain", "-1"), 2, "--explain"),
                ((*SMALL, "--export", "pickle"), 2, "pickle"),
                (("--model", "no-such-model", "--gpu", "h100", "--gpus", 8), 4, "no-such-model"),
                (("--model", "/etc/passwd", "--gpu", "h100", "--gpus", 8), 3, "passwd"),
                (("--model", config, "--gpu", "h100", "--gpus", 8), 3, "broken.json"),
                (("--model", "mixtral-8x7b", "--gpu", "h900", "--gpus", 8), 4, "h900"),
                ((*SMALL, "--profile", "no-such-profile"), 4, "no-such-profile"),
                ((*SMALL, "--profile", "/nowhere.json"), 4, "/nowhere.json"),
                ((*SMALL, "--set", "pipeline=-4"), 3, "pipeline"),
                ((*SMALL, "--set", "pipeline=99999999999"), 3, "pipeline"),
                ((*SMALL, "--set", "piplin=4"), 3, "piplin"),
                ((*SMALL, "--set", "schedule=$(reboot)"), 3, "reboot"),
                ((*SMALL, "--compare", "1f1b,nonsense"), 4, "nonsense"),
                ((*SMALL, "--compare", ","), 2, "--compare"),
                ((*SMALL, "--explain", 32), 4, "32 ranks")):
            with self.subTest(args=args):
                self.assertIn(word, self.plan(*args, check=code).stderr)

    def test_whole_backwards_are_divided_as_the_halves_that_stand_alone(self):
        # Rank 4 of 16 has two stages that are alike, so one W and one I tell what a B is made of.
        explained = self.document(*TRAINED, "--explain", 4)
        counts, rank = explained["actions"], self.document(*TRAINED)["chosen"]["per_rank"][4]
        weight_s = rank["weight_alone_s"] / counts["W"]
        input_s = rank["input_s"] / counts["I"]
        self.assertAlmostEqual(rank["backward_weight_s"] / counts["B"] / weight_s, 1, places=6)
        self.assertAlmostEqual((rank["weight_s"] / (counts["B"] + counts["W"])) / weight_s, 1,
                               places=6)
        self.assertAlmostEqual(
            (rank["backward_input_s"] / (counts["B"] + counts["I"])) / input_s, 1, places=6)

    def test_a_rank_is_explained(self):
        args = (*TRAINED, "--explain", 37)
        rank = self.document(*args)
        self.assertEqual((rank["schema"], rank["rank"]), ("dp.plan.explain/1", 37))
        # DualPipe on 16 ranks: a position and its mirror image.
        position = rank["pipeline"]
        self.assertEqual({stage["stage"] for stage in rank["stages"]}, {position, 15 - position})
        # Every micro-batch passes both ways through one of the rank's two stages.
        actions = rank["actions"]
        self.assertEqual(actions["F"] + actions["FB"], 120)
        self.assertEqual(actions["B"] + actions["I"] + actions["FB"], 120)
        self.assertEqual(actions["I"], actions["W"])
        chosen = self.document(*TRAINED)["chosen"]
        self.assertEqual(rank["parts"], chosen["per_rank"][position])
        waits = rank["waits"]
        causes = ("warmup_s", "dependency_s", "imbalance_s", "hop_s", "cooldown_s")
        self.assertAlmostEqual(sum(waits[key] for key in causes), waits["bubble_s"])
        path = rank["critical_path"]
        self.assertLessEqual(path["actions"], path["of"])
        text = self.plan(*args).stdout
        for word in ("rank 37", "count from 0", "holds", "runs", "waits", "memory", "kept",
                     "critical"):
            self.assertIn(word, text)

    def test_less_memory_costs_time(self):
        done = self.document(*SMALL, "--pareto")
        self.assertEqual(done["schema"], "dp.plan.pareto/1")
        points = done["points"]
        self.assertGreater(len(points), 2)
        for one, two in zip(points, points[1:]):
            self.assertLessEqual(one["step_time_s"], two["step_time_s"])
            self.assertGreater(one["memory_bytes"], two["memory_bytes"])
        best = self.document(*SMALL)["chosen"]
        self.assertAlmostEqual(points[0]["step_time_s"], best["step_time_s"])
        lines = self.plan(*SMALL, "--pareto").stdout.splitlines()
        self.assertEqual(len(lines), len(points) + 1)

    def test_a_schedule_that_is_the_wrong_one_is_told(self):
        def warnings(*args):
            return "\n".join(self.document(*args)["warnings"])

        dual = ("--set", "schedule=dualpipe")
        dense = warnings("--model", "llama-3-70b", "--gpu", "b200", "--gpus", 64, *dual, "--set",
                         "pipeline=8")
        self.assertIn("a dense model has no all-to-all to hide", dense)
        self.assertIn("GiB", dense)
        inside = warnings("--model", "mixtral-8x7b", "--gpu", "b200", "--gpus", 64, *dual, "--set",
                          "pipeline=4", "--set", "expert=4")
        self.assertIn("stay inside their nodes", inside)
        few = warnings(*DEEPSEEK[:6], "--global-batch", 4096, *dual, "--set", "pipeline=16",
                       "--set", "data=128", "--set", "expert=64", "--set", "recompute=full",
                       "--ignore-memory")
        self.assertIn("few micro-batches: 32 for 16", few)
        suits = warnings(*TRAINED)
        for word in ("dense", "inside their nodes", "few micro-batches"):
            self.assertNotIn(word, suits)

    def test_schedules_stand_side_by_side(self):
        done = self.document(*TRAINED[:-2], "--compare", "dualpipe,1f1b,chimera,zb-h2")
        rows = {row["name"]: row for row in done["schedules"]}
        self.assertEqual(list(rows), ["dualpipe", "1f1b", "chimera", "zb-h2"])
        legal = [row for row in rows.values() if row["legal"]]
        self.assertGreaterEqual(len(legal), 2)
        base = rows["1f1b"]
        for row in legal:
            for key in ("pipeline", "data", "expert", "microbatches"):
                self.assertEqual(row["chosen"][key], base["chosen"][key])
            hours = row["gpu_hours_per_million_tokens"]
            saved = row["recovered_gpu_hours_per_million_tokens"]
            self.assertAlmostEqual(hours + saved, base["gpu_hours_per_million_tokens"])
        dual = rows["dualpipe"]
        self.assertAlmostEqual(2 * dual["second_copy_bytes"] / dual["weights_and_gradients_bytes"],
                               1, places=6)
        self.assertEqual(base["second_copy_bytes"], 0)
        # Experts over 64 ranks: their part of a copy is a 64th of what it would be.
        self.assertGreater(dual["unsplit_second_copy_bytes"], 5 * dual["second_copy_bytes"])
        text = self.plan(*TRAINED[:-2], "--compare", "dualpipe,1f1b").stdout
        self.assertIn("dualpipe holds every stage twice", text)
        self.assertIn("recovered", text)

    def test_a_comparison_finds_sizes_on_which_all_fit(self):
        names = ["1f1b", "dualpipe", "zb-h1"]
        done = self.document(*DEEPSEEK, "--compare", ",".join(names))
        rows = done["schedules"]
        self.assertEqual(done["sizes"], "common")
        for row in rows:
            self.assertTrue(row["legal"], row)
            self.assertLessEqual(row["own_best"]["step_time_s"], row["step_time_s"] * 1.0001)
            for key in ("pipeline", "data", "expert", "tensor", "microbatches"):
                self.assertEqual(row["chosen"][key], rows[0]["chosen"][key], (row["name"], key))
        # The first one's best are others, and there is no room for a second copy on them.
        alone = self.document(*DEEPSEEK, "--compare", "1f1b")
        self.assertEqual(alone["sizes"], "first")
        self.assertIsNone(alone["schedules"][0]["own_best"])
        self.assertAlmostEqual(alone["schedules"][0]["step_time_s"],
                               rows[0]["own_best"]["step_time_s"])
        self.assertLess(rows[0]["own_best"]["step_time_s"], rows[0]["step_time_s"])
        self.assertIn("sizes on which all fit", self.plan(*DEEPSEEK, "--compare",
                                                          ",".join(names)).stdout)

    def test_a_comparison_without_common_sizes_says_so(self):
        # A trillion parameters leave no room for a second copy without tensor parallelism.
        args = ("--model", "kimi-k2", "--gpu", "h800", "--gpus", 256, "--set", "tensor=1")
        done = self.document(*args, "--compare", "interleaved,dualpipe")
        inter, dual = done["schedules"]
        self.assertEqual((done["sizes"], inter["legal"], dual["legal"]), ("first", True, False))
        self.assertIn("GiB", dual["reason"])
        self.assertIsNone(dual["own_best"])

    def test_a_comparison_says_what_cannot_be_had(self):
        args = (*SMALL, "--set", "pipeline=4", "--set", "microbatches=4", "--set", "tensor=1")
        rows = self.document(*args, "--compare", "1f1b,dualpipe")["schedules"]
        self.assertTrue(rows[0]["legal"])
        self.assertFalse(rows[1]["legal"])
        self.assertIn("dualpipe", rows[1]["reason"])
        failed = self.plan(*args, "--compare", "dualpipe", check=7)
        self.assertIn("dualpipe", failed.stderr)

    def test_ranks_are_mapped_and_listed(self):
        path = self.cluster.root / "ranks.tsv"
        plan = self.document(*SMALL, "--rank-file", path)
        lines = path.read_text().splitlines()
        self.assertTrue(lines[0].startswith("# rank\tnode\tslot"))
        names = lines[0][2:].split("\t")
        rows = [dict(zip(names, line.split("\t"))) for line in lines[1:]]
        self.assertEqual(len(rows), 32)
        for row, rank in zip(rows, plan["ranks"]):
            self.assertEqual((row["rank"], row["node"], row["slot"]),
                             (str(rank["rank"]), rank["node"], str(rank["slot"])))
        listed = self.document(*SMALL, "--map")["ranks"]
        self.assertEqual([{key: str(value) for key, value in row.items()} for row in listed], rows)
        self.assertIn("32 ranks on 4 nodes", self.plan(*SMALL, "--map").stdout)
        alone = self.plan(*SMALL, "--rank-file", "-").stdout
        self.assertEqual(alone, path.read_text())

    def test_exports_are_what_others_read(self):
        args = (*SMALL, "--set", "pipeline=4", "--set", "schedule=1f1b", "--set", "expert=8")
        chosen = self.document(*args)["chosen"]
        flags = shlex.split(self.plan(*args, "--export", "megatron").stdout.replace("\\\n", " "))
        values = dict(zip(flags, flags[1:]))
        self.assertEqual(values["--pipeline-model-parallel-size"], "4")
        self.assertEqual(values["--expert-model-parallel-size"], "8")
        self.assertEqual(values["--global-batch-size"], "256")
        self.assertEqual(values["--micro-batch-size"], str(chosen["micro_batch_size"]))
        layout = values["--pipeline-model-parallel-layout"]
        self.assertTrue(layout.startswith("E") and layout.endswith("L"), layout)
        self.assertIn("--bf16", flags)
        failed = self.plan(*TRAINED, "--export", "megatron", check=None)
        self.assertNotEqual(failed.returncode, 0)
        self.assertIn("bidirectional", failed.stderr)

        module = ast.parse(self.plan(*args, "--export", "torch").stdout)
        values = {node.targets[0].id: ast.literal_eval(node.value) for node in module.body}
        self.assertEqual({key: values["PLAN"][key] for key in SIZES if key != "stages"},
                         {key: chosen[key] for key in SIZES if key != "stages"})
        self.assertEqual(values["PLAN"]["layers_per_stage"], chosen["layers_per_stage"])
        self.assertEqual(values["PLAN"]["stages_per_rank"], [[0], [1], [2], [3]])
        rows = list(csv.reader(io.StringIO(values["SCHEDULE_CSV"])))
        self.assertEqual(len(rows), 4)
        self.assertEqual(rows[0][0], "0F0")
        self.assertEqual(sum(cell.startswith("0F") for cell in rows[0]), chosen["microbatches"])

        path = self.cluster.root / "plan.env"
        self.plan(*args, "--export", "env", "--out", path)
        done = subprocess.run(["sh", "-euc", f". {path}; echo $DP_PIPELINE $DP_SCHEDULE "
                               "$DP_GLOBAL_BATCH $DP_MODEL"], capture_output=True, text=True,
                              check=True)
        self.assertEqual(done.stdout.split(), ["4", "1f1b", "256", "mixtral-8x7b"])
        self.assertEqual(self.document(*args, "--export", "env")["text"], path.read_text())

    def test_names_say_nothing_to_the_terminal(self):
        job = SOURCE / "examples" / "tiny-moe.toml"
        name = ("--set", "model.name=a\033[2Jb\u009bc")
        for args in ((), ("--all",), ("--map",), ("--explain", 0), ("--export", "env"),
                     ("--compare", "1f1b")):
            text = self.plan(job, *name, *args).stdout
            self.assertNotIn("\033", text, args)
            self.assertNotIn("\u009b", text, args)
        self.assertEqual(self.document(job, *name)["model"], "a\033[2Jb\u009bc")

    def test_names_cannot_leave_their_quotes(self):
        config = self.cluster.root / "it's; touch owned #.json"
        config.write_text(json.dumps({
            "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "hidden_size": 1024,
            "intermediate_size": 2048, "num_attention_heads": 8, "num_hidden_layers": 8,
            "num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2,
            "vocab_size": 32000}))
        args = ("--model", config, "--gpu", "h100", "--gpus", 8, "--set", "schedule=1f1b")
        plan = self.document(*args)
        self.assertIn(str(config), shlex.split(plan["command"]))
        env = self.plan(*args, "--export", "env").stdout
        subprocess.run(["sh", "-euc", env], cwd=self.cluster.root, check=True)
        self.assertFalse((self.cluster.root / "owned").exists())
        ast.parse(self.plan(*args, "--export", "torch").stdout)


if __name__ == "__main__":
    unittest.main()

"""The cores with one rule broken each: worlds, or the core's own tests, must find every one, or
they see nothing.

use: mutants.py BUILD [RUNS] - BUILD is a build folder with sim_worlds and the tests of the core in
it. Each mutant is a copy of one source with one piece of text replaced, linked before the library
that holds the right one.
     mutants.py --apply - whether the sources still hold what is to be replaced, once each.
"""

import concurrent.futures
import json
import os
import pathlib
import shlex
import subprocess
import sys

SOURCE = pathlib.Path(os.environ.get("DP_SOURCE", pathlib.Path(__file__).resolve().parents[2]))
CORE, AGENT = "controller/core/src/", "worker/agent_core/src/"
RUNS = 4000
TIMEOUT_S = 200

# What is broken; file; what stands there, once; what stands there instead.
# And the test of the core that finds it, where worlds do not, or seldom.
MUTANTS = [
    ("the agent does not fence itself", AGENT + "core.c",
     "return core->now_ns - core->heard_ns > core->orphan_ns;", "return false;"),
    ("answers leave before they are stored", CORE + "effects.c",
     "if (reply == 0 || dp_core_job_clean(job)) {", "if (true) {"),
    ("orders leave before they are stored", CORE + "jobs.c",
     "    if (!dp_core_job_clean(job)) {\n        return;\n    }\n    struct dp_fence fence",
     "    struct dp_fence fence"),
    ("the controller does not look at attempts and epochs", CORE + "levels.c",
     "    if (fence->attempt != job->row.attempt) {", "    return 0;\n    if (false) {"),
    ("news instead of levels: heartbeats say nothing", CORE + "levels.c",
     "    merge_all(core, node, levels);\n    find_missing(core, node, levels, false);", ""),
    ("what a heartbeat lacks is not missed", CORE + "levels.c",
     "    find_missing(core, node, levels, false);", ""),
    ("foreign assignments are forgotten", CORE + "levels.c",
     "    dp_order_kind wanted =\n        foreign->live > 0", "    return;\n"
     "    dp_order_kind wanted =\n        foreign->live > 0"),
    ("a node that is silent has no ranks any more", CORE + "silence.c",
     "            rank->phase = DP_RANK_UNKNOWN;", "            rank->phase = DP_RANK_DIED;"),
    ("slots of leftovers are given away", CORE + "nodes.c",
     "if (foreign->ours && foreign->live > 0 && ", "if (false && "),
    ("an attempt begins again before the older one is over", CORE + "jobs.c",
     "    if (again && (!job->gives_back || !dp_core_attempt_dead(job))) {\n        return false;",
     "    if (again) {\n        return true;"),
    ("a job goes back to the node that slowed it down", CORE + "queue_pass.c",
     " &&\n           !dp_core_job_avoids(job, node->row.name);", ";"),
    ("quotas are ignored", CORE + "quota.c",
     "return quota->row.ranks > quota->used ? quota->row.ranks - quota->used : 0;",
     "return UINT32_MAX;"),
    ("what could not be stored is not tried again", CORE + "core.c",
     "job->retry_ns = core->now_ns + core->config.store_retry_ms * DP_NS_PER_MS;",
     "job->retry_ns = 0;"),
    ("a job is complete with its first rank", CORE + "jobs.c",
     "            job->lacks_ok = at;\n            return false;", "            return i > 0;"),
    ("a request id is not looked up", CORE + "queue.c",
     "struct core_job *job = dp_core_job_by_request(core, submit->request_id);",
     "struct core_job *job = NULL;"),
    ("older epochs are not ended", CORE + "reassign_sides.c",
     "return dp_core_side_over(side, member->node) ? DP_ORDER_RELEASE : DP_ORDER_STOP;",
     "return member->told;"),
    ("an epoch is given out twice", CORE + "reassign_sides.c",
     "    job->row.epoch_used++;\n", ""),
    ("attempts do not count", CORE + "retry.c",
     "    row->attempt = (row->attempt > job->attempt_seen ? row->attempt : job->attempt_seen) + 1;\n",
     ""),
    ("attempts that nodes know of are given out again", CORE + "retry.c",
     "(row->attempt > job->attempt_seen ? row->attempt : job->attempt_seen) + 1;",
     "row->attempt + 1;", "core_queue_retry"),
    ("nothing is recovered within the attempt", CORE + "recover.c",
     "    if (!lives || job->row.recovery", "    if (true || job->row.recovery"),
    ("a rank that serves is counted as lost", CORE + "recover.c",
     "    if (!holds(job, rank) || ", "    if (!holds(job, rank) || rank->rank == 1 || "),
    ("a node that is down keeps its jobs", CORE + "node_admin.c",
     "        set_admin(core, node, DP_ADMIN_DOWN, ask->by, ask->reason);\n"
     "        node->leave_ns = core->now_ns;",
     "        set_admin(core, node, DP_ADMIN_DOWN, ask->by, ask->reason);"),
    ("strict is best effort", CORE + "queue_pass.c",
     "core->config.queue == DP_QUEUE_STRICT ||", "false ||"),
    ("jobs are passed for ever", CORE + "queue_pass.c",
     "(passed_ns != 0 && now_ns >= passed_ns", "(false && now_ns >= passed_ns"),
    ("jobs make way for their equals", CORE + "preempt.c",
     "job->row.priority < wanting->row.priority;", "job->row.priority <= wanting->row.priority;"),
    ("who must not be preempted is", CORE + "preempt.c",
     "return job->row.preemptible && job->row.priority", "return job->row.priority"),
    ("rows of the audit are tried once", CORE + "audit.c",
     "audit->unstored = audit->failed = core->audits_unstored = true;", ""),
    ("answers do not wait for the audit", CORE + "effects.c",
     "        dp_core_job_changed(job); // the answer waits", "        // the answer waits"),
    ("an attempt's row is forgotten for the next one's", CORE + "retry.c",
     "    past->next = job->pasts;\n", "    past->next = NULL;\n"),
    ("a decision that is followed has no end", CORE + "reassign_decide.c",
     "        reassign->decision_changed = true;\n    }\n    if (reassign",
     "    }\n    if (reassign"),
    ("a submission goes with a later transaction that fails", CORE + "jobs.c",
     "job->row.state == DP_STATE_SUBMITTED && job->stored_token == 0;",
     "job->row.state == DP_STATE_SUBMITTED;"),
    ("nodes are forgotten in memory alone", CORE + "node_admin.c",
     "    node->row.deleted = true;\n", ""),
    ("places that are not free are taken", CORE + "reassign_decide.c",
     "        if (*taken || unknown) {", "        if (false) {"),
    ("new ranks start before the old ones hold", CORE + "reassign.c",
     "        if (all_hold(job)) {", "        if (true) {"),
    ("a node to be left is left by later questions, too", CORE + "reassign_decide.c",
     "        job->reassign.away[0] = '\\0'; // of this question alone\n", ""),
    ("ranks that all hold leave a node, too", CORE + "recover.c",
     "        // All of them hold, and go on where they are, whatever they were to leave.\n"
     "        job->reassign.away[0] = '\\0';\n", ""),
    ("a node is left once", CORE + "node_admin.c",
     "        dp_core_node_each_job(core, node, clear);\n    }\n}",
     "        node->leave_ns = 0;\n        dp_core_node_each_job(core, node, clear);\n    }\n}"),
    ("what was decided is measured in the next attempt", CORE + "retry.c",
     "        dp_core_decision_set(job, DP_DECISION_FELL_BACK,\n"
     "                             \"attempt %u ended before enough steps were measured\", "
     "row->attempt);\n", "        (void)row;\n"),
    ("epochs that were given out are forgotten by a restart", CORE + "load.c",
     "    job->row = *load->job;\n",
     "    job->row = *load->job;\n    job->row.epoch_used = job->row.epoch;\n"),
    ("nodes that a job stays off are forgotten by a restart", CORE + "load.c",
     "    job->row = *load->job;\n", "    job->row = *load->job;\n    job->row.avoid[0] = 0;\n"),
    ("slots are given back as ranks are told to end", CORE + "members.c",
     "        used += dp_core_rank_has_slot(job, dp_core_member_rank(job, member, i));",
     "        used += job->row.state != DP_STATE_STOPPING &&\n"
     "                dp_core_rank_has_slot(job, dp_core_member_rank(job, member, i));"),
    ("what an older epoch says counts", CORE + "levels.c",
     "    if (fence->epoch != job->row.epoch) {", "    if (fence->epoch > job->row.epoch) {"),
    ("ranks settle at the oldest step", CORE + "reassign.c",
     "            rank->held.step > step) {",
     "            (step == 0 || rank->held.step < step)) {"),
    ("quotas count what runs", CORE + "quota.c",
     "    return job->gives_back && dp_job_state_ended(job->row.state) ? 0 : "
     "(uint32_t)job->ranks_count;",
     "    return job->row.state == DP_STATE_RUNNING ? (uint32_t)job->ranks_count : 0;"),
    ("a drain has no deadline", CORE + "node_admin.c",
     "        node->leave_ns = core->now_ns + ask->deadline_ms * DP_NS_PER_MS;\n", ""),
    ("a drain's deadline is forgotten by a restart", CORE + "node_admin.c",
     "        node->leave_ns = core->now_ns + (left_ns > settle_ns ? left_ns : settle_ns);",
     "        node->leave_ns = 0;"),
    ("fences pass with the lease's margin", CORE + "nodes.c",
     "    return node->seen_ns + (fence_ms + core->config.lease_margin_ms) * DP_NS_PER_MS;",
     "    return node->seen_ns + core->config.lease_margin_ms * DP_NS_PER_MS;"),
    ("a node that is late gets new work", CORE + "nodes.c",
     "        set_state(core, node, DP_NODE_LATE, \"no heartbeat\");",
     "        set_state(core, node, DP_NODE_READY, \"\");"),
    ("ranks that took over need not have their state", CORE + "reassign.c",
     "DP_RANK_RUNNING) && all_took(job)", "DP_RANK_RUNNING)"),
    ("who serves is not stored", CORE + "reassign.c",
     "    dp_core_sources_write(reassign->sources, reassign->sources_count, &job->row.sources);\n",
     ""),
    ("who serves is ended by the next controller", CORE + "levels.c",
     "    if (serves(job, fence)) {\n        return false;\n    }\n", ""),
    ("faults are not counted", CORE + "retry.c",
     "        row->faults += fault_of(job) == FAULT_OWN;\n", ""),
    ("the wait before an attempt is forgotten by a restart", CORE + "retry.c",
     "    if (job->row.retry_at_ns != 0 && left_ns > 0) {", "    if (false) {"),
    ("experts are placed twice", CORE + "rebalance.c",
     "    send_orders(core, job);\n    job->reassign.rebalance_ns",
     "    send_orders(core, job);\n    send_orders(core, job);\n    job->reassign.rebalance_ns"),
    ("ranks of a cancelled job are not waited for", CORE + "jobs.c",
     "            (job->row.outcome == DP_STATE_CANCELLED || !silent)) {",
     "            !silent) {"),
    ("what is left of older epochs is not waited for", CORE + "jobs.c",
     "    return again ? dp_core_sides_may_end(job) : dp_core_job_alone(job);",
     "    return true;"),
    ("who was held while he was planned starts", CORE + "queue.c",
     "return job->row.held_ns == 0 && dp_core_slots_fit(", "return dp_core_slots_fit("),
    ("who is held is planned", CORE + "queue_pass.c",
     "        wait_held(job);\n        return true;\n", ""),
    ("a hold is forgotten by a restart", CORE + "load.c",
     "    job->row = *load->job;\n", "    job->row = *load->job;\n    job->row.held_ns = 0;\n"),
    ("decisions that failed to be stored are not tried again", CORE + "reassign_decide.c",
     "    if (reassign->decision_changed || reassign->decision_token > job->stored_token) {\n"
     "        dp_core_store",
     "    if (reassign->decision_changed) {\n        dp_core_store"),
    ("slots are given back before the end is on disk", CORE + "core.c",
     "ends && !job->gives_back && dp_core_job_clean(job)", "ends && !job->gives_back", "core_disk"),
    ("a job begins again before its stop is on disk", CORE + "jobs.c",
     "(!job->gives_back || !dp_core_attempt_dead(job))", "!dp_core_attempt_dead(job)", "core_disk"),
    ("a job grows past its quota", CORE + "grow.c",
     "    return ranks - job->ranks_count <= dp_core_quota_left(core, job);", "    return true;",
     "core_grow"),
    ("slots of older epochs are not counted", CORE + "nodes.c",
     "        used += dp_core_sides_slots(core->sided[i], node->row.name, NULL, 0);", "        ;",
     "core_reassign"),
    ("slots of older epochs are given back before that is on disk", CORE + "reassign_sides.c",
     "        .stored = job->gives_back,\n", "        .stored = true,\n", "core_reassign"),
    ("a node that is down is forgotten by a restart", CORE + "node_admin.c",
     "        node->leave_ns = core->now_ns + settle_ns;", "        ;", "core_life"),
    ("a node is forgotten that has not said what it runs", CORE + "node_admin.c",
     "    bool unheard = !node->listed && !node->fenced;", "    bool unheard = false;", "core_life"),
    ("orders to hold and to settle that were lost are not repeated", CORE + "levels.c",
     "} else if (holds || ends) {", "} else if (ends) {", "core_reassign_recover"),
    ("a stop that was lost is not repeated", CORE + "levels.c",
     "} else if (holds || ends) {", "} else if (holds) {", "core_silence"),
    ("the checkpoint of who makes way is not heard of", CORE + "jobs.c",
     "    job->stop_saved = job->stop_wrote = job->row.state == DP_STATE_STOPPING;\n", "",
     "core_queue_order"),
    ("an attempt begins beside ranks of older epochs", CORE + "jobs.c",
     "    return again ? dp_core_sides_may_end(job) : dp_core_job_alone(job);",
     "    return again || dp_core_job_alone(job);", "core_remains"),
    ("ranks do not stay where no new work is to come", CORE + "reassign_decide.c",
     "    return works && strcmp(", "    return false && works && strcmp(",
     "core_reassign_recover"),
    ("recoveries are counted over attempts", CORE + "retry.c",
     "    reassign->recoveries = 0;\n    reassign->recovered_step = 0;\n", "",
     "core_reassign_recover"),
    ("a hello that was overtaken is believed", CORE + "nodes.c",
     "    return hello->sent_ns != 0 && ", "    return false && ", "core_failures"),
    ("nodes of jobs are not known after a restart", CORE + "load.c",
     "        if (dp_core_node_find(core, job->ranks[i].node) == NULL) {", "        if (false) {",
     "core_reports"),
    ("a later agent starts ranks that were stopped", AGENT + "core.c",
     "dp_agent_assignment_ended(assignment) ? DP_AGENT_DO_SHUTDOWN : DP_AGENT_DO_STOP;",
     "DP_AGENT_DO_STOP;", "worker_agent_core"),
    ("a new attempt starts beside the older one", AGENT + "core.c",
     "bool spared = newer->beside && older->fence.attempt == newer->fence.attempt;",
     "bool spared = true;", "worker_agent_epochs"),
    ("an order has arrived after some time", CORE + "levels.c",
     "        node->arrived_ns = seen->sent_ns;", "        node->arrived_ns = core->now_ns;",
     "core_silence"),
    ("lost orders are not repeated", CORE + "levels.c",
     "            if (arrived && !at_hello) {", "            if (false) {", "core_silence"),
    ("a silent keeper's ranks are dead", CORE + "levels.c",
     "        if (!dp_rank_phase_ended(level->ranks[i].phase)) {\n            return true;",
     "        if (level->ranks[i].phase > DP_RANK_UNKNOWN &&\n"
     "            !dp_rank_phase_ended(level->ranks[i].phase)) {\n            return true;",
     "core_failures"),
    ("a cancellation is forgotten when a better reason is found", CORE + "jobs.c",
     "            job->row.recovery = DP_JOB_RECOVERY_OFF;\n", "", "core_queue_retry"),
]


def program_of(mutant):
    """The program that is to find the mutant."""
    return f"test_{mutant[4]}" if len(mutant) > 4 else "sim_worlds"


def commands(build, programs):
    """How each source is compiled, and how each program is linked."""
    entries = json.loads((build / "compile_commands.json").read_text())
    compile_of = {os.path.realpath(e["file"]): e for e in entries}
    lines = subprocess.run(["ninja", "-C", str(build), "-t", "commands", *programs],
                           capture_output=True, text=True, check=True).stdout.splitlines()
    return compile_of, {p: next(line for line in lines if f"-o bin/{p} " in line)
                        for p in programs}


def stale(mutant):
    """Why the mutant cannot be made of the sources as they are now; "" when it can."""
    name, before = mutant[1:3]
    times = (SOURCE / name).read_text().count(before)
    return "" if times == 1 else f"{name}: {times} times: {before!r}"


def apply():
    """Whether all mutants can be made, in less than a second: a change of a rule shows at once."""
    problems = [f"{mutant[0]}: {why}" for mutant in MUTANTS if (why := stale(mutant))]
    print("\n".join(problems) or f"all {len(MUTANTS)} apply")
    return 1 if problems else 0


def make(build, folder, number, mutant, compile_of, links):
    """Returns the mutant's program, or why there is none."""
    name, before, after = mutant[1:4]
    if why := stale(mutant):
        return None, why
    text = (SOURCE / name).read_text()
    copy, made = folder / f"{number}.c", folder / f"{number}.o"
    copy.write_text(text.replace(before, after))
    entry = compile_of[os.path.realpath(SOURCE / name)]
    words = shlex.split(entry["command"])
    words[words.index("-o") + 1] = str(made)
    words[words.index("-c") + 1] = str(copy)
    subprocess.run(words + ["-w"], cwd=entry["directory"], check=True)
    program, right = folder / f"mutant_{number}", program_of(mutant)
    subprocess.run(links[right].replace(f"-o bin/{right} ", f"-o {program} {made} "), cwd=build,
                   check=True, shell=True)
    return program, ""


def judge(program, mutant, runs):
    """The rule that the mutant breaks, in words; None when it survives."""
    words = [] if len(mutant) > 4 else ["1", "find", str(runs)]
    try:
        done = subprocess.run([str(program), *words], capture_output=True, text=True,
                              timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return None
    if done.returncode == 0:
        return None
    lines = (done.stdout + done.stderr).strip().splitlines()
    failed = [line for line in lines if "[  FAILED  ]" in line and "test(s)" not in line]
    return (failed or lines or [f"exit status {done.returncode}"])[0]


def main():
    if sys.argv[1:] == ["--apply"]:
        return apply()
    build = pathlib.Path(sys.argv[1]).resolve()
    runs = int(sys.argv[2]) if len(sys.argv) > 2 else RUNS
    folder = build / "mutants"
    folder.mkdir(exist_ok=True)
    compile_of, links = commands(build, sorted({program_of(mutant) for mutant in MUTANTS}))
    problems = []

    def run(numbered):
        number, mutant = numbered
        program, why = make(build, folder, number, mutant, compile_of, links)
        return mutant[0], (judge(program, mutant, runs) if program else None), why

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(run, numbered) for numbered in enumerate(MUTANTS)]
        for future in concurrent.futures.as_completed(futures):
            what, found, why = future.result()
            print(f"{what}: {found or why or 'SURVIVES'}"[:200], flush=True)
            if found is None:
                problems.append(f"{what}: {why or 'not found'}")
    print("\n".join(problems) or f"all {len(MUTANTS)} were found")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

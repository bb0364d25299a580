#!/usr/bin/env python3
"""Predicted against published: every row of the tables of measured runs, priced by dpctl plan.

Each table's reader (tables.py) turns a row into the command that asks dpctl for the same run, the
figure it published and where the plan says it. Rows that the model cannot price stay in the list
with the reason. Rows that the built-in profiles were fitted on (named in profiles.json) are marked
"fit" and counted apart. Fails when a table's errors are worse than the recorded ones.
"""
import argparse
import concurrent.futures
import json
import os
import statistics
import subprocess
import sys

import tables

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
# Worse than recorded by more than this is a regression, in percentage points.
SLACK = {"median": 0.3, "p90": 1.0}


def percentile(values, share):
    """Linear interpolation between the closest ranks."""
    ordered = sorted(values)
    at = share * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (at - low) * (ordered[high] - ordered[low])


def dig(document, path):
    for key in path.split("."):
        document = document[int(key)] if key.lstrip("-").isdigit() else document[key]
    return document


def price(dpctl, case):
    """Fills case["predicted"], or case["refused"] with dpctl's reason."""
    if "refused" in case:
        return case
    if "predicted" not in case:
        ask(dpctl, case)
    if "refused" not in case:
        case["error"] = case["predicted"] / case["published"] - 1
    return case


def ask(dpctl, case):
    done = subprocess.run([dpctl, *case["command"], "-o", "json"], capture_output=True, text=True,
                          timeout=300)
    if done.returncode != 0:
        reason = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
        case["refused"] = f"dpctl exits {done.returncode}: {reason[0][:160]}"
        return
    try:
        case["predicted"] = case["read"](json.loads(done.stdout))
    except (KeyError, IndexError, TypeError, ValueError) as error:
        case["refused"] = f"the answer lacks the figure: {error!r}"


def fitted_rows(path):
    """Names of the rows that constants were fitted on, from anywhere in the profiles."""
    rows = set()

    def walk(node):
        if isinstance(node, dict):
            rows.update(node.get("fitted_on", []))
            for value in node.values():
                walk(value)
        elif isinstance(node, list):
            for value in node:
                walk(value)

    with open(path, encoding="utf-8") as file:
        walk(json.load(file))
    return rows


def is_fitted(case, fitted):
    """Named itself, or by what it is a part of."""
    name = case["name"]
    return name in fitted or any(name.startswith(f"{one}/") for one in fitted)


def summary(cases):
    errors = [abs(case["error"]) * 100 for case in cases]
    signed = [case["error"] * 100 for case in cases]
    if not errors:
        return {"rows": 0}
    return {
        "rows": len(errors),
        "median": statistics.median(errors),
        "p90": percentile(errors, 0.9),
        "max": max(errors),
        "mean_signed": statistics.fmean(signed),
    }


def print_rows(cases, fitted):
    for case in cases:
        head = f"  {case['name']:<66} {case['figure']:<8}"
        if "refused" in case:
            print(f"{head} not priced: {case['refused']}")
            continue
        mark = "fit" if is_fitted(case, fitted) else ""
        print(f"{head} {case['published']:>12.5g} {case['predicted']:>12.5g} "
              f"{case['error'] * 100:>+7.1f} % {mark}")


def print_summary(groups):
    print(f"\n{'table':<28}{'rows':>6}{'median':>9}{'p90':>9}{'max':>9}{'mean':>9}   not priced")
    for group, figures in groups.items():
        line = f"{group:<28}{figures['rows']:>6}"
        if figures["rows"]:
            line += (f"{figures['median']:>8.2f}%{figures['p90']:>8.2f}%{figures['max']:>8.2f}%"
                     f"{figures['mean_signed']:>+8.2f}%")
        else:
            line += " " * 36
        print(f"{line}   {figures['not_priced'] or ''}")


def regressions(groups, recorded):
    for group, before in recorded.items():
        now = groups.get(group)
        if now is None:
            continue  # its table is not at hand
        if now["not_priced"] > before["not_priced"]:
            yield f"{group}: {now['not_priced']} rows not priced, {before['not_priced']} before"
        for key, slack in SLACK.items():
            if before["rows"] and (not now["rows"] or now[key] > before[key] + slack):
                yield f"{group}: {key} {now.get(key, 0):.2f} %, recorded {before[key]:.2f} %"


def goals_missed(groups):
    for group, limits in tables.GOALS.items():
        figures = groups.get(group, {"rows": 0})
        for key, limit in limits.items():
            if figures["rows"] and figures[key] > limit:
                yield f"{group}: {key} {figures[key]:.2f} % is above the goal of {limit:g} %"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default=os.path.join(ROOT, "..", "shared", "validation"),
                        help="directory of the tables")
    parser.add_argument("--dpctl", default=os.path.join(ROOT, "build", "release", "bin", "dpctl"))
    parser.add_argument("--table", action="append", help="only this one (repeatable)")
    parser.add_argument("--json", help="write every row here")
    parser.add_argument("--record", action="store_true",
                        help="these errors are what later runs are held to")
    parser.add_argument("-q", "--quiet", action="store_true", help="summary only")
    options = parser.parse_args()
    if not os.path.isdir(options.data):
        print(f"skipped: no tables in {options.data}")
        return 77
    profiles = os.path.join(ROOT, "scheduler", "cost", "data", "profiles.json")
    fitted = fitted_rows(profiles)
    cases = tables.read_all(options.data, profiles, options.table)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        cases = list(pool.map(lambda case: price(options.dpctl, case), cases))
    groups = {}
    for group in dict.fromkeys(case["group"] for case in cases):
        mine = [case for case in cases if case["group"] == group]
        if not options.quiet:
            print(f"\n{group}: name, figure, published, predicted, error")
            print_rows(mine, fitted)
        priced = [case for case in mine if "error" in case and not is_fitted(case, fitted)]
        groups[group] = summary(priced)
        groups[group]["not_priced"] = sum("refused" in case for case in mine)
        groups[group]["fitted"] = sum(is_fitted(case, fitted) for case in mine)
    print_summary(groups)
    if options.json:
        rows = [{key: value for key, value in case.items() if key != "read"} for case in cases]
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"rows": rows, "groups": groups}, file, indent=1)
    recorded_path = os.path.join(HERE, "recorded.json")
    if options.record:
        with open(recorded_path, "w", encoding="utf-8") as file:
            json.dump(groups, file, indent=1, sort_keys=True)
            file.write("\n")
    for line in goals_missed(groups):
        print(f"goal missed: {line}")
    with open(recorded_path, encoding="utf-8") as file:
        worse = list(regressions(groups, json.load(file)))
    for line in worse:
        print(f"regression: {line}")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())

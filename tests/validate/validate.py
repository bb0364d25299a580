#!/usr/bin/env python3
"""Predicted against published: every row of the tables of measured runs, priced by dpctl plan.

Each table's reader (tables.py) turns a row into the command that asks dpctl for the same run, the
figure it published and where the plan says it. Rows that the model cannot price stay in the list
with the reason. Rows that the built-in profiles were fitted on (named in profiles.json) are marked
"fit" and counted apart. Fails when the errors of recorded rows are worse than recorded; README.md
says how to read all of it.
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


def fitted_names(names, fitted):
    """Of these rows: named themselves, or parts of a name that is no row."""
    parts = [f"{one}/" for one in fitted if one not in names]
    return {name for name in names if name in fitted or any(map(name.startswith, parts))}


def make_unique(cases):
    seen = {}
    for case in cases:
        seen[case["name"]] = seen.get(case["name"], 0) + 1
        if seen[case["name"]] > 1:
            case["name"] += f"#{seen[case['name']]}"


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
        mark = "fit" if case["name"] in fitted else ""
        print(f"{head} {case['published']:>12.5g} {case['predicted']:>12.5g} "
              f"{case['error'] * 100:>+7.1f} % {mark}")


def print_summary(groups):
    print(f"\n{'table':<28}{'rows':>6}{'median':>9}{'p90':>9}{'max':>9}{'mean':>9}{'fitted':>9}"
          "   not priced")
    for group, figures in groups.items():
        line = f"{group:<28}{figures['rows']:>6}"
        if figures["rows"]:
            line += (f"{figures['median']:>8.2f}%{figures['p90']:>8.2f}%{figures['max']:>8.2f}%"
                     f"{figures['mean_signed']:>+8.2f}%")
        else:
            line += " " * 36
        print(f"{line}{figures['fitted'] or '':>9}   {figures['not_priced'] or ''}")


def to_record(cases, fitted):
    """Errors in percent by table and row, but for fitted ones; None = not priced."""
    record = {}
    for case in cases:
        if case["name"] not in fitted:
            error = None if "refused" in case else round(case["error"] * 100, 3)
            record.setdefault(case["group"], {})[case["name"]] = error
    return record


def regressions(now, recorded):
    """Only rows of both count: more rows, or a table that is not at hand, are no regression."""
    for group, before in recorded.items():
        common = [name for name in before if name in now.get(group, {})]
        lost = [name for name in common if before[name] is not None and now[group][name] is None]
        for name in lost:
            yield f"{group}: {name} was priced"
        priced = [name for name in common if name not in lost and before[name] is not None]
        if not priced:
            continue
        was, are = ([abs(table[name]) for name in priced] for table in (before, now[group]))
        for key, share in (("median", 0.5), ("p90", 0.9)):
            old, new = percentile(was, share), percentile(are, share)
            if new > old + SLACK[key]:
                yield f"{group}: {key} {new:.2f} % over {len(priced)} rows, recorded {old:.2f} %"


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
    cases = tables.read_all(options.data, profiles, options.table)
    make_unique(cases)
    fitted = fitted_names({case["name"] for case in cases}, fitted_rows(profiles))
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        cases = list(pool.map(lambda case: price(options.dpctl, case), cases))
    groups = {}
    for group in dict.fromkeys(case["group"] for case in cases):
        mine = [case for case in cases if case["group"] == group]
        if not options.quiet:
            print(f"\n{group}: name, figure, published, predicted, error")
            print_rows(mine, fitted)
        priced = [case for case in mine if "error" in case and case["name"] not in fitted]
        groups[group] = summary(priced)
        groups[group]["not_priced"] = sum("refused" in case for case in mine)
        groups[group]["fitted"] = sum(case["name"] in fitted for case in mine)
    print_summary(groups)
    if options.json:
        rows = [{key: value for key, value in case.items() if key != "read"} for case in cases]
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"rows": rows, "groups": groups}, file, indent=1)
    recorded_path = os.path.join(HERE, "recorded.json")
    record = to_record(cases, fitted)
    if options.record:
        with open(recorded_path, "w", encoding="utf-8") as file:
            json.dump(record, file, indent=1)
            file.write("\n")
    for line in goals_missed(groups):
        print(f"goal missed: {line}")
    with open(recorded_path, encoding="utf-8") as file:
        worse = list(regressions(record, json.load(file)))
    for line in worse:
        print(f"regression: {line}")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""The rules of the tree that a compiler does not hold: sizes, banned calls, layers, leftovers.

Prints every violation as FILE:LINE: RULE and exits 1 when there is one.
"""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
FILE_LINES_MAX, FUNCTION_LINES_MAX, LINE_LENGTH_MAX = 800, 70, 100

BANNED = {
    "strcpy": "dp_copy_text", "strcat": "dp_buf_puts", "sprintf": "snprintf or dp_buf_printf",
    "gets": "fgets", "strtok": "strtok_r", "ctime": "dp_clock_format_utc", "asctime":
    "dp_clock_format_utc", "gmtime": "gmtime_r", "localtime": "localtime_r", "atoi": "strtol",
    "atof": "strtod", "rand": "dp_rand", "srand": "dp_rand", "system": "posix_spawn",
    "popen": "posix_spawn", "tmpnam": "mkstemp", "mktemp": "mkstemp", "usleep":
    "dp_clock_sleep_until_ns", "alloca": "dp_alloc",
}
# Who may include an outside library: one owner each (programs may use libuv and argp).
OWNERS = {
    "sqlite3.h": ["controller/store", "tests"],
    "zlib.h": ["api/dpctl"],
    "grpc/": ["api/rpc", "tests"],
    "microhttpd.h": ["api/rest"],
    "cblas.h": ["kernels/device", "tests"],
    "oneapi/dnnl/": ["kernels/device", "tests"],
    "cublasLt.h": ["kernels/cuda", "tests"],
    "cuda_runtime": ["kernels/cuda"],
    "infiniband/": ["worker/transport", "tests"],
    "jansson.h": ["base", "tests"],
    "toml++/": ["base"],
    "uv.h": ["controller/daemon", "worker/agent/", "api/dpctl"],
    "argp.h": ["controller/daemon", "worker/agent/", "worker/keeper", "worker/rank", "api/dpctl",
               "tests"],
    "ncurses.h": ["api/dpctl"],
}
# scheduler/ is pure: no clock, no threads, no files, no protobuf.
IMPURE = re.compile(r'#include\s*[<"](pthread\.h|time\.h|sys/time\.h|dp/clock\.h|protobuf-c/|dp/v1/)')
# What a test may do with its own arguments and scratch files.
FINE_IN_TESTS = {"atoi", "system"}
LEFTOVER = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")


def tracked():
    out = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if out.returncode == 0 and out.stdout:
        return [ROOT / line for line in out.stdout.splitlines() if (ROOT / line).is_file()]
    return [p for p in ROOT.rglob("*") if p.is_file() and ".git" not in p.parts
            and "build" not in p.parts]


def functions(lines):
    """Yields (line number, length) of each function: from a '{' in column 0 to its '}'."""
    start = None
    for number, line in enumerate(lines, 1):
        if line.startswith("{") and not lines[number - 2].startswith("class "):
            start = number
        elif line.startswith("}") and start is not None:
            yield start, number - start + 1
            start = None


def strip_strings(line):
    return re.sub(r'"(\\.|[^"\\])*"', '""', line)


def check_c(path, rel, lines, report):
    if len(lines) > FILE_LINES_MAX:
        report(rel, 1, f"{len(lines)} lines; a file has at most {FILE_LINES_MAX}")
    for start, length in functions(lines):
        if length > FUNCTION_LINES_MAX:
            report(rel, start, f"function of {length} lines; at most {FUNCTION_LINES_MAX}")
    for number, line in enumerate(lines, 1):
        if len(line) > LINE_LENGTH_MAX:
            report(rel, number, f"{len(line)} columns; at most {LINE_LENGTH_MAX}")
        if "\t" in line or line != line.rstrip():
            report(rel, number, "tab or trailing space")
        code = strip_strings(line).split("//")[0]
        if "/*" in code:
            report(rel, number, "block comment; // is used everywhere")
        for match in re.finditer(r"(?<![\w.>])(\w+)\s*\(", code):
            if match.group(1) in BANNED and not (
                    rel.startswith("tests/") and match.group(1) in FINE_IN_TESTS):
                report(rel, number, f"{match.group(1)} is banned; use {BANNED[match.group(1)]}")
        include = re.match(r'\s*#include\s*[<"]([^>"]+)', line)
        if include:
            check_include(rel, number, include.group(1), report)
        if rel.startswith("scheduler/") and IMPURE.search(line):
            report(rel, number, "scheduler/ is pure: no clock, threads or protobuf")
        if re.search(r"\bgoto\b", code):
            report(rel, number, "goto; use DP_CLEANUP")
        if rel.startswith("tests/") and re.search(r"\b(sleep|nanosleep)\s*\(", code):
            report(rel, number, "a test waits for an event with a deadline, it does not sleep")


def check_include(rel, number, header, report):
    for prefix, owners in OWNERS.items():
        if header.startswith(prefix) and not any(rel.startswith(owner) for owner in owners):
            report(rel, number, f"{header} belongs to {owners[0]}")


def main():
    problems = []

    def report(rel, number, text):
        problems.append(f"{rel}:{number}: {text}")

    count = 0
    for path in tracked():
        rel = path.relative_to(ROOT).as_posix()
        if rel == "tests/tidy/tidy.py" or path.suffix not in {
                ".c", ".h", ".cc", ".cu", ".cuh", ".py", ".sh", ".proto", ".cmake", ".txt"}:
            continue
        count += 1
        lines = path.read_text(encoding="utf-8").split("\n")
        lines = lines[:-1] if lines and lines[-1] == "" else lines
        for number, line in enumerate(lines, 1):
            if LEFTOVER.search(line):
                report(rel, number, "leftover marker")
        if path.suffix in {".c", ".h", ".cc", ".cu", ".cuh"}:
            check_c(path, rel, lines, report)
    print("\n".join(problems))
    print(f"{count} files, {len(problems)} problems")
    return 1 if problems or count == 0 else 0


if __name__ == "__main__":
    sys.exit(main())

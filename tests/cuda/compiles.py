#!/usr/bin/env python3
"""compiles.py BUILD WHY: the cuda device and the probes compile for every architecture without
warnings, and no kernel spills registers. WHY: why there is no compiler, or nothing."""

import collections
import pathlib
import re
import subprocess
import sys

ARCHITECTURES = {"sm_80", "sm_90a", "sm_100a"}
ENTRY = re.compile(r"Compiling entry function '(\w+)' for '(sm_\w+)'")
SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
REGISTERS = re.compile(r"Used (\d+) registers")


def kernels(log):
    """Yields (kernel, architecture, spilled bytes, registers)."""
    name = None
    for line in log.read_text(encoding="utf-8").splitlines():
        if match := ENTRY.search(line):
            name, arch, spilled = match.group(1), match.group(2), None
        elif (match := SPILLS.search(line)) and name:
            spilled = int(match.group(2)) + int(match.group(3))
        elif (match := REGISTERS.search(line)) and name:
            yield name, arch, spilled, int(match.group(1))
            name = None


def main():
    build, why = pathlib.Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else ""
    if why:
        print(f"skipped: {why}")
        return 77
    subprocess.run(["cmake", "--build", str(build), "--target", "test_cuda_device", "cuda_probes"],
                   check=True)
    failures, logs = [], 0
    for log in sorted([*(build / "kernels/cuda").glob("*.log"),
                       *(build / "tests/cuda").glob("*.log")]):
        logs += 1
        found = collections.defaultdict(int)
        most = 0
        for name, arch, spilled, registers in kernels(log):
            found[arch] += 1
            most = max(most, registers)
            if spilled != 0:
                failures.append(f"{log.name}: {name} for {arch} spills {spilled} bytes")
        if set(found) != ARCHITECTURES or len(set(found.values())) != 1:
            failures.append(f"{log.name}: kernels by architecture: {dict(found)}")
        print(f"{log.stem}: {max(found.values(), default=0)} kernels, at most {most} registers")
    if logs == 0:
        failures.append("no compiler's log")
    print("\n".join(failures))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

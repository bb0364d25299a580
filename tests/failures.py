#!/usr/bin/env python3
"""Says again, at the end of a log, why tests failed: failures.py BUILD LOG.

BUILD is where ctest ran, LOG what it printed. A reader who has only the end of a long log sees what
each failed test said, and then ctest's own summary once more.
"""
import pathlib
import re
import sys

LINES = 25  # the last of each test
TELLING = 12  # and lines from before these that look like reasons
TESTS = 12
TELLS = re.compile(
    r"broken invariant|Sanitizer|runtime error|\berror\b|ERROR|FAILED|Assert|Traceback|Error:"
    r"|\babort|\bkilled|free\(\)|malloc\(\)|corrupt|double free"
)


def outputs(text):
    """What each test printed, by its name, from ctest's LastTest.log."""
    found = {}
    for block in re.split(r"^\d+/\d+ Testing: ", text, flags=re.M)[1:]:
        name = block.split("\n", 1)[0].strip()
        parts = re.split(r"^Output:\n-+\n", block, maxsplit=1, flags=re.M)
        if len(parts) == 2:
            said, _, after = parts[1].rpartition("<end of output>")
            found[name] = (said.splitlines(), after)
    return found


def tell(name, why, said):
    print(f"--- {name} ({why}) said at last:")
    early, late = said[:-LINES], said[-LINES:]
    for line in [line for line in early if TELLS.search(line)][:TELLING]:
        print(f"  {line[:400]}")
    if early:
        print(f"  ... ({len(said)} lines)")
    for line in late:
        print(f"  {line[:400]}")


def main():
    build, log = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    text = log.read_text(errors="replace")
    at = max(text.rfind("% tests passed"), 0)
    summary = text[text.rfind("\n", 0, at) + 1 :]
    failed = re.findall(r"^\s*\d+ - (\S+) \((.*)\)", summary, flags=re.M)
    last = build / "Testing/Temporary/LastTest.log"
    said = outputs(last.read_text(errors="replace")) if last.exists() else {}
    print()
    for name, why in failed[:TESTS]:
        tell(name, why, said.get(name, ([], ""))[0])
    if len(failed) > TESTS:
        print(f"--- and {len(failed) - TESTS} more")
    print()
    print(summary, end="")


if __name__ == "__main__":
    main()

"""docs/guards.md: fifty threads in order, and every test that it names exists and is run."""

import os
import pathlib
import re
import sys

SOURCE = pathlib.Path(os.environ.get("DP_SOURCE", pathlib.Path(__file__).parents[2]))
THREADS = 50


def tests_of_the_tree():
    """Names that a table of cmocka tests or a Python test class holds."""
    names = set()
    for path in (*(SOURCE / "tests").rglob("*.c"), *(SOURCE / "tests").rglob("*.cc")):
        text = path.read_text()
        defined = set(re.findall(r"^static void (\w+)\(void \*\*(?:state)?\)", text, re.M))
        # Beside its definition, a test that runs stands in a table.
        names |= {name for name in defined if len(re.findall(rf"\b{name}\b", text)) > 1}
    for path in (SOURCE / "tests").rglob("test_*.py"):
        names |= set(re.findall(r"^    def (test_\w+)\(self\)", path.read_text(), re.M))
    return names


def main():
    known = tests_of_the_tree()
    rows = re.findall(r"^\| (\d+)([a-z]?) \| (.+?) \| (.+?) \| (.+) \|$",
                      (SOURCE / "docs" / "guards.md").read_text(), re.M)
    problems = []
    numbers = list(dict.fromkeys(int(number) for number, *_ in rows))
    if numbers != list(range(1, THREADS + 1)):
        problems.append(f"threads {numbers} instead of 1 to {THREADS}")
    named = 0
    for number, part, _, _, here in rows:
        tests = re.findall(r"`(\w+)`", here)
        named += len(tests)
        if not tests and "needs" not in here:
            problems.append(f"{number}{part}: neither a test nor a reason")
        problems += [f"{number}{part}: there is no test {test}" for test in tests
                     if test not in known]
    for problem in problems:
        print(f"docs/guards.md: {problem}")
    print(f"{len(numbers)} threads, {named} names, {len(known)} tests")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

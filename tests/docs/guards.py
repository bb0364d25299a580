"""docs/guards.md: fifty threads about exchanges and those about control planes (C1 to C67) in order,
and every test that is named exists and is run."""

import os
import pathlib
import re
import sys

SOURCE = pathlib.Path(os.environ.get("DP_SOURCE", pathlib.Path(__file__).parents[2]))
THREADS = {"": 50, "C": 67}


def tests_of_the_tree():
    """Names that a table of cmocka tests or a Python test class holds."""
    names = set()
    for path in (*(SOURCE / "tests").rglob("*.c"), *(SOURCE / "tests").rglob("*.cc")):
        text = path.read_text()
        defined = set(re.findall(r"^static void (\w+)\(void \*\*(?:state)?\)", text, re.M))
        # Beside its definition, a test that runs stands in a table.
        names |= {name for name in defined if len(re.findall(rf"\b{name}\b", text)) > 1}
    for path in (*(SOURCE / "tests").rglob("test_*.py"), *(SOURCE / "tests").rglob("*_test.py")):
        names |= set(re.findall(r"^    def (test_\w+)\(self\)", path.read_text(), re.M))
    return names


def main():
    known = tests_of_the_tree()
    rows = re.findall(r"^\| (C?)(\d+)([a-z]?) \| (.+?) \| (.+?) \| (.+) \|$",
                      (SOURCE / "docs" / "guards.md").read_text(), re.M)
    problems = []
    for kind, count in THREADS.items():
        numbers = list(dict.fromkeys(int(number) for of, number, *_ in rows if of == kind))
        missing = sorted(set(range(1, count + 1)) - set(numbers))
        if numbers != sorted(numbers) or missing or len(numbers) != count:
            problems.append(f"threads {kind}1 to {kind}{count}: missing or not in order: {missing}")
    named = 0
    for kind, number, part, _, _, here in rows:
        part = f"{kind}{number}{part}"
        tests = re.findall(r"`(\w+)`", here)
        named += len(tests)
        if not tests and "needs" not in here and "cannot" not in here:
            problems.append(f"{part}: neither a test nor a reason")
        problems += [f"{part}: there is no test {test}" for test in tests
                     if test not in known]
    for problem in problems:
        print(f"docs/guards.md: {problem}")
    print(f"{len(rows)} rows, {named} names, {len(known)} tests")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

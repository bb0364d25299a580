#!/usr/bin/python3
"""docs/what-if.md shows what a replay of examples/trace.csv says. Usage: page.py EMIT; with --write
after it the page is renewed."""

import os
import subprocess
import sys

COMMAND = "$ dpctl schedule replay examples/trace.csv\n"


def main():
    source = os.environ.get("DP_SOURCE", ".")
    page = os.path.join(source, "docs", "what-if.md")
    trace = os.path.join(source, "examples", "trace.csv")
    said = subprocess.run([sys.argv[1], "--text", trace], check=True, stdout=subprocess.PIPE,
                          universal_newlines=True).stdout
    with open(page) as file:
        text = file.read()
    head, command, tail = text.partition(COMMAND)
    assert command, "the page does not show the command"
    shown, stop, rest = tail.partition("\n$ ")
    wanted = head + command + said + stop + rest
    if "--write" in sys.argv:
        with open(page, "w") as file:
            file.write(wanted)
    elif wanted != text:
        print("docs/what-if.md shows:\n%s\nthe replay says:\n%s" % (shown, said))
        sys.exit("they differ; run page.py EMIT --write")


if __name__ == "__main__":
    main()

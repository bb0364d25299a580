#!/usr/bin/python3
"""The figures in docs/schedules.md are those that the simulator gives. Usage: figures.py FIGURES
[--write], FIGURES being the program that prints the tables; --write renews them on the page."""

import pathlib
import re
import subprocess
import sys

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "schedules.md"
BLOCK = re.compile(r"(<!-- figures -->\n)(.*?)(<!-- end of figures -->)", re.S)


def main():
    printed = subprocess.run([sys.argv[1]], check=True, stdout=subprocess.PIPE).stdout.decode()
    text = PAGE.read_text()
    found = BLOCK.search(text)
    if found is None:
        sys.exit("%s has no block of figures" % PAGE)
    if "--write" in sys.argv:
        PAGE.write_text(text[:found.start(2)] + printed + text[found.end(2):])
        return
    wanted = printed.splitlines()
    for number, line in enumerate(found.group(2).splitlines()):
        if number >= len(wanted) or line != wanted[number]:
            sys.exit("%s says:\n%s\nthe simulator:\n%s" %
                     (PAGE, line, wanted[number] if number < len(wanted) else "nothing"))
    if len(found.group(2).splitlines()) != len(wanted):
        sys.exit("%s lacks rows; renew it with --write" % PAGE)
    print("%d lines equal" % len(wanted))


main()

#!/usr/bin/python3
"""Compares drawings and exports with their golden files, byte for byte.

    golden_render.py EMIT [--update]      EMIT is the program render_emit

--update (`make golden-update`) writes the files anew; look at the difference before it is kept."""

import pathlib
import subprocess
import sys

FILES = pathlib.Path(__file__).resolve().parents[1] / "fixtures" / "render"
UNIT = ["1", "2", "1", "1", "3", "0"]
# File: arguments of render_emit. FORMAT FAMILY P M V F B I W FB HOP WIDTH
CASES = {
    "gantt-1f1b-4-8.txt": ["gantt", "1f1b", "4", "8", "0", *UNIT, "80"],
    "gantt-dualpipe-4-8.txt": ["gantt", "dualpipe", "4", "8", "0", *UNIT, "60"],
    "gantt-interleaved-4-8-4.txt":
        ["gantt", "interleaved", "4", "8", "4", "1e-3", "2e-3", "0", "0", "0", "1e-4", "40"],
    "gantt-dualpipe-4-8.ansi": ["gantt-color", "dualpipe", "4", "8", "0", *UNIT, "60"],
    "table-1f1b-4-8.txt": ["table", "1f1b", "4", "8", "0", *UNIT, "60"],
    "table-dualpipe-4-8.txt": ["table", "dualpipe", "4", "8", "0", *UNIT, "0"],
    "table-dualpipev-2-4.txt": ["table", "dualpipev", "2", "4", "0", *UNIT, "0"],
    "table-dualpipe-4-8.ansi": ["table-color", "dualpipe", "4", "8", "0", *UNIT, "80"],
    "dualpipe-4-8.svg": ["svg", "dualpipe", "4", "8", "0", *UNIT, "800"],
    "interleaved-2-256-2.svg": ["svg", "interleaved", "2", "256", "2", *UNIT, "640"],
    "dualpipev-2-4.csv": ["torch-csv", "dualpipev", "2", "4"],
    "dualpipev-2-4-comms.csv": ["torch-csv-comms", "dualpipev", "2", "4", "0", *UNIT],
    "dualpipev-2-4-comms-2.14.csv": ["torch-csv-comms-2.14", "dualpipev", "2", "4", "0", *UNIT],
    "dualpipe-2-4.perfetto.json": ["perfetto", "dualpipe", "2", "4", "0", *UNIT],
    "interleaved-4-8-4.megatron.txt": ["megatron", "interleaved", "4", "8", "4"],
    "1f1b-4-8.megatron.txt": ["megatron", "1f1b", "4", "8"],
    "dualpipe-2-4.json": ["json", "dualpipe", "2", "4"],
}


def main():
    program, update = sys.argv[1], "--update" in sys.argv[2:]
    wrong = []
    for name, arguments in CASES.items():
        got = subprocess.run([program, *arguments], capture_output=True, check=True).stdout
        path = FILES / name
        if update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(got)
        elif not path.exists() or path.read_bytes() != got:
            wrong.append(name)
            print("%s differs from what `render_emit %s` prints:" % (name, " ".join(arguments)))
            if path.exists():
                done = subprocess.run(["diff", "-u", str(path), "-"], input=got,
                                      capture_output=True, check=False)
                print(done.stdout.decode(errors="replace")[:4000])
    known = {path.name for path in FILES.iterdir()}
    strays = sorted(known - set(CASES))
    if strays:
        sys.exit("files that no case makes: %s" % ", ".join(strays))
    if wrong:
        sys.exit("%d of %d files differ; if that is right, `make golden-update`" % (
            len(wrong), len(CASES)))
    print("%d files" % len(CASES))


if __name__ == "__main__":
    main()

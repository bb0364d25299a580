"""Runs every command that the documentation shows: lines that begin with "$ " in console blocks.

Blocks of one file run in order, in one scratch directory beside the examples, with one state
directory. "# exit N" at the end of a line says that the command fails with N.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(os.environ["DP_SOURCE"])
BIN = pathlib.Path(os.environ["DP_BIN"])


def commands(text):
    for block in re.findall(r"```console\n(.*?)```", text, re.S):
        for line in block.splitlines():
            if line.startswith("$ "):
                command, _, note = line[2:].partition("  # exit ")
                yield command.strip(), int(note or 0)


def run_file(path, bin_directory):
    failures = count = 0
    with tempfile.TemporaryDirectory(prefix="dpd") as scratch:
        os.symlink(SOURCE / "examples", pathlib.Path(scratch) / "examples")
        os.mkdir(pathlib.Path(scratch) / "build")  # where a clone has what git ignores
        env = {**os.environ, "XDG_STATE_HOME": scratch + "/state", "NO_COLOR": "1",
               "PATH": f"{bin_directory}:{os.environ['PATH']}"}
        try:
            for command, expected in commands(path.read_text()):
                count += 1
                done = subprocess.run(["bash", "-c", command], cwd=scratch, env=env, timeout=600,
                                      capture_output=True, text=True, check=False)
                verdict = "ok" if done.returncode == expected else f"exit {done.returncode}"
                print(f"{path.name}: {command}: {verdict}", flush=True)
                if done.returncode != expected:
                    failures += 1
                    print(done.stdout[-3000:], done.stderr[-3000:], sep="\n", flush=True)
        finally:
            subprocess.run(["dpctl", "local", "down"], env=env, timeout=120, check=False)
    return count, failures


def main():
    # An optimised build when there is one: the examples are meant for it.
    release = SOURCE / "build" / "release" / "bin"
    bin_directory = release if (release / "dpctl").exists() else BIN
    total = failed = 0
    for path in [SOURCE / "README.md", *sorted((SOURCE / "docs").glob("*.md"))]:
        count, failures = run_file(path, bin_directory)
        total, failed = total + count, failed + failures
    print(f"{total} commands, {failed} failed")
    return 1 if failed or not total else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""What the static libraries export is named dp_, and no name is exported twice.

All libraries end up in the same programs, and libdpschedule in those of others: a helper that two
files of one module share is seen by everybody who links it.

symbols.py LIBRARY...: prints each violation as LIBRARY: NAME and exits 1 when there is one, 77 when
a library is not built.
"""

import collections
import pathlib
import re
import subprocess
import sys

# Modules that are not there yet; to be empty.
PENDING = set()

# Names of the compiler's: C++ (of the shims), sanitizers. And the accept4 of gRPC's, which api/rpc
# replaces.
FOREIGN = re.compile(r"_Z|__|DW\.ref\.|accept4$")
WEAK = "VvWwu"


def exported(library):
    """Yields (name, weak) of each symbol that the library defines for others."""
    out = subprocess.run(["nm", "--extern-only", "--defined-only", "--format=posix", library],
                         capture_output=True, text=True, check=True).stdout
    for line in out.splitlines():
        fields = line.split()
        if len(fields) >= 2 and len(fields[1]) == 1 and not FOREIGN.match(fields[0]):
            yield fields[0], fields[1] in WEAK


def main():
    libraries = [pathlib.Path(argument) for argument in sys.argv[1:]]
    missing = [library.name for library in libraries if not library.is_file()]
    owners = collections.defaultdict(set)
    problems, count = [], 0
    for library in libraries:
        if not library.is_file():
            continue
        module = library.stem.removeprefix("libdp_")
        for name, weak in exported(library):
            count += 1
            if not name.startswith("dp_") and module not in PENDING:
                problems.append(f"{library.name}: {name} is not named dp_")
            if not weak:
                owners[name].add(library.name)
    problems += [f"{' and '.join(sorted(where))}: {name} is defined in both"
                 for name, where in owners.items() if len(where) > 1]
    print("\n".join(sorted(problems)))
    print(f"{count} symbols, {len(problems)} problems")
    if problems or not libraries:
        return 1
    if missing:
        print(f"skipped: not built: {' '.join(missing)}")
        return 77
    return 0 if count > 0 else 1


if __name__ == "__main__":
    sys.exit(main())

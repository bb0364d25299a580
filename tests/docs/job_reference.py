#!/usr/bin/env python3
"""The tables of docs/job-file.md come from the table of keys. --write renews them, --check (the
default) fails when they differ."""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "job-file.md"
KEYS = ROOT / "scheduler" / "spec" / "src" / "job_keys.c"
TYPES = {"DP_KEY_TEXT": "string", "DP_KEY_PATH": "path", "I32": "integer", "I64": "integer",
         "DP_KEY_UINT64": "integer", "REAL": "number", "DP_KEY_DEVICE": "string",
         "DP_KEY_SPECIAL": "string"}


def tables():
    source = KEYS.read_text()
    out = []
    for section, body in re.findall(r"static const struct dp_key (\w+)_keys\[\] = \{(.*?)\n\};",
                                    source, re.S):
        out.append("## Top level\n" if section == "top" else f"## [{section}]\n")
        out.append("| key | type | meaning |\n| --- | --- | --- |")
        for key, kind, rest in re.findall(r'\{"(\w+)", (\w+),(.*?)\},\n', body + "\n", re.S):
            text = " ".join(re.findall(r'"([^"]*)"', rest)).replace("|", "\\|")
            required = bool(re.search(r"true,\s*\"", rest))
            out.append(f"| `{key}` | {TYPES[kind]} | {text}{' (required)' if required else ''} |")
        out.append("")
    return "\n".join(out)


def main():
    text = PAGE.read_text()
    head, _, tail = text.partition("<!-- keys -->\n")
    _, _, tail = tail.partition("<!-- end of keys -->\n")
    wanted = f"{head}<!-- keys -->\n{tables()}<!-- end of keys -->\n{tail}"
    if "--write" in sys.argv:
        PAGE.write_text(wanted)
        return 0
    if wanted != text:
        print("docs/job-file.md differs from the table of keys; run job_reference.py --write")
        return 1
    print("docs/job-file.md has every key")
    return 0


if __name__ == "__main__":
    sys.exit(main())

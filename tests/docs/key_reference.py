#!/usr/bin/env python3
"""The tables of docs/job-file.md and docs/cluster-file.md come from the tables of keys in
scheduler/spec. --write renews them; without it the test fails when they differ."""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
SPEC = ROOT / "scheduler" / "spec" / "src"
TYPES = {"DP_KEY_TEXT": "string", "DP_KEY_PATH": "path", "I32": "integer", "I64": "integer",
         "DP_KEY_INT32": "integer", "DP_KEY_UINT64": "integer", "REAL": "number",
         "DP_KEY_DOUBLE": "number", "DP_KEY_TEXTS": "list of strings",
         "DP_KEY_DEVICE": "string", "DP_KEY_FORMAT": "string",
         "DP_KEY_BIASES": "string", "DP_KEY_ROUTER": "string", "DP_KEY_ROPE": "string",
         "DP_KEY_SPECIAL": "string"}
SPECIAL = {("cluster", "level"): "tables", ("level", "nodes"): "integer"}
HEADINGS = {"top": "Top level", "cluster": "Keys", "level": "[[level]]"}


def key_tables(source):
    out = []
    for section, body in re.findall(r"static const struct dp_key (\w+)_keys\[\] = \{(.*?)\n\};",
                                    source, re.S):
        out.append(f"## {HEADINGS.get(section, f'[{section}]')}\n")
        out.append("| key | type | meaning |\n| --- | --- | --- |")
        for key, kind, rest in re.findall(r'\{"(\w+)", (\w+),(.*?)\},\n', body + "\n", re.S):
            text = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', rest)).replace('\\"', '"')
            text = text.replace("|", "\\|")
            required = bool(re.search(r"true,\s*\"", rest))
            shown = SPECIAL.get((section, key), TYPES[kind])
            out.append(f"| `{key}` | {shown} | {text}{' (required)' if required else ''} |")
        out.append("")
    return "\n".join(out)


def accelerator_table(source):
    columns = ["ranks a host", "scale_up_ranks", "flops_peak", "fp8_flops_peak", "memory_bytes",
               "memory_bandwidth", "scale_up_bandwidth", "scale_up_achieved",
               "scale_out_bandwidth", "units"]
    out = ["## Accelerators\n", f"| accelerator | {' | '.join(columns)} | confidence |",
           "|" + " --- |" * (len(columns) + 2)]
    recalled = re.search(r'#define RECALLED "(.*)"', source).group(1)
    for row in re.findall(r'^    GPU\(("[^)]*?)\),$', source, re.M):
        label, *figures = (field.strip() for field in row.split(",", len(columns) + 1))
        sure = recalled if figures[-1] == "RECALLED" else figures[-1].strip('"')
        numbers = " | ".join(f"{float(figure):g}" if float(figure) else "" for figure in figures[:-1])
        out.append(f"| `{label.strip(chr(34))}` | {numbers} | {sure} |")
    return "\n".join([*out, ""])


def generated(page):
    if page == "job-file.md":
        return key_tables((SPEC / "job_keys.c").read_text())
    presets = (SPEC / "cluster_presets.c").read_text()
    return f"{key_tables((SPEC / 'cluster.c').read_text())}\n{accelerator_table(presets)}"


def main():
    wrong = 0
    for page in ("job-file.md", "cluster-file.md"):
        path = ROOT / "docs" / page
        text = path.read_text()
        head, _, tail = text.partition("<!-- keys -->\n")
        _, _, tail = tail.partition("<!-- end of keys -->\n")
        wanted = f"{head}<!-- keys -->\n{generated(page)}<!-- end of keys -->\n{tail}"
        if "--write" in sys.argv:
            path.write_text(wanted)
        elif wanted != text:
            print(f"docs/{page} differs from the table of keys; run key_reference.py --write")
            wrong += 1
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

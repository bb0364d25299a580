#!/usr/bin/python3
"""Holds drawings and exports to what their readers want.

    render_forms.py EMIT        EMIT is the program render_emit

SVG: well-formed, without references to other files, everything inside the figure, rows as long as
the ranks are busy, text that stands out from its ground (WCAG 2: 4.5), colours that differ for the
usual colour blindnesses (matrices of Machado et al. 2009), small however big the schedule.
Perfetto: the JSON trace format's rules for slices, counters and arrows. Megatron: the layout string
by the grammar of its documentation."""

import itertools
import json
import re
import subprocess
import sys
import xml.etree.ElementTree as xml

NAME = "{http://www.w3.org/2000/svg}"
UNIT = ["1", "2", "1", "1", "3", "0"]


def emit(program, *arguments):
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True,
                          check=False)
    if done.returncode != 0:
        sys.exit("render_emit %s: %s" % (" ".join(map(str, arguments)), done.stderr))
    return done.stdout


# SVG


def linear(channel):
    value = channel / 255
    return value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4


def luminance(rgb):
    return sum(w * linear(c) for w, c in zip((0.2126, 0.7152, 0.0722), rgb))


def contrast(a, b):
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


SIGHTS = {
    "usual": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216),
                   (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413),
                     (-0.011820, 0.042940, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602),
                   (0.004733, 0.691367, 0.303900)),
}


def lab(rgb, sight):
    light = [linear(c) for c in rgb]
    light = [min(1, max(0, sum(a * b for a, b in zip(row, light)))) for row in SIGHTS[sight]]
    xyz = (sum(a * b for a, b in zip((0.4124, 0.3576, 0.1805), light)) / 0.9505,
           sum(a * b for a, b in zip((0.2126, 0.7152, 0.0722), light)),
           sum(a * b for a, b in zip((0.0193, 0.1192, 0.9505), light)) / 1.089)
    x, y, z = (t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116 for t in xyz)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def difference(a, b, sight):
    return sum((p - q) ** 2 for p, q in zip(lab(a, sight), lab(b, sight))) ** 0.5


def colors_of(root):
    style = root.find(NAME + "style").text
    return {name: tuple(int(value[i:i + 2], 16) for i in (0, 2, 4))
            for name, value in re.findall(r"\.([FBIW]\d+)\{fill:#([0-9a-f]{6})\}", style)}


def check_colors(colors, least):
    for (a, rgb_a), (b, rgb_b) in itertools.combinations(colors.items(), 2):
        if a[0] == b[0]:
            continue
        for sight in SIGHTS:
            got = difference(rgb_a, rgb_b, sight)
            assert got >= least, "%s and %s differ by %.1f for %s" % (a, b, got, sight)


def rects_of(root):
    """(class, x, y, width, height) of what is drawn with a class."""
    for rect in root.iter(NAME + "rect"):
        if "class" in rect.attrib:
            yield (rect.attrib["class"],
                   *(float(rect.attrib[k]) for k in ("x", "y", "width", "height")))


def check_inside(root):
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for _, x, y, w, h in rects_of(root):
        assert 0 <= x and 0 <= y and x + w <= width and y + h <= height, "a box is outside"
    for text in root.iter(NAME + "text"):
        x, y = float(text.attrib["x"]), float(text.attrib["y"])
        assert 0 <= x <= width and 0 <= y <= height, "text %r is outside" % text.text


def check_texts(root, colors):
    """Numbers stand inside their boxes and stand out from them."""
    boxes = [box for box in rects_of(root) if box[0] in colors]
    count = 0
    for text in root.iter(NAME + "text"):
        if text.attrib.get("class") not in ("d", "l"):
            continue
        x, y = float(text.attrib["x"]), float(text.attrib["y"])
        under = [b for b in boxes if b[1] <= x <= b[1] + b[3] and b[2] <= y <= b[2] + b[4]]
        assert under, "number %s stands on nothing" % text.text
        ink = (0, 0, 0) if text.attrib["class"] == "d" else (255, 255, 255)
        assert contrast(ink, colors[under[-1][0]]) >= 4.5, "number %s is hard to read" % text.text
        count += 1
    return count


def check_svg(program, family, pipeline, microbatches, busy):
    text = emit(program, "svg", family, pipeline, microbatches, 0, *UNIT)
    root = xml.fromstring(text)
    assert root.tag == NAME + "svg"
    assert not re.search(r"href|@import|<script|https?://(?!www\.w3\.org/2000/svg)", text)
    colors = colors_of(root)
    check_inside(root)
    check_colors(colors, 9.5)
    numbers = check_texts(root, colors)
    grounds = [r for r in root.iter(NAME + "rect") if r.attrib.get("fill") == "url(#bubble)"]
    rows = [r for r in grounds if float(r.attrib["width"]) > 100]
    assert len(rows) == pipeline
    for row in rows:
        y, length = float(row.attrib["y"]), float(row.attrib["width"])
        height = float(row.attrib["height"])
        boxes = [b for b in rects_of(root) if b[0] in colors and y <= b[2] < y + height]
        area = sum((w + (0.8 if w > 4.2 else 0)) * h for _, _, _, w, h in boxes)
        share = area / (length * height)
        assert abs(share - busy) < 0.005, "row covered for %.3f, busy for %.3f" % (share, busy)
    return numbers


def check_peak_marks(program):
    """1F1B keeps at most P - r micro-batches on rank r: the marks' heights say so."""
    root = xml.fromstring(emit(program, "svg", "1f1b", 4, 8, 0, *UNIT))
    marks = [c for c in root.iter(NAME + "circle")][:4]
    rows = sorted(float(r.attrib["y"]) for r in root.iter(NAME + "rect")
                  if r.attrib.get("fill") == "url(#bubble)" and float(r.attrib["width"]) > 100)
    base = [y + 26 + 2 + 14 for y in rows]
    heights = [b - float(c.attrib["cy"]) for b, c in zip(base, marks)]
    assert [round(4 * h / heights[0], 6) for h in heights] == [4, 3, 2, 1], heights


def check_svgs(program):
    # Work over makespan: closed forms of 1F1B and ZB-H1 with F=1, B=2, I=W=1 and P=8, M=24, and
    # the recorded makespan of DualPipe's reference for P=4, M=8: 26.
    assert check_svg(program, "1f1b", 4, 8, 24 / 33) == 64
    assert check_svg(program, "zb-h1", 8, 24, 72 / 79) > 500
    assert check_svg(program, "dualpipe", 4, 8, 24 / 26) > 60
    check_svg(program, "dualpipev", 4, 10, 60 / 66)
    check_peak_marks(program)
    for arguments in (("dualpipev", 256, 1024, 0), ("interleaved", 64, 512, 4),
                      ("1f1b", 256, 64, 0), ("gpipe", 1, 20000, 0)):
        text = emit(program, "svg", *arguments)
        xml.fromstring(text)
        assert len(text) < 4 << 20, "%s: %d bytes" % (arguments, len(text))


# Perfetto


def check_perfetto(program, family, pipeline, microbatches, messages):
    trace = json.loads(emit(program, "perfetto", family, pipeline, microbatches, 0, *UNIT))
    events = trace["traceEvents"]
    slices = [e for e in events if e["ph"] == "X"]
    for event in events:
        assert event["ph"] in "MXCsf" and event["pid"] == 1, event
        assert event["ph"] == "M" or event["ts"] >= 0, event
    starts = {e["id"]: e for e in events if e["ph"] == "s"}
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    assert len(starts) == len(ends) == messages and starts.keys() == ends.keys(), len(starts)
    for number, start in starts.items():
        end = ends[number]
        assert end["bp"] == "e" and start["name"] == end["name"] and start["cat"] == end["cat"]
        source, target = (
            next(s for s in slices if s["tid"] == e["tid"] and
                 s["ts"] <= e["ts"] <= s["ts"] + s["dur"]) for e in (start, end))
        assert source["tid"] != target["tid"], number
        assert source["ts"] + source["dur"] <= target["ts"] + 1e-6, "an arrow goes back in time"
    counters = {}
    for event in events:
        if event["ph"] == "C":
            counters.setdefault(event["name"], []).append((event["ts"], event["args"]["bytes"]))
    assert len(counters) == pipeline
    for name, points in counters.items():
        assert points[0] == (0, 0) or points[0][0] == 0, name
        assert points[-1][1] == 0 and [t for t, _ in points] == sorted({t for t, _ in points}), name
    return max(level for points in counters.values() for _, level in points)


def check_traces(program):
    # Each of the 2(P-1) hops of a micro-batch is a message; 1F1B keeps P of them on rank 0.
    assert check_perfetto(program, "1f1b", 4, 8, 8 * 6) == 4
    # DualPipe keeps P + 1 chunks (the table of its README).
    assert check_perfetto(program, "dualpipe", 4, 8, 8 * 6) == 5
    # A V has 2P - 1 hops each way, one of them at home.
    assert check_perfetto(program, "dualpipev", 2, 4, 4 * 4) == 5


# Megatron


def layout_of(text):
    """Stages of a layout string: brackets are repeated first, then single symbols."""
    text = re.sub(r"\(([^()]*)\)\*(\d+)", lambda m: m.group(1) * int(m.group(2)),
                  text.replace(",", ""))
    text = re.sub(r"(\w)\*(\d+)", lambda m: m.group(1) * int(m.group(2)), text)
    assert re.fullmatch(r"[EtmL|]*", text), text
    return text.split("|")


def check_megatron(program, family, pipeline, microbatches, chunks):
    text = emit(program, "megatron", family, pipeline, microbatches, chunks)
    lines = text.split(" \\\n")
    flags = dict(re.fullmatch(r"--([a-z-]+) '?([^']*?)'?\n?", line).groups() for line in lines)
    stages = layout_of(flags["pipeline-model-parallel-layout"])
    every = "".join(stages)
    assert len(stages) % int(flags["pipeline-model-parallel-size"]) == 0
    assert len(stages) == pipeline * max(1, chunks)
    assert every[0] == "E" and every[-1] == "L" and every.count("E") == every.count("L") == 1
    assert every.count("t") == int(flags["num-layers"]) == 2 * len(stages) + 1
    assert every.count("m") == int(flags["mtp-num-layers"]) == 1
    assert "m" in stages[-1] and "t" not in every[every.index("m"):]
    assert int(flags["global-batch-size"]) == int(flags["micro-batch-size"]) * microbatches * 4
    if chunks > 1:
        group = int(flags["microbatch-group-size-per-virtual-pipeline-stage"])
        rest = microbatches % group
        assert pipeline <= group <= microbatches and (rest == 0 or rest >= pipeline)
    known = {"pipeline-model-parallel-size", "num-layers", "mtp-num-layers",
             "pipeline-model-parallel-layout", "microbatch-group-size-per-virtual-pipeline-stage",
             "micro-batch-size", "global-batch-size"}
    assert set(flags) <= known, flags


def check_megatrons(program):
    for pipeline, microbatches, chunks in itertools.product((2, 4, 8), (8, 16, 24), (2, 3, 4)):
        check_megatron(program, "interleaved", pipeline, microbatches, chunks)
        check_megatron(program, "1f1b", pipeline, microbatches, 0)
    refused = {"gpipe": "F4@0", "zb-h1": "zero-bubble", "zb-v": "a V or waves",
               "v-half": "a V or waves", "hanayo": "a V or waves", "dualpipe": "bidirectional",
               "chimera": "bidirectional", "dualpipev": "MindSpeed"}
    for family, why in refused.items():
        done = subprocess.run([program, "megatron", family, "4", "8"], capture_output=True,
                              text=True, check=False)
        assert done.returncode != 0 and why in done.stderr, (family, done.stderr)
        assert "--overlap-moe-expert-parallel-comm --delay-wgrad-compute" in done.stderr, family


def main():
    program = sys.argv[1]
    check_svgs(program)
    check_traces(program)
    check_megatrons(program)
    print("drawings and exports are as their readers want them")


if __name__ == "__main__":
    main()

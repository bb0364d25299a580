#!/usr/bin/env python3
"""Token files of all formats, written and read by numpy from the formats' descriptions, against what
a training rank reads from them. Usage: token_files_oracle.py DUMP-PROGRAM"""

import pathlib
import struct
import subprocess
import sys
import tempfile

import numpy

DUMP = sys.argv[1]
SEQUENCE = 13
DTYPE_CODES = {"uint8": 1, "int16": 3, "int32": 4, "int64": 5, "uint16": 8}


def write_llmc(path, tokens, dtype):
    header = numpy.zeros(256, dtype="<i4")
    header[0:3] = (20240520, 1, len(tokens)) if dtype == "uint16" else (20240801, 7, len(tokens))
    path.write_bytes(header.tobytes() + tokens.astype(f"<u{2 if dtype == 'uint16' else 4}").tobytes())


def write_megatron(stem, tokens, dtype, rng, modes=False):
    """Documents of one or more sequences; some sequences are empty."""
    cuts = numpy.sort(rng.integers(0, len(tokens) + 1, size=9))
    lengths = numpy.diff(numpy.concatenate([[0], cuts, [len(tokens)]]))
    width = numpy.dtype(dtype).itemsize
    pointers = numpy.concatenate([[0], numpy.cumsum(lengths[:-1])]) * width
    documents = numpy.concatenate([[0], numpy.sort(rng.integers(0, 11, size=3)), [len(lengths)]])
    stem.with_suffix(".bin").write_bytes(tokens.astype(numpy.dtype(dtype).newbyteorder("<")).tobytes())
    stem.with_suffix(".idx").write_bytes(
        b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, DTYPE_CODES[dtype], len(lengths), len(documents))
        + lengths.astype("<i4").tobytes() + pointers.astype("<i8").tobytes()
        + documents.astype("<i8").tobytes() + (b"\1" * len(lengths) if modes else b""))


def dump(path, vocabulary, form="auto", width=0, shuffle=1, holdout=0.2, samples=40, seed=3):
    out = subprocess.run([DUMP, str(path), form, str(width), str(vocabulary), str(SEQUENCE), str(seed),
                          str(shuffle), str(holdout), str(samples)], capture_output=True, text=True)
    if out.returncode != 0:
        sys.exit(f"{path}: {out.stderr}")
    head, *rows = out.stdout.splitlines()
    form, tokens, size, train, held = head.split()
    return form, int(tokens), int(size), int(train), int(held), [
        [int(word) for word in row.split()] for row in rows]


def check(path, tokens, each, wanted_form, vocabulary, **options):
    form, count, size, train, held, rows = dump(path, vocabulary, **options)
    assert (form, count, size) == (wanted_form, len(tokens), len(tokens) * each), (path, form, count, size)
    for row in rows:
        offset, read = row[0], row[1:]
        assert read == tokens[offset:offset + SEQUENCE + 1].tolist(), (path, offset)
    last_trained = len(tokens) - int(len(tokens) * options.get("holdout", 0.2))
    trained, kept = rows[:len(rows) - held], rows[len(rows) - held:]
    assert all(row[0] + SEQUENCE < last_trained for row in trained)
    assert [row[0] for row in kept] == [last_trained + i * SEQUENCE for i in range(held)]
    if options.get("shuffle", 1) == 0:
        assert [row[0] for row in trained] == [i % train * SEQUENCE for i in range(len(trained))]
    return [row[0] for row in trained]


def main():
    rng = numpy.random.default_rng(5)
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name)
        small, large = rng.integers(0, 50257, 1200), rng.integers(0, 128256, 1200)
        bytes_ = rng.integers(0, 256, 1200)

        (root / "text").write_bytes(bytes_.astype("u1").tobytes())
        check(root / "text", bytes_, 1, "bytes", 256)
        write_llmc(root / "a.bin", small, "uint16")
        first = check(root / "a.bin", small, 2, "gpt2", 50257)
        write_llmc(root / "renamed.dat", large, "uint32")
        assert check(root / "renamed.dat", large, 4, "gpt2", 128256) == first  # the order is no matter of files
        (root / "b.bin").write_bytes(small.astype("<u2").tobytes())
        check(root / "b.bin", small, 2, "gpt2", 50257)
        check(root / "b.bin", small, 2, "gpt2", 50257, shuffle=0, samples=200)
        (root / "c.bin").write_bytes(large.astype("<u4").tobytes())
        check(root / "c.bin", large, 4, "gpt2", 128256)
        (root / "d.bin").write_bytes(small.astype("<u4").tobytes())
        check(root / "d.bin", small, 4, "gpt2", 50257, width=4)
        check(root / "a.bin", numpy.frombuffer((root / "a.bin").read_bytes(), "u1"), 1, "bytes", 256,
              form="bytes")

        for dtype, tokens in (("uint16", small), ("int32", large), ("int64", large), ("uint8", bytes_),
                              ("int16", small % 32768)):
            write_megatron(root / f"m-{dtype}", tokens, dtype, rng, modes=dtype == "int32")
            width = numpy.dtype(dtype).itemsize
            for ending in ("", ".bin", ".idx"):
                check(root / f"m-{dtype}{ending}", tokens, width, "megatron", 128256)

        shards = root / "shards"
        shards.mkdir()
        for i, cut in enumerate(numpy.split(small, [300, 301, 900])):
            write_llmc(shards / f"part-{i}.bin", cut, "uint16")
        assert check(shards, small, 2, "gpt2", 50257) == first
        pairs = root / "pairs"
        pairs.mkdir()
        for i, cut in enumerate(numpy.split(small, [500])):
            write_megatron(pairs / f"part-{i}", cut, "uint16", rng)
        assert check(pairs, small, 2, "megatron", 50257) == first


main()

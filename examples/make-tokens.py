#!/usr/bin/env python3
"""A text as a file of tokens, one for each word or mark: make-tokens.py TEXT FILE.bin [VOCABULARY]

The most frequent ones get the ids from 1 on; 0 is every other one. The file starts with the header of
llm.c, then come uint16 tokens."""

import array
import collections
import re
import sys


def main():
    text, path = sys.argv[1:3]
    vocabulary = int(sys.argv[3]) if len(sys.argv) > 3 else 1024
    with open(text, encoding="utf-8") as file:
        words = re.findall(r"\w+|[^\w\s]", file.read())
    known = {word: 1 + rank for rank, (word, _) in
             enumerate(sorted(collections.Counter(words).items(), key=lambda item: (-item[1], item[0]))
                       [:vocabulary - 1])}
    tokens = array.array("H", (known.get(word, 0) for word in words))
    header = array.array("i", [20240520, 1, len(tokens)] + [0] * 253)
    if sys.byteorder == "big":
        tokens.byteswap()
        header.byteswap()
    with open(path, "wb") as file:
        header.tofile(file)
        tokens.tofile(file)
    print(f"{len(tokens)} tokens, {len(known) + 1} of them different")


main()

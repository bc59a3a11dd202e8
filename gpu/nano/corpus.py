"""Builds the plain-text corpus from unpacked Debian packages, and reads it.

    apt-get download PACKAGE...            the packages of README.md
    dpkg -x PACKAGE.deb ROOT               each
    corpus.py ROOT OUT                     OUT/train.bin and OUT/held.bin

A corpus is documents joined by the byte 0. One document in 40, by a hash of its name, is held out
and never trained on.
"""
import argparse
import gzip
import hashlib
import html
import lzma
import os
import pathlib
import re

import numpy as np

from config import BOS

# Folder below ROOT, file suffixes, whether the files are manual pages.
SOURCES = [
    ("usr/share/doc/python3.11/html", (".rst.txt",), False),
    ("usr/lib/python3.11", (".py",), False),
    ("usr/lib/python3/dist-packages/django", (".py",), False),
    ("usr/share/doc/python-django-doc/html", (".txt", ".html"), False),
    ("usr/share/doc/debian-reference-common/docs", (".txt", ".txt.gz", ".html"), False),
    ("usr/share/debian-reference", (".html", ".txt.gz"), False),
    ("usr/share/doc/debian-policy", (".txt", ".txt.gz", ".html"), False),
    ("usr/share/doc/developers-reference", (".txt", ".txt.gz", ".html"), False),
    ("usr/share/developers-reference", (".txt", ".html"), False),
    ("usr/share/perl", (".pod",), False),
    ("usr/share/doc/sqlite3", (".html",), False),
    ("usr/share/man", (".gz",), True),
]
HELD_OUT_ONE_IN = 40
FILE_BYTES = range(400, 6_000_001)
SPLIT_ABOVE_BYTES, PART_BYTES = 400_000, 100_000
TAG = re.compile(r"<[^>]*>", re.S)
DROP = re.compile(r"<(script|style|head)\b.*?</\1>|<!--.*?-->", re.S | re.I)


def without_roff(text):
    """A manual page without its comments, requests and font changes."""
    text = re.sub(r'^[.\']\\".*\n', "", text, flags=re.M)
    text = re.sub(r"^\.(SH|SS) ?", r"\n", text, flags=re.M)
    text = re.sub(r"^\.[A-Za-z]+ ?", "", text, flags=re.M)
    text = re.sub(r"\\f[A-Z]|\\f\(..|\\&|\\c$", "", text, flags=re.M)
    return text.replace("\\-", "-").replace("\\(aq", "'").replace("\\e", "\\")


def plain(name, raw, manual):
    """Text of one file: markup stripped, runs of blank lines collapsed."""
    if name.endswith(".gz"):
        raw = gzip.decompress(raw)
    text = raw.decode("utf-8", "replace").replace("\r\n", "\n")
    if name.endswith(".html"):
        text = html.unescape(TAG.sub("", DROP.sub("", text)))
    if manual:
        text = without_roff(text)
    text = re.sub(r"[ \t]+\n", "\n", text)
    return re.sub(r"\n{3,}", "\n\n", text).replace("\x00", "").strip() + "\n"


def documents(root, folder, suffixes, manual):
    """(path below root, text as bytes) of the files of one source, in a fixed order."""
    for base, dirs, files in sorted(os.walk(os.path.join(root, folder))):
        dirs.sort()
        for file in sorted(files):
            path = os.path.join(base, file)
            if file.endswith(suffixes) and not os.path.islink(path) \
                    and not file.startswith("genindex"):
                raw = pathlib.Path(path).read_bytes()
                yield os.path.relpath(path, root), plain(file, raw, manual).encode()


def held_out(name, part):
    digest = hashlib.sha256(f"{name}:{part}".encode()).digest()
    return digest[0] * 256 + digest[1] < 65536 // HELD_OUT_ONE_IN


def build(root, out):
    """Writes train.bin and held.bin; a text that occurs twice is taken once."""
    seen, train, held = set(), [], []
    for folder, suffixes, manual in SOURCES:
        total = 0
        for name, data in documents(root, folder, suffixes, manual):
            digest = hashlib.sha256(data).digest()
            if len(data) not in FILE_BYTES or digest in seen:
                continue
            seen.add(digest)
            total += len(data)
            size = PART_BYTES if len(data) > SPLIT_ABOVE_BYTES else len(data)
            for n, at in enumerate(range(0, len(data), size)):
                (held if held_out(name, n) else train).append(data[at:at + size])
        print(f"{total:>10} {folder}")
    out.mkdir(parents=True, exist_ok=True)
    for name, parts in (("train.bin", train), ("held.bin", held)):
        (out / name).write_bytes(b"\x00".join(parts))
        print(f"{sum(map(len, parts)):>10} {name}, {len(parts)} documents")


def load_corpus(path):
    """A corpus, plain or .xz, as uint16 tokens; the document separator becomes <bos>."""
    path = pathlib.Path(path)
    raw = lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
    tokens = np.frombuffer(raw, dtype=np.uint8).astype(np.uint16)
    tokens[tokens == 0] = BOS
    return tokens


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", metavar="ROOT", type=pathlib.Path,
                        help="folder with the packages' files")
    parser.add_argument("out", metavar="OUT", type=pathlib.Path, help="folder for the two files")
    options = parser.parse_args()
    build(options.root, options.out)


if __name__ == "__main__":
    main()

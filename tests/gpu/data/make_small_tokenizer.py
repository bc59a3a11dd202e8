#!/usr/bin/env python3
"""Writes small_tokenizer.json, of DeepSeek's kind, and small_tokenizer_ids.json, texts and their ids.

    make_small_tokenizer.py FOLDER

The ids come from the plain implementation below: words cut by hand with the categories of unicodedata, and merges
found by looking at every pair again and again. It shares nothing with the product but the definition.
"""
import json
import pathlib
import random
import re
import sys
import unicodedata
from collections import Counter

ASCII_PUNCTUATION = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
SPLITS = [
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
]
SPECIAL = ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"]
MARKERS = ["<｜System｜>", "<｜User｜>", "<｜Assistant｜>", "<think>", "</think>", "｜DSML｜"]
CORPUS = """
The quick brown fox jumps over the lazy dog. The dog sleeps; the fox is quick. He said that they're the ones who
would've known, and that it isn't there. The theory of the thing is there in the other thread, rather than here.
def main(argc, argv):
    for token in tokens:
        print(token.text, token.id)
    return the_other_thing(1234, 5678)
int main() { std::string text = "the text"; return 0; }
Größe und Länge der Straße; être ou ne pas être. Привет, мир! Это тест, а не сказка.
日本語のテキスト。中文文本和标点，这是一个测试。これはテストです。 한국어 텍스트.
In 2024 there were 1000 tests and 365 days; 3.14159 is not 22/7. ½ + ¼ = ¾.
""" * 2
MERGES = 330


def alphabet():
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    return {b: chr(b) for b in printable} | {b: chr(0x100 + i) for i, b in enumerate(others)}


BYTES = alphabet()


def is_space(c):
    return c in "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" or "\u2000" <= c <= "\u200a"


def run(text, at, test):
    while at < len(text) and test(text[at]):
        at += 1
    return at


def isolate(text, test, most=None):
    """Parts of text: matches of test{1,most} and what is between them."""
    parts, at = [], 0
    while at < len(text):
        found = test(text[at])
        end = run(text, at, lambda c: test(c) == found)
        if found and most:
            end = min(end, at + most)
        parts.append(text[at:end])
        at = end
    return parts


def word_end(text, at):
    """Where the third regex's match at this place ends; None: it does not match here."""
    category = lambda c: unicodedata.category(c)[0]
    letter, symbol = lambda c: category(c) in "LM", lambda c: category(c) in "PS"
    c, rest = text[at], text[at + 1:at + 2]
    if c in ASCII_PUNCTUATION and rest.isascii() and rest.isalpha():
        return run(text, at + 1, lambda d: d.isascii() and d.isalpha())
    if c not in "\r\n" and category(c) not in "LPS" and rest and letter(rest):
        return run(text, at + 1, letter)
    if letter(c):
        return run(text, at, letter)
    start = at + 1 if c == " " else at
    end = run(text, start, symbol)
    if end > start:
        return run(text, end, lambda d: d in "\r\n")
    end = run(text, at, is_space)
    if end == at:
        return None
    blank = text[at:end]
    if newlines := [i for i, d in enumerate(blank) if d in "\r\n"]:
        return at + newlines[-1] + 1
    if end < len(text) and len(blank) > 1:
        return end - 1
    return end


def words(text):
    for number in isolate(text, lambda c: unicodedata.category(c)[0] == "N", 3):
        for part in isolate(number, lambda c: "一" <= c <= "龥" or "\u3040" <= c <= "ヿ"):
            at = between = 0
            while at < len(part):
                end = word_end(part, at)
                if end is None:
                    at += 1
                    continue
                if between < at:
                    yield part[between:at]
                yield part[at:end]
                at = between = end
            if between < at:
                yield part[between:at]


def letters(data):
    return [BYTES[b] for b in data]


def join(symbols, left, right):
    out = []
    for symbol in symbols:
        if out and out[-1] == left and symbol == right:
            out[-1] = left + right
        else:
            out.append(symbol)
    return out


def train():
    counts = Counter(words(CORPUS))
    lists = {word: letters(word.encode()) for word in counts}
    merges = []
    while len(merges) < MERGES:
        pairs = Counter()
        for word, symbols in lists.items():
            for pair in zip(symbols, symbols[1:]):
                pairs[pair] += counts[word]
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        merges.append(best)
        lists = {word: join(symbols, *best) for word, symbols in lists.items()}
    return merges


def encode(text, vocabulary, merges, added, parse_special):
    ranks = {pair: rank for rank, pair in enumerate(merges)}
    by_length = "|".join(re.escape(token) for token in sorted(added, key=len, reverse=True))
    ids = []
    for part in re.split(f"({by_length})", text) if parse_special else [text]:
        if parse_special and part in added:
            ids.append(added[part])
            continue
        for word in words(part):
            symbols = letters(word.encode())
            while True:
                pairs = [pair for pair in zip(symbols, symbols[1:]) if pair in ranks]
                if not pairs:
                    break
                symbols = join(symbols, *min(pairs, key=ranks.get))
            ids += [vocabulary[symbol] for symbol in symbols]
    return ids


def texts():
    yield from ["", " ", "a", "The quick brown fox", "they're there, aren't they?", "1", "12345678", "3.14159",
                "x1y22z333", "a  b   c", "  leading", "trailing  ", " \n", "\n\n\n", "a\r\n\r\nb", " \t x", "\t\tif x:\n",
                "日本語とkatakanaのテキスト", "中文，标点。", "한국어", "Größe", "e\u0301tude \u0301", "Привет, мир!", "½¼¾ ²³",
                "\u00a0nbsp", "\u3000\u3000wide", "\u2028line\u2029", "\x00\x01\x02 control", "\x85next", "\u180evowel",
                "emoji 👩\u200d👩\u200d👧 🇯🇵!", "(foo)[bar]{baz}", "--flag=value", "_private __dunder__", "C++ & C#",
                "the" * 50, " " * 300, "\n" * 40 + " ", "ab" * 200, "<think>hm</think>", "<｜User｜>hi<｜Assistant｜>",
                "<｜begin▁of▁sentence｜><｜System｜>x", "<｜User｜", "<<think>>", "｜DSML｜ invoke", "</think></think",
                "\ufffd", "\ue000", "\U0010ffff", "𝒜lgebra", "ǅ ǈ", "१२३४५", "①②③④"]
    palette = ["the", " the", "The", "qu", " ", "  ", "\n", "\r\n", "\t", "1", "23", "4567", "é", "e\u0301", "ß", "日", "の",
               "中文", "한", "я", " тест", ",", ".", "!?", "(", "\"", "'s", "<", "｜", "<think>", "<｜User｜>", "\u00a0", "👩",
               "\u200d", "\x00", "½", "_", "foo", "_bar", "\u0301", "\u3000", "０１２"]
    rng = random.Random(20)
    for _ in range(250):
        yield "".join(rng.choice(palette) for _ in range(rng.randrange(1, 24)))


def main(folder):
    merges = train()
    vocabulary = {text: i for i, text in enumerate(SPECIAL)}
    for text in [*sorted(BYTES.values()), *(left + right for left, right in merges)]:
        vocabulary.setdefault(text, len(vocabulary))
    added = {text: vocabulary[text] for text in SPECIAL}
    added |= {text: len(vocabulary) + i for i, text in enumerate(MARKERS)}
    flags = {"single_word": False, "lstrip": False, "rstrip": False}
    split = lambda regex: {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    file = {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": i, "content": text, **flags, "normalized": text in MARKERS, "special": text in SPECIAL}
                         for text, i in added.items()],
        "normalizer": {"type": "Sequence", "normalizers": []},
        "pre_tokenizer": {"type": "Sequence",
                          "pretokenizers": [*map(split, SPLITS), {**byte_level, "use_regex": False}]},
        "post_processor": {**byte_level, "use_regex": True},
        "decoder": {**byte_level, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "vocab": vocabulary,
                  "merges": [" ".join(pair) for pair in merges]},
    }
    ids = [{"text": text, "ids": encode(text, vocabulary, merges, added, False),
            "ids_with_special": encode(text, vocabulary, merges, added, True)} for text in texts()]
    dump = lambda value: json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    (folder / "small_tokenizer.json").write_text(json.dumps(file, ensure_ascii=False, indent=1) + "\n")
    (folder / "small_tokenizer_ids.json").write_text("[\n" + ",\n".join(map(dump, ids)) + "\n]\n")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))

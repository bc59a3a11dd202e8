"""Synthetic agent sessions, the half of the training data that is not text.

A session is a list of turns in the format of README.md. Facts are stated early and asked for later,
at any distance that fits, so recall over thousands of bytes is needed. Bytes of an answer that the
context determines carry a higher loss weight.
"""
from config import (ASSISTANT, BOS, CALL, CALL_END, EOS, RESULT, RESULT_END, SYSTEM, THINK,
                    THINK_END, USER)

ANSWER_WEIGHT = 4
SYSTEM_TEXT = "You are nano, a small agent. Tools: read FILE, calc EXPR, find WORD."
SYLLABLES = ("ba be bi bo da de di do fa fe fi ga go ka ke ki ko la le li lo ma me mi mo na ne no "
             "pa pe po ra re ri ro sa se so ta te ti to va ve vo za ze zo").split()
TOPICS = ("port timeout limit colour owner region token level name path budget status host index "
          "queue shard volume branch ticket badge").split()
CALCULATE = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}

# What a session is drawn from, with the odds.
STATE = (("note", "config_file", "text_file", "chatter"), (5, 2, 2, 2))
ASK = (("ask_note", "ask_file", "ask_calc", "ask_edit"), (5, 5, 1.5, 2))


class Session:
    """Builds one session: parallel lists of tokens and loss weights.

    room is the length that the session will be cut to; excerpts are sized by it."""

    def __init__(self, rng, corpus, room):
        self.rng, self.corpus, self.room = rng, corpus, room
        self.tokens, self.weights = [], []
        self.notes, self.files, self.used = {}, {}, set()
        self.mark(BOS, SYSTEM)
        self.say(SYSTEM_TEXT)

    # ---- Turns -----------------------------------------------------------------------------------

    def mark(self, *ids):
        self.tokens += ids
        self.weights += [1] * len(ids)

    def say(self, text, weight=1):
        data = text if isinstance(text, bytes) else text.encode()
        self.tokens += data
        self.weights += [weight] * len(data)

    def user(self, text):
        self.mark(USER)
        self.say(text)

    def assistant(self, think):
        self.mark(ASSISTANT)
        if think:
            self.mark(THINK)
            self.say(think)
        self.mark(THINK_END)

    def answer(self, *parts, think=None):
        """parts: plain text or (text, weight)."""
        self.assistant(think)
        for part in parts:
            self.say(*part) if isinstance(part, tuple) else self.say(part)
        self.mark(EOS)

    def call(self, text, result, think=None):
        self.assistant(think)
        self.mark(CALL)
        self.say(text, ANSWER_WEIGHT)
        self.mark(CALL_END, EOS, USER, RESULT)
        self.say(result)
        self.mark(RESULT_END)

    # ---- Random material -------------------------------------------------------------------------

    def syllables(self, count):
        return "".join(self.rng.choice(SYLLABLES) for _ in range(count))

    def word(self, low=2, high=3):
        while True:
            w = self.syllables(self.rng.randint(low, high))
            if w not in self.used:
                self.used.add(w)
                return w

    def value(self):
        kind = self.rng.random()
        if kind < 0.5:
            return str(self.rng.randint(1000, 999999))
        if kind < 0.8:
            return self.syllables(3)
        return "%06x" % self.rng.getrandbits(24)

    def excerpt(self, low, high):
        n = self.rng.randint(low, high)
        a = self.rng.randrange(len(self.corpus) - n)
        return bytes(t for t in self.corpus[a:a + n].tolist() if t < 256)

    # ---- What puts facts into the context --------------------------------------------------------

    def note(self):
        key, value = f"{self.word()} {self.rng.choice(TOPICS)}", self.value()
        forms = ["Remember: the {} is {}.", "Note that the {} is {}.", "The {} is {}."]
        self.user(self.rng.choice(forms).format(key, value))
        self.notes[key] = (value, len(self.tokens))
        self.answer("Noted the ", (key, ANSWER_WEIGHT), ".")

    def config_file(self):
        name = self.word() + self.rng.choice([".cfg", ".ini", ".env"])
        pairs = {f"{self.word(1, 2)}_{self.rng.choice(TOPICS)}": self.value()
                 for _ in range(self.rng.randint(3, 10))}
        self.user(f"Read {name}.")
        self.call(f"read {name}", "".join(f"{k} = {v}\n" for k, v in pairs.items()))
        self.files[name] = ("cfg", pairs)
        self.answer(f"{name} has ", str(len(pairs)), " settings.")

    def text_file(self):
        name = self.word() + self.rng.choice([".txt", ".md", ".py"])
        body = self.excerpt(150, min(2500, max(300, self.room // 4))).decode("utf-8", "ignore")
        lines = [line.strip()[:70] for line in body.split("\n") if len(line.strip()) > 8][:40]
        if len(lines) < 2:
            return
        self.user(f"Read {name}.")
        self.call(f"read {name}", "".join(f"{n + 1}| {line}\n" for n, line in enumerate(lines)))
        self.files[name] = ("txt", lines)
        self.answer(f"{name} has {len(lines)} lines.")

    def chatter(self):
        body = self.excerpt(100, min(1500, max(200, self.room // 5)))
        self.user(b"Look at this text:\n" + body)
        self.answer(self.rng.choice(["Seen.", "I read it.", "Done."]))

    # ---- Questions -------------------------------------------------------------------------------

    def ask_note(self):
        if not self.notes:
            return
        key = self.rng.choice(list(self.notes))
        value, _ = self.notes[key]
        forms = ["What is the {}?", "Tell me the {}.", "Do you recall the {}?"]
        self.user(self.rng.choice(forms).format(key))
        think = f"The {key} was noted." if self.rng.random() < 0.15 else None
        self.answer("The ", (key, ANSWER_WEIGHT), " is ", (value, ANSWER_WEIGHT), ".", think=think)

    def ask_file(self):
        if not self.files:
            return
        name = self.rng.choice(list(self.files))
        kind, content = self.files[name]
        if kind == "cfg":
            key = self.rng.choice(list(content))
            self.user(f"What is {key} in {name}?")
            self.answer((f"{key} = {content[key]}", ANSWER_WEIGHT))
        else:
            n = self.rng.randrange(len(content))
            self.user(f"Quote line {n + 1} of {name}.")
            self.answer((f"{n + 1}| {content[n]}", ANSWER_WEIGHT))

    def ask_calc(self):
        a, b = self.rng.randint(2, 99), self.rng.randint(2, 99)
        op = self.rng.choice("+-*")
        result = str(CALCULATE[op](a, b))
        self.user(self.rng.choice(["Compute {}{}{}.", "What is {}{}{}?"]).format(a, op, b))
        think = "I use calc." if self.rng.random() < 0.3 else None
        self.call(f"calc {a}{op}{b}", result, think=think)
        self.answer(f"{a}{op}{b} = ", (result, ANSWER_WEIGHT))

    def ask_edit(self):
        kind = self.rng.randrange(4)
        text = " ".join(self.syllables(self.rng.randint(1, 3))
                        for _ in range(self.rng.randint(1, 4)))
        if kind == 0:
            self.user(f"Write in upper case: {text}")
            self.answer((text.upper(), ANSWER_WEIGHT))
        elif kind == 1:
            old, new = self.rng.choice(text.split()), self.syllables(2)
            self.user(f"Replace {old} by {new} in: {text}")
            replaced = " ".join(new if word == old else word for word in text.split())
            self.answer((replaced, ANSWER_WEIGHT))
        elif kind == 2:
            self.user(f"Repeat: {text}")
            self.answer((text, ANSWER_WEIGHT))
        else:
            a, b = self.rng.randint(1, 49), self.rng.randint(1, 49)
            self.user(f"Add {a} and {b} in your head.")
            self.answer((str(a + b), ANSWER_WEIGHT))


def session(rng, corpus, length):
    """Tokens and loss weights of one session, cut to length."""
    s = Session(rng, corpus, length)
    ask = rng.uniform(0.35, 0.65)
    while len(s.tokens) < length:
        names, odds = ASK if rng.random() < ask else STATE
        getattr(s, rng.choices(names, odds)[0])()
    return s.tokens[:length], s.weights[:length]

"""What `compare` asks for, and how it tells the answers: targets, medians, table, page."""
import statistics

# name: (bound, limit, unit, what is measured, what it is measured against)
TARGETS = {
    "ssd_read_qd32": ("at_least", 0.95, "x", "random record reads, 32 at a time, `reprise bench ssd`",
                      "fio io_uring direct randread, same size and depth"),
    "ssd_put_durable": ("at_least", 0.85, "x", "durable puts through the daemon, local clients",
                        "fio io_uring direct sequential write, iodepth 32, no sync"),
    "dram_lease": ("at_least", 100, "x", "records leased and released, one client, batches of 64",
                   "Redis GET of as many bytes, Unix socket, best depth of 1, 4, 16"),
    "dram_copy": ("at_least", 0.8, "x", "records leased and copied to the caller's buffer",
                  "memcpy of the same bytes in the same process"),
    "tcp_get": ("at_least", 1.5, "x", "records over loopback TCP, one connection, batches of 64, verified",
                "the better of Redis and memcached, one connection, best depth of 1, 4, 16"),
    "lookup": ("at_least", 3e6, "blocks/s", "chains of 1,024 known blocks, one core, the larger index",
               "none: an absolute target"),
    "index_bytes": ("at_most", 48, "B", "index memory per block, index full", "none: an absolute target"),
    "start_index": ("at_most", 2, "s", "start of the daemon until it answers, index intact",
                    "none: an absolute target"),
    "start_trailers": ("at_most", 0.01, "x", "bytes read at a start without meta/", "bytes stored"),
    "get_1024_ssd": ("at_most", 1.15, "x", "time to get 1,024 blocks from SSD, DRAM cold",
                     "their bytes over fio's bandwidth, randread, iodepth 32"),
}


class Series:
    """One figure in several rounds."""

    def __init__(self, unit, values=()):
        self.unit = unit
        self.values = list(values)

    def add(self, value):
        self.values.append(value)

    @property
    def median(self):
        return statistics.median(self.values)

    def json(self):
        return {"median": self.median, "min": min(self.values), "max": max(self.values), "unit": self.unit,
                "rounds": len(self.values)}

    def text(self):
        low, middle, high = (number(value) for value in (min(self.values), self.median, max(self.values)))
        return f"{middle} {self.unit} [{low}..{high}]"


def number(value):
    """1234567 -> "1.235M", 0.01234 -> "0.01234": short, and enough digits to compare."""
    for factor, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:.4g}{letter}"
    return f"{value:.4g}"


def ratio_of_pairs(over, under):
    """Ratios of what was measured next to each other: a slow moment of the machine hits both."""
    if len(over) != len(under):
        raise ValueError("pairs need two series of one length")
    return Series("x", [a / b for a, b in zip(over, under)])


def best(candidates):
    """The (name, series) with the highest median."""
    return max(candidates.items(), key=lambda item: item[1].median)


class Measure:
    """One row of the table."""

    def __init__(self, name):
        self.name = name
        self.bound, self.limit, self.unit, self.what, self.against = TARGETS[name]
        self.value = None
        self.ours = None
        self.yardsticks = {}
        self.notes = []
        self.error = None

    @property
    def passed(self):
        if self.value is None:
            return None
        return self.value >= self.limit if self.bound == "at_least" else self.value <= self.limit

    @property
    def verdict(self):
        if self.value is None:
            return "not measured"
        return "pass" if self.passed else "FAIL"

    def json(self):
        found = {"value": self.value, self.bound: self.limit, "pass": self.passed, "unit": self.unit}
        if self.ours:
            found["ours"] = self.ours.json()
        if self.yardsticks:
            found["yardsticks"] = {name: series.json() for name, series in self.yardsticks.items()}
        if self.notes:
            found["notes"] = self.notes
        if self.error:
            found["error"] = self.error
        return found

    def target_text(self):
        return f"{'≥' if self.bound == 'at_least' else '≤'} {number(self.limit)}"

    def value_text(self):
        return "-" if self.value is None else f"{number(self.value)} {self.unit}"


def table(measures):
    lines = [f"{'measure':16} {'value':>16} {'target':>10}  verdict       measured"]
    for measure in measures:
        ours = f"ours {measure.ours.text()}" if measure.ours else ""
        lines.append(f"{measure.name:16} {measure.value_text():>16} {measure.target_text():>10}  "
                     f"{measure.verdict:12}  {ours}")
        for name, series in measure.yardsticks.items():
            lines.append(f"{'':60}{name} {series.text()}")
        for note in measure.notes + ([measure.error] if measure.error else []):
            lines.append(f"{'':60}{note}")
    return "\n".join(lines)


def markdown(measures, facts):
    """The page RESULTS.md."""
    lines = [
        "# Results", "",
        "Written by `tests/bench/compare --markdown`; not to be edited. Every yardstick was measured in the same run, in turn with",
        "ours; figures are medians with [min..max] of the rounds, ratios are medians of the ratios of neighbouring rounds.", "",
        f"* date: {facts['date']}", f"* command: `{facts['command']}`"]
    lines += [f"* {name}: {value}" for name, value in facts["machine"].items()]
    lines += [f"* {note}" for note in facts["notes"]]
    lines += ["", "| measure | value | target | verdict | ours | yardsticks |", "|---|---|---|---|---|---|"]
    for measure in measures:
        yardsticks = "<br>".join(f"{name}: {series.text()}" for name, series in measure.yardsticks.items())
        lines.append(f"| {measure.name} | {measure.value_text()} | {measure.target_text()} | {measure.verdict} | "
                     f"{measure.ours.text() if measure.ours else ''} | {yardsticks} |")
    lines += ["", "## What each measures", "", "| measure | ours | against |", "|---|---|---|"]
    lines += [f"| {measure.name} | {measure.what} | {measure.against} |" for measure in measures]
    told = [(m.name, note) for m in measures for note in m.notes + ([m.error] if m.error else [])]
    if told:
        lines += ["", "## Notes", ""] + [f"* {name}: {note}" for name, note in told]
    return "\n".join(lines) + "\n"

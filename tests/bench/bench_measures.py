"""The measures of `compare`. Ours and the yardstick take turns in short rounds: the disk has burst credit, and other
machines share the host, so only neighbours can be compared."""
import shutil

from bench_machine import Daemon, Fio, Memcached, Missing, Redis, json_of
from bench_report import Measure, Series, best, ratio_of_pairs

DEPTHS = (1, 4, 16)
VALUES = 2000
CHAIN_BLOCKS = 1024
REGION_BYTES = 64 << 20
NANO_BELOW_FREE_BYTES = 40e9
RECORD_BYTES = {"v4.1-flash": 114_688, "nano": 28_672}


class Run:
    """What the measures share."""

    def __init__(self, bin_dir, folder, quick, say):
        self.bin_dir, self.folder, self.quick, self.say = bin_dir, folder, quick, say
        self.rounds = 3 if quick else 9
        self.seconds = 1.0 if quick else 2.0
        self.record_bytes = RECORD_BYTES["v4.1-flash"]
        self.file_bytes = (2 if quick else 4) << 30
        self.open = []  # To be stopped or removed, newest first.

    def keep(self, thing):
        self.open.append(thing)
        return thing

    def drop(self, thing):
        self.open.remove(thing)
        (thing.remove if hasattr(thing, "remove") else thing.stop)()

    def close(self):
        while self.open:
            self.drop(self.open[-1])

    def peer_server(self, kind, measure):
        """The server with its values, or None, and the measure says that it is missing."""
        try:
            server = self.keep(kind(self.folder))
        except Missing as missing:
            measure.notes.append(str(missing))
            return None
        self.peer(kind.__name__.lower(), "fill", server.addresses["tcp"])
        return server

    def daemon(self, name, dram, ssd, model="v4.1-flash"):
        return self.keep(Daemon(self.bin_dir, self.folder, name, model, dram, ssd))

    def bench(self, *arguments, address=None):
        where = ["--address", address] if address else []
        return json_of([self.bin_dir / "reprise", *where, "--json", "bench", *arguments])

    def load(self, action, daemon, **options):
        flags = [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", str(value))]
        return json_of([self.bin_dir / "reprise_daemon_load", action, "--address", daemon.address, *flags])

    def peer(self, name, action, address, depth=1, seconds=1.0):
        return json_of([self.bin_dir / "reprise_peer_client", name, action, "--address", address, "--values", VALUES,
                        "--value-bytes", self.record_bytes, "--depth", depth, "--seconds", seconds])

    def take_turns(self, what, ours, yardstick, rounds=None):
        """[(ours, yardstick)...]; who goes first alternates."""
        pairs = []
        for i in range(rounds or self.rounds):
            self.say(f"{what}: round {i + 1} of {rounds or self.rounds}")
            if i % 2 == 0:
                a = ours(i)
                b = yardstick(i)
            else:
                b = yardstick(i)
                a = ours(i)
            pairs.append((a, b))
        return pairs


def fill_in_ratio(measure, pairs, unit, yardstick_name):
    measure.ours = Series(unit, [a for a, _ in pairs])
    measure.yardsticks[yardstick_name] = Series(unit, [b for _, b in pairs])
    ratios = ratio_of_pairs(measure.ours.values, measure.yardsticks[yardstick_name].values)
    measure.value = ratios.median
    measure.notes.append(f"ratio of neighbouring rounds {ratios.text()}")


# ---- SSD

def ssd_read(run, measures):
    measure = measures["ssd_read_qd32"]
    fio = run.keep(Fio(run.folder, run.record_bytes, run.file_bytes))
    fio.lay_out()

    def ours(i):
        found = run.bench("ssd", "--dir", run.folder, "--size", f"{run.file_bytes}B", "--only", "read", "--keep",
                          "--queue-depth", "32", "--seconds", run.seconds, "--seed", i + 1)
        if found["wrong_records"]:
            measure.error = f"{found['wrong_records']} records were wrong"
        if not (found["direct"] and found["registered_memory"]):
            measure.notes.append(found.get("remarks", "not direct"))
        return found["read"]["bytes_per_second"]

    run.say("ssd_read_qd32: laying out the file")
    ours(0)
    pairs = run.take_turns("ssd_read_qd32", ours, lambda i: fio.read(run.seconds))
    fill_in_ratio(measure, pairs, "B/s", "fio randread")
    (run.folder / "reprise-bench.data").unlink(missing_ok=True)
    run.drop(fio)


def ssd_put(run, measures):
    measure = measures["ssd_put_durable"]
    fio = run.keep(Fio(run.folder, run.record_bytes, run.file_bytes))
    daemon = run.daemon("put", "512MiB", f"{run.file_bytes}B")
    daemon.start()
    connections = 2

    def ours(i):
        return run.load("put", daemon, connections=connections, seconds=run.seconds, seed=i + 1)["bytes_per_second"]

    ours(1000)
    pairs = run.take_turns("ssd_put_durable", ours, lambda i: fio.write(run.seconds))
    fill_in_ratio(measure, pairs, "B/s", "fio write")
    measure.notes.append(f"{connections} local clients, each with a batch of 64 under way; making and sealing the "
                         "records is in the time")
    run.drop(daemon)
    run.drop(fio)


# ---- DRAM and wire

def dram(run, measures):
    lease, copy = measures["dram_lease"], measures["dram_copy"]
    daemon = run.daemon("dram", "512MiB", "0B")
    daemon.start()
    lease.notes.append(f"arena pages: {daemon.status()['tiers']['dram']['pages']}")
    redis = run.peer_server(Redis, lease) if lease in run.wanted else None
    yardsticks = {f"redis unix depth {depth}": Series("records/s") for depth in DEPTHS}
    lease.ours, copy.ours = Series("records/s"), Series("B/s")
    copied, ratios = Series("B/s"), Series("x")
    for i in range(run.rounds):
        run.say(f"dram_lease, dram_copy: round {i + 1} of {run.rounds}")
        found = run.bench("dram", "--records", VALUES, "--batch", 64, "--seconds", run.seconds / 2, "--rounds", 2,
                          address=daemon.address)
        lease.ours.add(found["lease"]["records_per_second"])
        copy.ours.add(found["copy"]["bytes_per_second"])
        copied.add(found["memcpy"]["bytes_per_second"])
        ratios.add(found["copy_over_memcpy"]["median"])
        for depth in DEPTHS if redis else ():
            got = run.peer("redis", "get", redis.addresses["unix"], depth, run.seconds / 2)
            yardsticks[f"redis unix depth {depth}"].add(got["gets_per_second"])
    copy.value = ratios.median
    copy.yardsticks["memcpy"] = copied
    copy.notes.append(f"ratio of neighbouring rounds {ratios.text()}")
    if redis:
        lease.yardsticks = yardsticks
        fill_in_best(lease, yardsticks)
        run.drop(redis)
    run.drop(daemon)


def fill_in_best(measure, yardsticks):
    name, series = best(yardsticks)
    ratios = ratio_of_pairs(measure.ours.values, series.values)
    measure.value = ratios.median
    measure.notes.append(f"against {name}: ratio of neighbouring rounds {ratios.text()}")


def tcp(run, measures):
    measure = measures["tcp_get"]
    peers = {"redis": run.peer_server(Redis, measure), "memcached": run.peer_server(Memcached, measure)}
    peers = {name: server for name, server in peers.items() if server}
    daemon = run.daemon("tcp", "512MiB", "0B")
    daemon.start()
    measure.ours = Series("B/s")
    one = Series("B/s")
    yardsticks = {f"{name} tcp depth {depth}": Series("B/s") for name in peers for depth in DEPTHS}
    for i in range(run.rounds):
        run.say(f"tcp_get: round {i + 1} of {run.rounds}")
        found = run.bench("wire", "--transport", "tcp", "--verb", "get", "--records", VALUES, "--batch", 64,
                          "--seconds", run.seconds / 2, "--rounds", 2, address=daemon.tcp_address)
        rates = {route["batch"]: route["bytes_per_second"] for route in found["routes"]}
        measure.ours.add(rates[64])
        one.add(rates[1])
        for name, peer in peers.items():
            for depth in DEPTHS:
                got = run.peer(name, "get", peer.addresses["tcp"], depth, run.seconds / 2)
                yardsticks[f"{name} tcp depth {depth}"].add(got["bytes_per_second"])
    measure.yardsticks = yardsticks
    if peers:
        fill_in_best(measure, yardsticks)
    measure.notes.append(f"ours one record a request: {one.text()}")
    for thing in (daemon, *peers.values()):
        run.drop(thing)


# ---- Index

def lookup(run, measures):
    rate, memory = measures["lookup"], measures["index_bytes"]
    fills = "200000,1000000" if run.quick else "200000,8000000"
    run.say(f"lookup: index of {fills} blocks")
    found = run.bench("lookup", "--in-process", "--blocks", fills, "--seconds", run.seconds * 2)["in_process"]
    largest = found[-1]
    rounds = largest["blocks_per_second_rounds"]
    rate.value = rounds["median"]
    rate.ours = Series("blocks/s", [rounds["min"], rounds["median"], rounds["max"]])
    memory.value = max(index["index_bytes_per_block"] for index in found)
    for index in found:
        rate.notes.append(f"index of {index['blocks']:,} blocks: {index['blocks_per_second'] / 1e6:.2f} million blocks/s, "
                          f"p50 {index['latency_us']['p50']:.1f} us a chain, "
                          f"{index['index_bytes_per_block']:.2f} B a block")
    daemon = run.daemon("lookup", "512MiB", "0B")
    daemon.start()
    asked = run.bench("lookup", "--blocks", CHAIN_BLOCKS, "--seconds", run.seconds, address=daemon.address)["daemon"]
    rate.notes.append(f"through the daemon: {asked['blocks_per_second'] / 1e6:.2f} million blocks/s, "
                      f"p50 {asked['latency_us']['p50']:.1f} us a chain")
    run.drop(daemon)


# ---- Start, and gets from SSD

def start(run, measures):
    index, trailers, get = (measures[name] for name in ("start_index", "start_trailers", "get_1024_ssd"))
    free = shutil.disk_usage(run.folder).free
    model = "v4.1-flash" if free >= NANO_BELOW_FREE_BYTES else "nano"
    record_bytes = RECORD_BYTES[model]
    chains = (20_000 if run.quick else 200_000) // CHAIN_BLOCKS + 1
    blocks = chains * CHAIN_BLOCKS
    slots = (REGION_BYTES - 65_536) // (record_bytes + 64)
    ssd_bytes = (blocks // slots + 8) * REGION_BYTES
    note = f"{blocks:,} blocks of {record_bytes:,} bytes"
    if model == "nano":
        note += f": records of the model nano, because only {free / 1e9:.0f} GB are free on the disk"
    daemon = run.daemon("start", "256MiB", f"{ssd_bytes}B", model)
    daemon.start()
    run.say(f"start: storing {note}")
    run.load("fill", daemon, connections=2, chains=chains, chain_blocks=CHAIN_BLOCKS)
    for measure in (index, trailers, get):
        measure.notes.append(note)
    repeats = 2 if run.quick else 5
    if {index, trailers} & run.wanted:
        measure_starts(run, daemon, index, trailers, blocks, record_bytes, repeats)
    else:
        daemon.stop()
        daemon.start()
    if get in run.wanted:
        measure_gets(run, daemon, get, chains, record_bytes)
    run.drop(daemon)


def measure_starts(run, daemon, index, trailers, blocks, record_bytes, repeats):
    index.ours, read, seconds = Series("s"), Series("B"), Series("s")
    for i in range(repeats):
        run.say(f"start_index: start {i + 1} of {repeats}")
        daemon.stop()
        daemon.forget_cached_files()
        index.ours.add(daemon.start())
        check_recovery(daemon.status()["recovery"], blocks, index)
    for i in range(repeats):
        run.say(f"start_trailers: start {i + 1} of {repeats}")
        daemon.stop()
        shutil.rmtree(daemon.data / "meta")
        daemon.forget_cached_files()
        seconds.add(daemon.start())
        recovery = daemon.status()["recovery"]
        check_recovery(recovery, blocks, trailers)
        read.add(recovery["bytes_read"])
    index.value = index.ours.median
    trailers.value = read.median / (blocks * record_bytes)
    trailers.ours = read
    trailers.notes.append(f"until it answers: {seconds.text()}")


def check_recovery(recovery, blocks, measure):
    if recovery["blocks"] < blocks:
        measure.error = f"only {recovery['blocks']:,} of {blocks:,} blocks were found again"


def measure_gets(run, daemon, measure, chains, record_bytes):
    """Each chain is got once after the start, so it is not in DRAM."""
    fio = run.keep(Fio(run.folder, record_bytes, run.file_bytes))
    fio.lay_out()
    at_a_time = max(1, min(4, chains // (run.rounds + 1)))
    taken = iter(range(0, chains, at_a_time))
    chain_bytes = CHAIN_BLOCKS * record_bytes

    def ours(_):
        found = run.load("get", daemon, first_chain=next(taken), chains=at_a_time, chain_blocks=CHAIN_BLOCKS)
        return found["seconds"]["median"]

    ours(0)
    pairs = run.take_turns("get_1024_ssd", ours, lambda i: chain_bytes / fio.read(run.seconds))
    fill_in_ratio(measure, pairs, "s", "bytes over fio's bandwidth")
    run.drop(fio)


# What is measured together, in the order of the run.
GROUPS = [
    (ssd_read, ["ssd_read_qd32"]),
    (ssd_put, ["ssd_put_durable"]),
    (dram, ["dram_lease", "dram_copy"]),
    (tcp, ["tcp_get"]),
    (lookup, ["lookup", "index_bytes"]),
    (start, ["start_index", "start_trailers", "get_1024_ssd"]),
]


def new_measures():
    return {name: Measure(name) for _, names in GROUPS for name in names}

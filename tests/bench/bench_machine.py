"""The machine as `compare` uses it: settings for the run, programs started and ended by pid, facts."""
import ctypes
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import time

SHARED_HUGE_PAGES = pathlib.Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
PR_SET_PDEATHSIG = 1


class Missing(Exception):
    """A program to compare with is not installed."""


class Failed(Exception):
    """A program that was started failed; the text says which and why."""


def need(program, package):
    if shutil.which(program) is None:
        raise Missing(f"{program} is not installed: apt-get install {package}")


def end_with_parent():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def output_of(command, timeout=600):
    """What a program prints, or Failed with what it said."""
    ran = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=timeout, check=False,
                         preexec_fn=end_with_parent)
    if ran.returncode != 0:
        said = (ran.stderr or ran.stdout).strip()[-800:]
        raise Failed(f"{pathlib.Path(command[0]).name} {command[1]}: exit {ran.returncode}: {said}")
    return ran.stdout


def json_of(command, timeout=600):
    return json.loads(output_of(command, timeout))


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


# ---- Settings

class SharedHugePages:
    """Lets shared memory use 2 MiB pages while the run lasts, if root and not so already."""

    def __init__(self):
        self.before = None

    def set(self):
        try:
            text = SHARED_HUGE_PAGES.read_text()
        except OSError:
            return "the kernel has no transparent huge pages for shared memory"
        self.before = text[text.index("[") + 1:text.index("]")]
        if self.before not in ("never", "deny"):
            return f"transparent huge pages for shared memory: {self.before}"
        try:
            SHARED_HUGE_PAGES.write_text("advise")
        except OSError as error:
            self.before = None
            return f"the arena has 4 KiB pages: cannot set {SHARED_HUGE_PAGES}: {error.strerror}"
        return f"set {SHARED_HUGE_PAGES} to advise for the run (it was {self.before}, and is so again)"

    def restore(self):
        if self.before in ("never", "deny"):
            SHARED_HUGE_PAGES.write_text(self.before)


def can_have_own_network():
    return (os.geteuid() == 0 and shutil.which("unshare") and shutil.which("ip")
            and subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False).returncode == 0)


def set_up_own_network():
    """In a new network namespace: loopback, with the congestion control that our daemon asks for by itself. The
    kernel's default may pace loopback, and Redis and memcached cannot ask."""
    output_of(["ip", "link", "set", "lo", "up"])
    for target in ("127.0.0.0/8", "127.0.0.1"):
        output_of(["ip", "route", "replace", "local", target, "dev", "lo", "proto", "kernel", "scope", "host",
                   "src", "127.0.0.1", "congctl", "reno", "table", "local"])


def congestion_control():
    """Of a socket that a server on loopback gets when it accepts."""
    with socket.socket() as listener, socket.socket() as client:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        client.connect(listener.getsockname())
        with listener.accept()[0] as accepted:
            return accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).split(b"\0")[0].decode()


# ---- Programs

class Program:
    """A server in the background: ready once `ready()` is true, ended by its pid."""

    def __init__(self, name, command, log):
        self.name = name
        self.log = pathlib.Path(log)
        with open(self.log, "ab") as out:
            self.process = subprocess.Popen([str(part) for part in command], stdout=out, stderr=out,
                                            stdin=subprocess.DEVNULL, preexec_fn=end_with_parent)

    def wait_until(self, ready, timeout=180):
        """Seconds until it was ready."""
        begin = time.monotonic()
        while not ready():
            if self.process.poll() is not None:
                raise Failed(f"{self.name} ended: {self.last_words()}")
            if time.monotonic() - begin > timeout:
                raise Failed(f"{self.name} was not ready after {timeout} s")
            time.sleep(0.002)
        return time.monotonic() - begin

    def last_words(self):
        return " / ".join(self.log.read_text(errors="replace").strip().splitlines()[-2:])

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


def processor_seconds(pid):
    """User and system, of all threads, since the start of the process."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return [int(field) / os.sysconf("SC_CLK_TCK") for field in fields[11:13]]


def accepts(address):
    family = socket.AF_INET if isinstance(address, tuple) else socket.AF_UNIX
    with socket.socket(family) as probe:
        try:
            probe.connect(address)
        except OSError:
            return False
    return True


class Daemon:
    """reprised with a configuration of ours."""

    def __init__(self, bin_dir, folder, name, model, dram, ssd):
        self.bin_dir, self.folder = bin_dir, pathlib.Path(folder) / name
        self.folder.mkdir()
        self.data = self.folder / "data"
        self.socket = str(self.folder / "sock")
        self.port = free_port()
        self.address = f"unix:{self.socket}"
        self.tcp_address = f"tcp:127.0.0.1:{self.port}"
        self.program = None
        (self.folder / "reprised.toml").write_text(
            f'data_dir = "{self.data}"\nmodel = "{model}"\n'
            f'[listen]\nunix = "{self.socket}"\ntcp = "127.0.0.1:{self.port}"\nhttp = ""\n'
            f'[dram]\nbytes = "{dram}"\n[ssd]\nbytes = "{ssd}"\n[window]\nbytes = "0B"\n')

    def start(self):
        """Seconds from the start of the process until it answers."""
        begin = time.monotonic()
        self.program = Program("reprised", [self.bin_dir / "reprised", "--config", self.folder / "reprised.toml"],
                               self.folder / "log")
        self.program.wait_until(lambda: accepts(self.socket))
        return time.monotonic() - begin

    def status(self):
        return json_of([self.bin_dir / "reprise", "--address", self.address, "--json", "status"])

    def cpu_seconds(self):
        return sum(processor_seconds(self.program.process.pid))

    def stop(self):
        if self.program:
            self.program.stop()
            self.program = None

    def remove(self):
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def forget_cached_files(self):
        """A start finds nothing of the data directory in the page cache."""
        for path in self.data.rglob("*"):
            if path.is_file():
                fd = os.open(path, os.O_RDONLY)
                os.fsync(fd)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(fd)


class Redis:
    def __init__(self, folder):
        need("redis-server", "redis-server")
        self.socket = str(pathlib.Path(folder) / "redis.sock")
        self.port = free_port()
        self.addresses = {"unix": f"unix:{self.socket}", "tcp": f"tcp:127.0.0.1:{self.port}"}
        self.program = Program("redis-server", [
            "redis-server", "--port", self.port, "--bind", "127.0.0.1", "--unixsocket", self.socket, "--save", "",
            "--appendonly", "no", "--dir", folder], pathlib.Path(folder) / "redis.log")
        self.program.wait_until(lambda: accepts(self.socket))

    def stop(self):
        self.program.stop()


class Memcached:
    def __init__(self, folder):
        need("memcached", "memcached")
        self.port = free_port()
        self.addresses = {"tcp": f"tcp:127.0.0.1:{self.port}"}
        user = ["-u", "root"] if os.geteuid() == 0 else []
        self.program = Program("memcached", [
            "memcached", "-p", self.port, "-U", "0", "-l", "127.0.0.1", "-m", "2048", "-I", "1m", "-t", "2", *user],
            pathlib.Path(folder) / "memcached.log")
        self.program.wait_until(lambda: accepts(("127.0.0.1", self.port)))

    def stop(self):
        self.program.stop()


class Fio:
    """fio on one file, as `reprise bench ssd` works: io_uring, O_DIRECT, whole records."""

    def __init__(self, folder, record_bytes, size_bytes):
        need("fio", "fio")
        self.read_file, self.write_file = (pathlib.Path(folder) / name for name in ("fio-read.data", "fio-write.data"))
        self.record_bytes = record_bytes
        self.size_bytes = size_bytes - size_bytes % record_bytes

    def run(self, file, pattern, seconds):
        command = ["fio", "--name=compare", f"--filename={file}", f"--size={self.size_bytes}", f"--rw={pattern}",
                   f"--bs={self.record_bytes}", "--direct=1", "--ioengine=io_uring", "--iodepth=32", "--randrepeat=0",
                   "--time_based", f"--runtime={int(seconds * 1000)}ms", "--ramp_time=200ms", "--output-format=json"]
        text = output_of(command)
        job = json.loads(text[text.index("{"):])["jobs"][0]
        return job["read" if "read" in pattern else "write"]["bw_bytes"]

    def lay_out(self):
        """The file that is read: every byte written before."""
        if not self.read_file.exists():
            output_of(["fio", "--name=layout", f"--filename={self.read_file}", f"--size={self.size_bytes}",
                       "--rw=write", "--bs=4m", "--direct=1", "--ioengine=io_uring", "--iodepth=8", "--end_fsync=1"])

    def read(self, seconds):
        self.lay_out()
        return self.run(self.read_file, "randread", seconds)

    def write(self, seconds):
        """Into a file of reserved space, as ours is after it was erased."""
        self.write_file.unlink(missing_ok=True)
        return self.run(self.write_file, "write", seconds)

    def remove(self):
        self.read_file.unlink(missing_ok=True)
        self.write_file.unlink(missing_ok=True)


# ---- Facts

def facts(folder):
    def first_line(command):
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        return ran.stdout.strip().splitlines()[-1].strip() if ran.stdout.strip() else "unknown"

    cpu = next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo", encoding="utf-8")
                if line.startswith("model name")), "unknown")
    memory_kib = int(open("/proc/meminfo", encoding="utf-8").readline().split()[1])
    source, kind = (first_line(["df", f"--output={field}", folder]) for field in ("source", "fstype"))
    return {"cpu": f"{cpu}, {os.cpu_count()} cores", "memory": f"{memory_kib / 1048576:.1f} GiB",
            "kernel": os.uname().release, "disk": f"{source}, {kind}, {shutil.disk_usage(folder).free / 1e9:.0f} GB free",
            "load": " ".join(f"{value:.2f}" for value in os.getloadavg())}

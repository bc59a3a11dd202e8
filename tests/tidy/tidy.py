#!/usr/bin/env python3
"""Checks of the code's shape: the rules that CONTRIBUTING.md names and no compiler knows.

    tidy.py [--root FOLDER]            prints `file:line: what, and what to do instead`; exit status 1 if any
    tidy.py --format [--root FOLDER]   clang-format's opinion; exit status 77 when it is not installed
    tidy.py --format --fix             lets it change the files
"""
import argparse
import fnmatch
import pathlib
import re
import shutil
import subprocess
import sys

LINES_MAX = 500
TOP_LEVEL = {"server", "client", "gpu", "storage", "protocol", "tests", "deploy"}
# Made by builds, editors and running daemons; not part of the project.
IGNORED = {".git", ".cache", "build", "reprise-data", "__pycache__"}
CODE = {".h", ".cc", ".cu", ".cuh"}
TEXT = CODE | {".md", ".py", ".txt", ".toml", ".proto", ".json", ".service", ".sh", ".conf", ""}

# Dependencies point one way; within a folder anything goes.
MAY_INCLUDE = {
    "protocol": {"protocol"},
    "storage": {"storage", "protocol"},
    "gpu": {"gpu", "protocol"},
    "client": {"client", "storage", "gpu", "protocol"},
    "server": {"server", "storage", "gpu", "protocol"},
    "tests": {"tests", "server", "client", "storage", "gpu", "protocol"},
}

# pattern, what to use instead, the files that are its door ("*" stands for anything).
BANNED = [
    (r"\bstd::chrono::\w+_clock::now|\bclock_gettime\b|\bgettimeofday\b",
     "the Clock that was passed in", ["protocol/base/clock.cc"]),
    (r"\brand\s*\(|std::random_device|std::mt19937|\bgetrandom\b|\barc4random",
     "the Prng that was passed in", ["storage/data_directory.cc", "client/simulate/trace_command.cc",
                                      "server/trace_tap.cc"]),
    (r"\bstd::this_thread::sleep|\busleep\s*\(|\bnanosleep\s*\(", "a timer or a deadline of the reactor",
     ["client/*"]),
    (r"\bthrow\b|\bcatch\s*\(", "absl::Status; a library that throws is caught at its one door",
     ["client/economics/cost_profile.cc", "server/config.cc", "server/main.cc", "client/cli/*"]),
    (r"\bstd::shared_ptr\b|\bstd::make_shared\b", "a unique_ptr, a borrowed pointer or a pool",
     ["server/log.cc", "storage/rocks_meta_store.cc", "client/cli/*", "client/*_command.cc",
      "server/api/*", "server/serving/*", "server/server.cc"]),
    (r"\bgetenv\s*\(", "a key of the configuration or an option of the command line", []),
    (r"\bstd::cout\b|\bstd::cerr\b", "the log, or the printer of the command line", []),
    (r"(?<!_)\bassert\s*\(", "RP_CHECK, which stays on in release builds", []),
    (r"\busing namespace\b", "the names themselves", []),
    (r"\b(strcpy|strcat|sprintf|atoi|atol|atof|strtok)\s*\(", "snprintf, from_chars or std::string", []),
]
# Rules for tests too, and for text that is not code.
BANNED_EVERYWHERE = [
    (r"\b(TODO|FIXME|XXX|HACK)\b", "finish it, or leave it out and say so in the README"),
    (r"(?<![\w.])/(work|home|root)/", "a path relative to the project"),
]

# Third-party headers have one owner each, so that a library can be replaced and its ways stay local.
OWNERS = {
    "liburing": ["protocol/reactor/ring.h", "protocol/reactor/ring.cc"],
    "infiniband/": ["protocol/rdma/lib_verbs.cc"],
    "nccl.h": ["gpu/cuda/communicator.cc"],
    "openssl/": ["protocol/base/sha256.cc"],
    "isa-l": ["protocol/base/checksum.cc"],
    "absl/status/": ["protocol/base/status.h"],
    "absl/container/": ["protocol/*", "storage/*", "client/*", "server/*"],
    "rocksdb/": ["storage/rocks_meta_store.cc"],
    "toml++/": ["server/config.cc", "client/economics/cost_profile.cc"],
    "spdlog/": ["server/log.cc"],
    "httplib": ["server/http.cc", "server/api/*", "client/session/api_client.cc"],
    "prometheus/": ["server/metrics.cc", "server/metric_samples.h"],
    "nlohmann/": ["client/*", "gpu/*", "server/status*", "server/api/*"],
    "CLI/": ["client/cli/*", "client/*_command.cc", "server/main.cc"],
    "editline/": ["client/session/chat_command.cc"],
    "zlib": ["client/trace/*"],
    "zstd": ["client/trace/*"],
    "pcre2": ["gpu/tokenizer/regex.cc"],
    "unicode/": ["gpu/tokenizer/unicode.cc"],
    "cuda": ["gpu/*"],
    "cooperative_groups": ["gpu/cuda/*"],
    "cub/": ["gpu/cuda/*"],
}
# System headers: C++ (no dot), C and Linux.
SYSTEM = re.compile(r"^(\w+|(sys|netinet|arpa|linux|net)/\w+\.h|(fcntl|unistd|errno|signal|poll|netdb|pthread|"
                    r"sched|time|getopt|stddef|stdint|stdio|stdlib|string|termios|[a-z0-9]*intrin|cpuid|dirent|fnmatch|semaphore|dlfcn)\.h)$")
TESTS_ONLY = ("gtest/", "gmock/", "benchmark/")

# `folder/file.cc` or `folder/file.cc Class::Function` between backquotes in a page.
REFERENCE = re.compile(r"`((?:%s)/[\w./-]+\.\w+)(?: ([\w:~]+))?`" % "|".join(sorted(TOP_LEVEL)))


class Tidy:
    def __init__(self, root):
        self.root = root
        self.errors = []

    def error(self, path, line, text):
        self.errors.append(f"{path}:{line}: {text}")

    def files(self):
        def walk(folder):
            for path in sorted(folder.iterdir()):
                if path.name in IGNORED:
                    continue
                if path.is_dir():
                    yield from walk(path)
                elif path.suffix in TEXT and not path.is_symlink():
                    yield path.relative_to(self.root)

        yield from walk(self.root)

    def check_top_level(self):
        for path in sorted(self.root.iterdir()):
            if path.is_dir() and not path.name.startswith(".") and path.name not in TOP_LEVEL | IGNORED:
                self.error(path.name, 1, f"not a folder of this project; use one of {', '.join(sorted(TOP_LEVEL))}")

    def check_include(self, path, number, line):
        if ours := re.match(r'\s*#\s*include "(\w+)/', line):
            if ours[1] in TOP_LEVEL and ours[1] not in MAY_INCLUDE[path.parts[0]]:
                self.error(path, number, f"{path.parts[0]}/ may not include {ours[1]}/; see ARCHITECTURE.md")
        elif re.match(r'\s*#\s*include "', line):
            self.error(path, number, "name the file from the project's root")
        if not (system := re.match(r"\s*#\s*include <([^>]+)>", line)):
            return
        header = system[1]
        if SYSTEM.match(header) or (path.parts[0] == "tests" and header.startswith(TESTS_ONLY)):
            return
        for prefix, owners in OWNERS.items():
            if header.startswith(prefix):
                if path.parts[0] != "tests" and not is_door(path, owners):
                    self.error(path, number, f"<{header}> belongs to {', '.join(owners)}; go through it")
                return
        self.error(path, number, f"<{header}> has no owner; name one in OWNERS of tests/tidy/tidy.py")

    def check_code(self, path, lines):
        # A header for C has a guard, which every compiler knows.
        guard = r"#ifndef \w+_H_?$" if any('extern "C"' in line for line in lines) else r"#pragma once$"
        if path.suffix == ".h" and not any(re.match(guard, line) for line in lines[:30]):
            self.error(path, 1, "begin a header with #pragma once")
        for number, line in enumerate(lines, 1):
            self.check_include(path, number, line)
            if path.parts[0] == "tests":
                continue
            code = re.sub(r'"(\\.|[^"\\])*"', '""', line.split("//")[0])
            for pattern, instead, doors in BANNED:
                if (found := re.search(pattern, code)) and not is_door(path, doors):
                    self.error(path, number, f"{found[0].strip()}: use {instead}")

    def check_page(self, path, lines):
        for number, line in enumerate(lines, 1):
            for file, function in REFERENCE.findall(line):
                if not (self.root / file).exists():
                    self.error(path, number, f"{file} does not exist; correct the page")
                elif function:
                    name = function.split("::")[-1]
                    if not re.search(rf"\b{re.escape(name)}\b", (self.root / file).read_text()):
                        self.error(path, number, f"{file} has no {function}; correct the page")

    def run(self):
        self.check_top_level()
        for path in self.files():
            text = (self.root / path).read_text(errors="replace")
            lines = text.splitlines()
            if path.suffix in CODE | {".py"} and len(lines) > LINES_MAX:
                self.error(path, LINES_MAX, f"{len(lines)} lines, at most {LINES_MAX}; split it by job")
            if path.suffix in CODE and path.parts[0] in MAY_INCLUDE:
                self.check_code(path, lines)
            if path.suffix == ".md":
                self.check_page(path, lines)
            if path.parts[:2] == ("tests", "tidy"):
                continue  # These rules and their tests name what they look for.
            for number, line in enumerate(lines, 1):
                for pattern, instead in BANNED_EVERYWHERE:
                    if found := re.search(pattern, line):
                        self.error(path, number, f"{found[0].strip()}: use {instead}")
        return self.errors


def is_door(path, doors):
    return any(fnmatch.fnmatch(path.as_posix(), door) for door in doors)


def check_format(root, fix):
    tool = shutil.which("clang-format-14")
    if tool is None:
        print("format: skipped, clang-format-14 is not installed")
        return 77
    files = [path for path in Tidy(root).files() if path.suffix in CODE]
    mode = ["-i"] if fix else ["--dry-run", "-Werror"]
    return subprocess.run([tool, *mode, *files], cwd=root, check=False).returncode


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[2])
    parser.add_argument("--format", action="store_true")
    parser.add_argument("--fix", action="store_true")
    options = parser.parse_args()
    if options.format:
        return check_format(options.root, options.fix)
    errors = Tidy(options.root).run()
    print("\n".join(errors) or "tidy: nothing to say")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())

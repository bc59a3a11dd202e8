#!/usr/bin/env python3
"""Proves that tidy.py and the layer check of the root CMakeLists.txt refuse what they should.

Each case plants one fault in a small project of its own and looks for the refusal.
"""
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = ["protocol", "storage", "gpu", "server", "client", "deploy", "tests"]


class Project(unittest.TestCase):
    def setUp(self):
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="reprise-tidy-"))
        for folder in FOLDERS:
            (self.root / folder).mkdir()
            (self.root / folder / "CMakeLists.txt").touch()
            (self.root / folder / "a.cc").write_text("int main() { return 0; }\n")

    def tearDown(self):
        shutil.rmtree(self.root)

    def write(self, path, text):
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def run_tool(self, *command):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr


class TidyTest(Project):
    def tidy(self):
        return self.run_tool(sys.executable, ROOT / "tests/tidy/tidy.py", "--root", self.root)

    def refused(self, path, text, message):
        self.write(path, text)
        code, output = self.tidy()
        self.assertEqual(code, 1, output)
        self.assertIn(message, output)
        (self.root / path).unlink()

    def test_a_clean_project_passes(self):
        self.write("storage/x.h", '#pragma once\n#include <vector>\n#include "protocol/base/y.h"\n')
        self.write("README.md", "See `storage/x.h` and `protocol/a.cc main`.\n")
        self.write("build/junk/TODO.txt", "TODO\n")
        code, output = self.tidy()
        self.assertEqual((code, output), (0, "tidy: nothing to say\n"))

    def test_includes_point_one_way(self):
        for path, include in [("protocol/x.cc", "storage/y.h"), ("storage/x.cc", "gpu/y.h"), ("gpu/x.cc", "storage/y.h"),
                              ("storage/x.cc", "server/y.h"), ("client/x.cc", "server/y.h"), ("server/x.cc", "client/y.h"),
                              ("server/x.cc", "tests/y.h")]:
            self.refused(path, f'#include "{include}"\n', f"{path}:1: {path.split('/')[0]}/ may not include")
        self.refused("storage/x.cc", '#include "y.h"\n', "from the project's root")

    def test_third_party_headers_have_one_owner(self):
        self.refused("server/x.cc", "#include <spdlog/spdlog.h>\n", "server/x.cc:1: <spdlog/spdlog.h> belongs to server/log.cc")
        self.refused("storage/x.cc", "#include <rocksdb/db.h>\n", "belongs to storage/rocks_meta_store.cc")
        self.refused("server/x.cc", "#include <gtest/gtest.h>\n", "has no owner")
        self.refused("server/x.cc", "#include <boost/any.hpp>\n", "has no owner")

    def test_words_with_a_replacement(self):
        for line, instead in [("auto t = std::chrono::steady_clock::now();", "the Clock"), ("int x = rand();", "the Prng"),
                              ("throw 1;", "absl::Status"), ("std::shared_ptr<int> p;", "a unique_ptr"),
                              ("assert(x);", "RP_CHECK"), ("using namespace std;", "the names"),
                              ("char* e = getenv(name);", "a key of the configuration"), ("sleep: usleep(5);", "a timer"),
                              ("std::cout << 1;", "the log")]:
            self.refused("storage/x.cc", line + "\n", f"use {instead}")
        self.write("storage/x.cc", '// rand() throw\nconst char* s = "rand() throw";\nstatic_assert(true);\n')
        self.assertEqual(self.tidy()[0], 0)
        self.write("protocol/base/clock.cc", "clock_gettime(CLOCK_MONOTONIC, &t);\n")
        self.assertEqual(self.tidy()[0], 0, "a door may")

    def test_words_for_every_file(self):
        self.refused("deploy/x.md", "one\nTO" "DO: two\n", "deploy/x.md:2: TODO: use")
        self.refused("tests/x.py", "path = '/ho" "me/someone/x'\n", "relative to the project")

    def test_shape_of_files_and_folders(self):
        self.refused("server/x.cc", "\n" * 501, "501 lines, at most 500")
        self.refused("server/x.h", "int x;\n", "#pragma once")
        (self.root / "utils").mkdir()
        code, output = self.tidy()
        self.assertEqual(code, 1)
        self.assertIn("utils:1: not a folder of this project", output)

    def test_pages_name_what_exists(self):
        self.refused("ARCHITECTURE.md", "| 1 | `server/none.cc` |\n", "ARCHITECTURE.md:1: server/none.cc does not exist")
        self.refused("ARCHITECTURE.md", "| 1 | `server/a.cc Server::Gone` |\n", "server/a.cc has no Server::Gone")


class LayersTest(Project):
    """The root CMakeLists.txt over folders of one library each."""

    def configure(self, **dependencies):
        shutil.copy(ROOT / "CMakeLists.txt", self.root)
        for folder in ["protocol", "storage", "gpu", "server", "client"]:
            deps = dependencies.get(folder, "")
            self.write(f"{folder}/CMakeLists.txt", f"reprise_library(reprise_{folder} SRCS a.cc DEPS {deps})\n")
        return self.run_tool("cmake", "-G", "Ninja", "-DBUILD_TESTING=OFF", "-S", self.root, "-B", self.root / "build")

    def test_downward_is_accepted(self):
        code, output = self.configure(storage="reprise_protocol", gpu="reprise_protocol",
                                      server="reprise_storage reprise_gpu", client="reprise_storage")
        self.assertEqual(code, 0, output)

    def test_everything_else_is_refused(self):
        for folder, dependency in [("protocol", "storage"), ("storage", "gpu"), ("gpu", "storage"), ("storage", "server"),
                                   ("client", "server"), ("server", "client")]:
            code, output = self.configure(**{folder: f"reprise_{dependency}"})
            self.assertNotEqual(code, 0, f"{folder} -> {dependency}")
            self.assertIn(f"reprise_{folder} is in {folder}/", " ".join(output.split()))
            self.assertIn(f"may not depend on reprise_{dependency}", " ".join(output.split()))


if __name__ == "__main__":
    unittest.main(verbosity=2)

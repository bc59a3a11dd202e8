#!/usr/bin/env python3
"""compare's arithmetic and its page; what it measures is measured by running it."""
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import bench_machine
import bench_measures
import bench_report
from bench_report import Measure, Series


class Figures(unittest.TestCase):
    def test_ratio_is_of_neighbours(self):
        # The machine was three times slower in the second round: neighbours agree, medians would not.
        ratios = bench_report.ratio_of_pairs([9.0, 3.0, 9.0], [10.0, 3.3, 10.0])
        self.assertAlmostEqual(ratios.median, 0.9)
        with self.assertRaises(ValueError):
            bench_report.ratio_of_pairs([1.0], [1.0, 2.0])

    def test_best_has_the_highest_median(self):
        name, series = bench_report.best({"a": Series("x", [1, 9, 1]), "b": Series("x", [2, 2, 2])})
        self.assertEqual((name, series.median), ("b", 2))

    def test_numbers(self):
        for value, text in [(0, "0"), (0.012345, "0.01235"), (999, "999"), (1000, "1k"), (2.5e6, "2.5M"),
                            (1.2345e9, "1.234G")]:
            self.assertEqual(bench_report.number(value), text)


class Verdicts(unittest.TestCase):
    def test_bounds(self):
        for name, value, verdict in [("dram_copy", 0.8, "pass"), ("dram_copy", 0.79, "FAIL"),
                                     ("index_bytes", 48, "pass"), ("index_bytes", 48.1, "FAIL"),
                                     ("index_bytes", None, "not measured")]:
            measure = Measure(name)
            measure.value = value
            self.assertEqual(measure.verdict, verdict, name)

    def test_json_names_the_bound(self):
        measure = Measure("start_index")
        measure.value = 1.5
        self.assertEqual(measure.json(), {"value": 1.5, "at_most": 2, "pass": True, "unit": "s"})

    def test_every_target_is_measured_once(self):
        names = [name for _, names in bench_measures.GROUPS for name in names]
        self.assertEqual(sorted(names), sorted(bench_report.TARGETS))

    def test_page_and_table_show_everything(self):
        measure = Measure("tcp_get")
        measure.value = 2.0
        measure.ours = Series("B/s", [2e9, 3e9])
        measure.yardsticks = {"redis tcp depth 4": Series("B/s", [1e9, 1.5e9])}
        measure.notes = ["a note"]
        facts = {"date": "today", "command": "tests/bench/compare", "machine": {"cpu": "fast"}, "notes": ["said"]}
        page = bench_report.markdown([measure], facts)
        for text in ("| tcp_get | 2 x | ≥ 1.5 | pass |", "redis tcp depth 4: 1.25G B/s [1G..1.5G]", "* tcp_get: a note",
                     "* cpu: fast", "* said", "`tests/bench/compare`"):
            self.assertIn(text, page)
        self.assertIn("redis tcp depth 4", bench_report.table([measure]))


class Programs(unittest.TestCase):
    def test_what_is_missing_is_named_with_its_package(self):
        with self.assertRaisesRegex(bench_machine.Missing, "apt-get install no-such-package"):
            bench_machine.need("no-such-program", "no-such-package")

    def test_a_failed_program_says_what_it_said(self):
        with self.assertRaisesRegex(bench_machine.Failed, "exit 3: went wrong"):
            bench_machine.output_of(["sh", "-c", "echo went wrong >&2; exit 3"])

    def test_a_missing_peer_costs_its_own_measure_only(self):
        class Absent:
            def __init__(self, folder):
                raise bench_machine.Missing("it is not installed: apt-get install it")

        run = bench_measures.Run(None, None, True, lambda text: None)
        measure = Measure("dram_lease")
        self.assertIsNone(run.peer_server(Absent, measure))
        self.assertEqual(measure.notes, ["it is not installed: apt-get install it"])
        self.assertEqual(run.open, [])

    def test_turns_alternate(self):
        order = []
        run = bench_measures.Run(None, None, True, lambda text: None)

        def take(name):
            def measured(i):
                order.append(name)
                return i
            return measured

        self.assertEqual(run.take_turns("x", take("a"), take("b"), 3), [(0, 0), (1, 1), (2, 2)])
        self.assertEqual("".join(order), "abbaab")


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
"""The program seen from outside: exit codes, one line per error with any number of ranks, signals, faults of disk and MPI.

    program_test.py --unshard PROGRAM --mpirun "mpirun --oversubscribe" --cases DIR [--faults LIBRARY] [unittest's arguments]

Without --faults (a sanitizer build, which must be loaded first) the tests that need faults are skipped.
"""
import argparse
import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

from large_checkpoint import write_large_checkpoint
from many_shards import read_safetensors, write_many_shards, write_row_shards, write_sparse_model

OPTIONS = argparse.Namespace()
LAUNCHER_VARIABLES = ("OMPI_", "PMIX_", "PMI_", "SLURM_")
RANKS = (0, 1, 2, 3, 4)  # 0: a plain command


def environment(**extra):
    """Without what a launcher around the tests has set."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHER_VARIABLES) or k.startswith(("OMPI_ALLOW", "OMPI_MCA", "PMIX_MCA"))}
    return {**kept, **extra}


class Run:
    """One run of the program: `lines` are its error lines, without what the launcher adds."""

    def __init__(self, arguments, ranks=0, timeout=60, within=(), **extra):
        """`within`: a command that ends by becoming the program whose arguments follow."""
        self.started = time.monotonic()
        self.ranks = ranks
        preload = {"LD_PRELOAD": OPTIONS.faults} if "FAULT" in extra else {}
        launcher = shlex.split(OPTIONS.mpirun) + ["-np", str(ranks)] if ranks else []
        for name in {**preload, **extra} if ranks else ():
            launcher += ["-x", name]
        variables = environment(**extra) if ranks else environment(**preload, **extra)
        if ranks and preload:  # into the ranks only: the launcher itself stays as it is
            launcher[launcher.index("LD_PRELOAD")] = "LD_PRELOAD=" + OPTIONS.faults
        self.process = subprocess.Popen([*launcher, *within, OPTIONS.unshard, *map(str, arguments)], env=variables, text=True,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
        self.timeout = timeout

    def wait(self):
        try:
            self.out, self.err = self.process.communicate(timeout=self.timeout)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.communicate()
            raise AssertionError(f"the program hangs: {self.process.args}") from None
        self.seconds = time.monotonic() - self.started
        self.code = self.process.returncode
        self.lines = [line for line in self.err.splitlines() if line.startswith("unshard: error:")]
        return self


    def pids(self):
        """The processes that the launcher has started, in the order of their ranks, as soon as all run the program."""
        deadline = time.monotonic() + 30
        while True:
            tasks = Path(f"/proc/{self.process.pid}/task").iterdir()
            pids = sorted(int(pid) for task in tasks for pid in (task / "children").read_text().split())
            if len(pids) == self.ranks and all(Path(f"/proc/{pid}/exe").resolve() == Path(OPTIONS.unshard).resolve() for pid in pids):
                return pids
            if time.monotonic() > deadline:
                raise AssertionError(f"the launcher has started {len(pids)} of {self.ranks} ranks")
            time.sleep(0.02)


def run(arguments, ranks=0, **extra):
    return Run(arguments, ranks, **extra).wait()


class ProgramTest(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="unshard_cli_"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.input = Path(OPTIONS.cases) / "fsdp" / "two_ranks_bf16" / "input"
        self.target = self.folder / "model"

    def expect_error(self, result, code, *parts):
        """One line, the same code, nothing half-published."""
        self.assertEqual(result.code, code, result.err)
        self.assertEqual(len(result.lines), 1, result.err)
        for part in parts:
            self.assertIn(part, result.lines[0])

    def merge(self, ranks=0, *more, **extra):
        if "FAULT" in extra:
            self.forget_earlier_runs()
        return run(["merge", "--local-dir", self.input, "--target-dir", self.target, *more], ranks, **extra)

    def forget_earlier_runs(self):
        """Else a run goes on from where the one before was stopped, and may have nothing left to do."""
        shutil.rmtree(self.folder / "model.unshard-partial", ignore_errors=True)

    def expect_failed_merge(self, result, code, *parts):
        self.expect_error(result, code, *parts)
        self.assertFalse(self.target.exists(), "a target appeared although the merge has failed")

    def expect_that_it_works_now(self, ranks=0):
        again = self.merge(ranks)
        self.assertEqual(again.code, 0, again.err)
        self.assertTrue((self.target / "model.safetensors").exists())


class Usage(ProgramTest):
    def test_wrong_usage_is_one_line_and_code_2_with_any_number_of_ranks(self):
        for ranks in RANKS:
            with self.subTest(ranks=ranks):
                self.expect_error(run([], ranks), 2, "unshard: error: usage: ")
                self.expect_error(run(["merge", "--local-dir", "x"], ranks), 2, "unshard: error: usage: ", "--target-dir")
                self.expect_error(run(["check", "--bogus"], ranks), 2, "--bogus", "see unshard check --help")

    def test_later_features_are_code_4_with_any_number_of_ranks(self):
        for ranks in RANKS:
            with self.subTest(ranks=ranks):
                self.expect_failed_merge(self.merge(ranks, "--quantize", "fp8-block"), 4, "--quantize")
        self.expect_error(run(["extract-lora", "--local-dir", "x"]), 2, "--target-dir")
        self.expect_failed_merge(self.merge(0, "--hf_upload_path=a/b"), 4, "hf upload")

    def test_names_may_have_underscores_and_equals_signs(self):
        for arguments in (["--local_dir", self.input], [f"--local-dir={self.input}"], [f"--local_dir={self.input}", "--num_threads=2"]):
            result = run(["check", *arguments])
            self.assertEqual(result.code, 0, result.err)

    def test_version_and_help_go_to_stdout_once(self):
        for ranks in (0, 2):
            result = run(["--version"], ranks)
            self.assertEqual(result.code, 0, result.err)
            for part in ("unshard ", "MPI: ", "LibTorch: ", "HDF5: ", "formats: "):
                self.assertEqual(result.out.count(part), 1, result.out)
            for arguments in (["merge", "--help"], ["help", "merge"]):
                self.assertEqual(run(arguments, ranks).out.count("--max-shard-size"), 1)
        self.assertEqual(run(["help"]).out, run(["--help"]).out)
        self.assertIn("qwen2", run(["inspect", "--families"]).out.split())

    def test_json_is_one_object_on_stdout_with_any_number_of_ranks(self):
        for ranks in RANKS:
            result = run(["check", "--local-dir", self.input, "--json"], ranks)
            self.assertEqual(result.code, 0, result.err)
            self.assertIsInstance(json.loads(result.out), dict)

    def test_a_reader_that_goes_away_is_no_crash(self):
        process = subprocess.Popen([OPTIONS.unshard, "inspect", str(self.input)], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        process.stdout.close()
        _, err = process.communicate(timeout=30)
        self.assertEqual(process.returncode, 0, err)
        self.assertNotIn(b"error", err)

    def test_a_stdout_that_takes_nothing_is_an_error(self):
        with open("/dev/full", "w", encoding="utf-8") as full:
            result = subprocess.run([OPTIONS.unshard, "inspect", str(self.input)], env=environment(), stdout=full, stderr=subprocess.PIPE, text=True, check=False)
        self.assertEqual(result.returncode, 5, result.stderr)
        self.assertIn("standard output", result.stderr)


class Input(ProgramTest):
    def test_a_folder_that_no_rank_has_is_named_once(self):
        for ranks in RANKS:
            for command in (["check"], ["merge", "--target-dir", self.target]):
                with self.subTest(ranks=ranks, command=command[0]):
                    self.expect_error(run([*command, "--local-dir", self.folder / "absent"], ranks), 3, str(self.folder / "absent"))

    def test_a_report_replaces_no_file_of_the_source_or_of_the_model(self):
        source = shutil.copytree(self.input, self.folder / "source")
        shard = source / "model_world_size_2_rank_0.pt"
        whole = shard.read_bytes()
        for report, code in ((self.target / "model.safetensors", 2), (self.target / "tokenizer.json", 2), (self.target / "config.json", 2), (self.target, 2),
                             (shard, 2), (self.folder / "model.unshard-partial" / "report.json", 2), (self.folder, 2), (self.folder / "absent" / "report.json", 5)):
            for ranks in (0, 2):
                with self.subTest(report=report.name, ranks=ranks):
                    result = run(["merge", "--local-dir", source, "--target-dir", self.target, "--report", report], ranks)
                    self.expect_failed_merge(result, code, "--report", str(report))
                    self.assertFalse((self.folder / "model.unshard-partial").exists())
        self.assertEqual(shard.read_bytes(), whole)

    def test_the_folder_of_config_json_is_no_target(self):
        case = shutil.copytree(Path(OPTIONS.cases) / "lora" / "megatron_torch_dist_stacked" / "input", self.folder / "case")
        before = {path: path.read_bytes() for path in case.rglob("*") if path.is_file()}
        for command in ("merge", "extract-lora"):
            with self.subTest(command=command):
                result = run([command, "--local-dir", case / "run", "--hf-config", case / "hf", "--target-dir", case / "hf", "--overwrite"], 2)
                self.expect_error(result, 2, str(case / "hf"))
        self.assertEqual({path: path.read_bytes() for path in case.rglob("*") if path.is_file()}, before)

    def test_shards_that_are_links_into_the_target_are_not_removed_with_it(self):
        old = shutil.copytree(self.input, self.target)
        linked = shutil.copytree(self.input, self.folder / "linked")
        for path in linked.glob("model_world_size_*"):
            path.unlink()
            path.symlink_to(old / path.name)
        for ranks in RANKS:
            with self.subTest(ranks=ranks):
                result = run(["merge", "--local-dir", linked, "--target-dir", old, "--overwrite"], ranks)
                self.expect_error(result, 2, "model_world_size_2_rank_", "lies inside the target folder")
        self.assertEqual(sorted(path.name for path in old.iterdir()), sorted(path.name for path in self.input.iterdir()))

    def test_a_report_may_lie_in_the_model_folder(self):
        self.assertEqual(self.merge(2, "--report", self.target / "report.json").code, 0)
        json.loads((self.target / "report.json").read_text())

    def test_stage_2_continues_only_a_stage_1_with_the_same_cut(self):
        self.assertEqual(self.merge(0, "--stage", "1", "--stage-layers", "1").code, 0)
        self.expect_failed_merge(self.merge(2, "--stage", "2"), 2, "stage 1", "where the stages part differs")
        self.expect_failed_merge(self.merge(2, "--stage", "2", "--stage-layers", "1", "--dtype", "float32"), 2, "what the files hold")
        self.assertEqual(self.merge(2, "--stage", "2", "--stage-layers", "1").code, 0)

    def test_check_foresees_what_merge_would_refuse(self):
        source = shutil.copytree(self.input, self.folder / "source")
        config = next(source.rglob("config.json"))
        stated = json.loads(config.read_text())
        for layers, text in ((stated["num_hidden_layers"] - 1, "counts fewer layers"), (stated["num_hidden_layers"] + 1, "missing")):
            config.write_text(json.dumps({**stated, "num_hidden_layers": layers}))
            for ranks in (0, 2):
                with self.subTest(layers=layers, ranks=ranks):
                    result = run(["check", "--local-dir", source], ranks)
                    self.assertEqual(result.code, 0, result.err)
                    self.assertIn("note: merge: will need", result.out + result.err)
                    self.expect_failed_merge(run(["merge", "--local-dir", source, "--target-dir", self.target], ranks), 3, text)
        config.write_text(json.dumps(stated))
        result = run(["check", "--local-dir", source])
        self.assertNotIn("merge:", result.out + result.err)

    def test_inspect_lists_the_tensors_of_an_adapter_folder(self):
        adapter = next(path.parent for path in sorted((Path(OPTIONS.cases) / "lora").rglob("adapter_model.safetensors")))
        for ranks in (0, 2):
            result = run(["inspect", adapter], ranks)
            self.assertEqual(result.code, 0, result.err)
            self.assertIn("adapter_model.safetensors: safetensors file", result.out)
            self.assertIn("lora_A", result.out)

    def test_json_of_a_failure_still_has_code_and_line(self):
        for ranks in (0, 2):
            self.expect_error(run(["check", "--local-dir", self.folder / "absent", "--json"], ranks), 3, "absent")

    def test_any_number_of_ranks_gives_the_same_bytes(self):
        first = None
        for ranks in RANKS:
            self.expect_that_it_works_now(ranks)
            content = (self.target / "model.safetensors").read_bytes()
            first = first or content
            self.assertEqual(content, first)
            shutil.rmtree(self.target)


    def test_ranks_of_one_node_share_open_files_instead_of_sending(self):
        self.input = self.folder / "input"
        write_large_checkpoint(self.input)
        counts = {}
        for ranks in (1, 3, 4):
            command = ["merge", "--local-dir", self.input, "--target-dir", self.target, "--json"]
            plan = json.loads(run([*command, "--dry-run"], ranks).out)["move"]
            result = run(command, ranks)
            self.assertEqual(result.code, 0, result.err)
            counts[ranks] = (plan, json.loads(result.out)["ranks"], (self.target / "model.safetensors").read_bytes())
            shutil.rmtree(self.target)
        for ranks in (3, 4):
            with self.subTest(ranks=ranks):
                plan, by_rank, model = counts[ranks]
                self.assertEqual((plan["readers"], plan["opens"]["all"], plan["exchanged_bytes"]), ("owners that share open files", 1, 0))
                self.assertEqual(sum(rank["exchanged_bytes"] for rank in by_rank), 0)
                self.assertGreater(min(rank["read_bytes"] for rank in by_rank), 0)
                self.assertEqual(model, counts[1][2])

    def test_a_place_that_can_not_be_written_is_found_out_before_work(self):
        """As on a read-only mount: also root can't make files in /proc/sys."""
        self.target = Path("/proc/sys/model")
        for ranks in (0, 2):
            result = self.merge(ranks)
            self.expect_failed_merge(result, 5, "/proc/sys")
            self.assertNotIn("Merging", result.err)


class Launchers(ProgramTest):
    def test_tasks_that_did_not_find_each_other_are_refused_with_advice(self):
        for variables in ({"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "0"}, {"PMI_SIZE": "4", "PMI_RANK": "0"},
                          {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "0"}, {"PMIX_RANK": "0"}):
            with self.subTest(variables=variables):
                self.expect_error(run(["check", "--local-dir", self.input], **variables), 7, "MPI sees only this one", "--mpi=pmix")

    def test_only_the_first_of_them_speaks(self):
        result = run(["check", "--local-dir", self.input], SLURM_STEP_NUM_TASKS="4", SLURM_PROCID="1")
        self.assertEqual(result.code, 7)
        self.assertEqual(result.err, "")

    def test_plain_commands_of_a_batch_script_are_no_tasks(self):
        result = run(["check", "--local-dir", self.input], SLURM_NTASKS="8", SLURM_JOB_ID="1", SLURM_STEP_NUM_TASKS="1")
        self.assertEqual(result.code, 0, result.err)

    def test_ranks_that_are_bound_to_a_part_of_the_cpus_are_noted(self):
        cpus = sorted(os.sched_getaffinity(0))
        if len(cpus) < 2:
            self.skipTest("needs two CPUs")
        bound = ("taskset", "-c", str(cpus[-1]))
        deep = ["check", "--deep", "--local-dir", self.input]
        noted = Run(deep, 1, within=bound).wait()
        self.assertEqual(noted.code, 0, noted.err)
        self.assertIn(f"bound this rank to 1 of its {len(cpus)} CPUs, for 4 I/O threads", noted.err)
        # Enough for one thread; reads headers only; was not bound by a launcher.
        for arguments, ranks in ((deep + ["--num-threads", "1"], 1), (["check", "--local-dir", self.input], 1), (deep, 0)):
            with self.subTest(arguments=arguments, ranks=ranks):
                other = Run(arguments, ranks, within=bound).wait()
                self.assertEqual(other.code, 0, other.err)
                self.assertNotIn("bound this rank", other.err)

    def test_version_needs_no_mpi(self):
        self.assertEqual(run(["--version"], SLURM_STEP_NUM_TASKS="4").code, 0)


class Signals(ProgramTest):
    def interrupted(self, number, ranks):
        if not OPTIONS.faults:
            self.skipTest("needs the library of faults")
        self.forget_earlier_runs()
        started = Run(["merge", "--local-dir", self.input, "--target-dir", self.target, "--io", "posix"], ranks, FAULT="write-slow", FAULT_PATH=".safetensors")
        deadline = time.monotonic() + 20
        while not list(self.folder.glob("model.unshard-partial/*safetensors*")) and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(0.3)  # into the slow write
        started.process.send_signal(number)
        return started.wait()

    def test_a_plain_merge_ends_with_one_line_and_128_plus_signal(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            with self.subTest(signal=number.name):
                self.expect_failed_merge(self.interrupted(number, 0), 128 + number)
        self.expect_that_it_works_now()

    def test_no_file_takes_the_number_of_a_stream_that_is_closed(self):
        if not OPTIONS.faults:
            self.skipTest("needs the library of faults")
        command = [OPTIONS.unshard, "merge", "--local-dir", str(self.input), "--target-dir", str(self.target)]
        slow = environment(LD_PRELOAD=OPTIONS.faults, FAULT="write-slow", FAULT_PATH=".safetensors")
        process = subprocess.Popen(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *command], env=slow)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        deadline = time.monotonic() + 20
        while not list(self.folder.glob("model.unshard-partial/*safetensors*")) and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(0.3)  # into the slow write
        opened = {int(entry.name): os.readlink(entry) for entry in Path(f"/proc/{process.pid}/fd").iterdir()}
        written = [number for number, path in opened.items() if path.startswith(str(self.target))]
        self.assertTrue(written, opened)
        self.assertGreater(min(written), 2, opened)

    def interrupted_reader(self, arguments, number, ranks):
        """A command that would read for half a minute, and gets a signal when it has found its input."""
        if not OPTIONS.faults:
            self.skipTest("needs the library of faults")
        started = Run(arguments, ranks, FAULT="read-slow", FAULT_PATH="model_world_size")
        while "Found" not in (line := started.process.stderr.readline()) and line:
            pass
        time.sleep(0.5)
        sent = time.monotonic()
        started.process.send_signal(number)
        started.wait()
        self.assertLess(time.monotonic() - sent, 10)
        return started

    def test_commands_that_only_read_stop_too(self):
        self.input = self.folder / "input"
        write_large_checkpoint(self.input)
        self.expect_that_it_works_now()
        check = ["check", "--deep", "--local-dir", self.input, "--buffer-size", "512KiB"]
        compare = ["test", "--local-dir", self.input, "--test-hf-dir", self.target, "--buffer-size", "2MiB"]
        for command in (check, compare):
            for number, ranks in ((signal.SIGINT, 0), (signal.SIGTERM, 0), (signal.SIGUSR1, 0), (signal.SIGUSR1, 2)):
                with self.subTest(command=command[0], signal=number.name, ranks=ranks):
                    self.expect_error(self.interrupted_reader(command, number, ranks), 128 + number, "stopped by " + number.name)
            self.assertEqual(run(command).code, 0)

    def test_a_signal_that_the_launcher_passes_on_ends_all_ranks(self):
        self.expect_failed_merge(self.interrupted(signal.SIGUSR1, 2), 128 + signal.SIGUSR1)
        self.expect_that_it_works_now(2)


class FaultyTest(ProgramTest):
    """With the library of faults, and a checkpoint that is large enough to fail in the middle."""

    def setUp(self):
        super().setUp()
        if not OPTIONS.faults:
            self.skipTest("needs the library of faults")
        self.input = self.folder / "input"
        write_large_checkpoint(self.input)


class Faults(FaultyTest):
    def each_rank(self, least=1):
        for ranks in range(least, 5):
            for rank in sorted({0, ranks - 1}):
                yield ranks, rank

    def test_a_file_that_one_rank_can_not_read(self):
        self.input = Path(OPTIONS.cases) / "fsdp" / "two_ranks_bf16" / "input"
        for ranks in RANKS[1:]:
            for command in (["check"], ["merge", "--target-dir", self.target]):
                with self.subTest(ranks=ranks, command=command[0]):
                    failed = 0
                    for rank in range(ranks):  # which of them read the two files is not said
                        result = run([*command, "--local-dir", self.input], ranks, FAULT="open-eacces", FAULT_RANK=str(rank), FAULT_PATH="model_world_size")
                        if result.code == 0:
                            shutil.rmtree(self.target, ignore_errors=True)
                        else:
                            self.assertIn(result.code, (3, 5), result.err)
                            self.assertEqual(len(result.lines), 1, result.err)
                            self.assertIn("model_world_size_2_rank_", result.err)
                            self.assertLess(result.seconds, 20)
                            self.assertFalse(self.target.exists())
                            failed += 1
                    self.assertGreater(failed, 0)

    def test_a_full_disk_on_one_rank(self):
        for ranks, rank in self.each_rank():
            self.expect_failed_merge(self.merge(ranks, "--io", "posix", FAULT="write-enospc", FAULT_RANK=str(rank), FAULT_PATH=".safetensors"), 6, ".safetensors")
        self.expect_that_it_works_now(2)

    def test_a_disk_that_fails_in_the_middle(self):
        for ranks, rank in self.each_rank():
            for fault, path, code in (("write-enospc", ".safetensors", 6), ("write-eio", ".safetensors", 5), ("read-eio", "model_world_size", 5)):
                with self.subTest(ranks=ranks, rank=rank, fault=fault):
                    # A rank reads headers in a few calls, and writes and reads its share of 9 MB in at least 8.
                    result = self.merge(ranks, "--io", "posix", FAULT=fault, FAULT_RANK=str(rank), FAULT_PATH=path, FAULT_AFTER="6")
                    self.expect_failed_merge(result, code, path)
                    if fault == "write-enospc":
                        self.assertIn("free space", result.lines[0])
        self.expect_that_it_works_now(2)

    def test_a_disk_that_fails_a_rank_which_reads_for_others(self):
        """More shards than ranks may share as open files: each is read by one rank, which sends."""
        self.input = self.folder / "shards"
        contents = write_row_shards(self.input, 32)
        limited = ["sh", "-c", 'ulimit -n 80; exec "$@"', "sh"]
        for rank in range(4):
            with self.subTest(rank=rank):  # each reads the headers of 8 files first, 4 times each
                faulty = {"FAULT_RANK": str(rank), "FAULT_PATH": "/shard-0", "FAULT_AFTER": "40", "within": limited}
                self.expect_failed_merge(self.merge(4, FAULT="read-eio", **faulty), 5, "move: ", "shard-0")
                killed = self.merge(4, FAULT="read-kill", **faulty)
                self.assertNotEqual(killed.code, 0)
                self.assertLess(killed.seconds, 10)
                self.assertFalse(self.target.exists())
        result = self.merge(4, "--verbose", within=limited)
        self.assertEqual(result.code, 0, result.err)
        self.assertRegex(result.err, "exchanged [1-9]")
        self.assertEqual(read_safetensors(self.target / "model.safetensors"), contents)

    def test_a_device_that_refuses_what_was_written(self):
        for ranks, io in ((0, "posix"), (2, "posix"), (3, "collective")):
            with self.subTest(ranks=ranks, io=io):
                self.expect_failed_merge(self.merge(ranks, "--io", io, FAULT="writeback-eio", FAULT_PATH=".safetensors"), 5, "writing back failed")
        self.expect_that_it_works_now(2)

    def test_a_rank_that_stands_still_for_a_while_is_waited_for(self):
        for io in ("posix", "collective"):
            with self.subTest(io=io):
                started = Run(["merge", "--local-dir", self.input, "--target-dir", self.target, "--io", io, "--buffer-size", "1MiB"], 3,
                              FAULT="read-slow", FAULT_PATH="model_world_size")
                self.addCleanup(started.process.kill)
                slow = started.pids()[-1]
                time.sleep(0.5)  # into the slow reads
                os.kill(slow, signal.SIGSTOP)
                time.sleep(3)
                self.assertIsNone(started.process.poll(), "it has ended before the rank stood still; nothing was tested")
                os.kill(slow, signal.SIGCONT)
                started.wait()
                self.assertEqual(started.code, 0, started.err)
                shutil.rmtree(self.target)

    def test_a_collective_write_that_fails_on_one_rank(self):
        for fault in ("collective-eio", "collective-short"):
            for ranks, rank in self.each_rank(least=2):  # one rank needs no MPI
                self.expect_failed_merge(self.merge(ranks, "--io", "collective", FAULT=fault, FAULT_RANK=str(rank)), 5, ".safetensors")
        self.expect_that_it_works_now(2)

    def test_a_write_that_lies_is_found_by_reading_back(self):
        for ranks, rank in self.each_rank():
            self.expect_failed_merge(self.merge(ranks, "--io", "posix", FAULT="write-lie", FAULT_RANK=str(rank), FAULT_PATH=".safetensors"), 8, ".safetensors")
        for ranks, rank in self.each_rank(least=2):
            self.expect_failed_merge(self.merge(ranks, "--io", "collective", FAULT="collective-lie", FAULT_RANK=str(rank)), 8, ".safetensors")
        self.expect_that_it_works_now(2)

    def test_a_killed_rank_ends_the_others(self):
        for ranks, rank in self.each_rank(least=2):
            for variables in ({"FAULT": "write-kill", "FAULT_PATH": ".safetensors"}, {"FAULT": "collective-kill"}):
                io = "posix" if "FAULT_PATH" in variables else "collective"
                result = self.merge(ranks, "--io", io, FAULT_RANK=str(rank), **variables)
                self.assertNotEqual(result.code, 0, io)
                self.assertLess(result.seconds, 10, io)
                self.assertFalse(self.target.exists(), io)
        self.expect_that_it_works_now(2)

    def test_a_rank_killed_in_any_step_ends_the_others(self):
        for fault, path in (("open-kill", "model_world_size"), ("open-kill", ".unshard-probe"), ("read-kill", ".safetensors"), ("fsync-kill", ".safetensors"),
                            ("rename-kill", "config.json")):
            with self.subTest(fault=fault, path=path):
                result = self.merge(3, FAULT=fault, FAULT_PATH=path)  # of the rank, whichever it is, that comes to it
                self.assertNotEqual(result.code, 0)
                self.assertLess(result.seconds, 10)
                self.assertFalse(self.target.exists())
        self.expect_that_it_works_now(3)

    def test_a_rank_that_stands_still_for_a_while_is_no_failure(self):
        started = Run(["merge", "--local-dir", self.input, "--target-dir", self.target, "--io", "posix"], 2, FAULT="write-slow", FAULT_PATH=".safetensors")
        deadline = time.monotonic() + 20
        while not list(self.folder.glob("model.unshard-partial/*safetensors*")) and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(0.3)  # into the slow write
        rank = started.pids()[-1]
        os.kill(rank, signal.SIGSTOP)
        time.sleep(3)
        os.kill(rank, signal.SIGCONT)
        started.wait()
        self.assertEqual(started.code, 0, started.err)


class Adapters(ProgramTest):
    def setUp(self):
        super().setUp()
        self.lora = Path(OPTIONS.cases) / "lora"

    def weights(self, *options):
        result = run(["merge", "--local-dir", self.lora / "fsdp2_fold" / "input", "--target-dir", self.target, "--overwrite", *options], 2)
        self.assertEqual(result.code, 0, result.err)
        return (self.target / "model.safetensors").read_bytes()

    def test_what_is_dropped_is_neither_folded_nor_extracted(self):
        base = self.weights("--lora", "drop")
        self.assertNotEqual(self.weights("--lora", "fold"), base)
        self.assertEqual(self.weights("--lora", "fold", "--drop", "*lora_*"), base)
        self.assertEqual(self.weights("--drop", "*lora_*"), base)
        self.assertFalse((self.target / "lora_adapter").exists())

    def test_half_a_pair_is_not_dropped(self):
        result = run(["merge", "--local-dir", self.lora / "fsdp2_fold" / "input", "--target-dir", self.target, "--lora", "fold", "--drop", "*layers.0*lora_A*"], 2)
        self.expect_failed_merge(result, 2, "--drop", "layers.0")

    def test_an_adapter_folder_that_is_nowhere(self):
        result = run(["merge-lora", "--base-model", self.lora / "plain_fp32" / "input" / "base", "--lora-adapter", self.folder / "none", "--target-dir", self.target], 2)
        self.expect_failed_merge(result, 3, str(self.folder / "none"))

    def test_a_dora_adapter_without_magnitudes_is_not_folded_as_lora(self):
        case = shutil.copytree(self.lora / "plain_fp32" / "input", self.folder / "case")
        config = case / "adapter" / "adapter_config.json"
        config.write_text(json.dumps({**json.loads(config.read_text()), "use_dora": True}))
        result = run(["merge-lora", "--base-model", case / "base", "--lora-adapter", case / "adapter", "--target-dir", self.target], 2)
        self.expect_failed_merge(result, 3, "use_dora", "lora_magnitude_vector")


class Limits(ProgramTest):
    def test_a_limit_for_the_size_of_files_is_an_error_with_its_line(self):
        result = self.run_limited("ulimit -f 4", ["merge", "--local-dir", self.input, "--target-dir", self.target], 0)  # MPI's own files are larger
        self.assertEqual(result.returncode, 5, result.stderr)
        self.assertIn("File too large", result.stderr)
        self.assertFalse(self.target.exists())

    def test_a_cache_that_can_not_be_written_is_a_warning(self):
        for limit in range(1, 150, 8):  # in blocks of 512 bytes: HDF5 fails at another place each time
            result = self.run_limited(f"ulimit -f {limit}", ["check", "--local-dir", self.input, "--cache-dir", self.folder / f"cache{limit}"], 0)
            self.assertEqual(result.returncode, 0, result.stderr)

    def run_limited(self, limit, arguments, ranks):
        launcher = shlex.split(OPTIONS.mpirun) + ["-np", str(ranks)] if ranks else []
        command = shlex.join(launcher + ["sh", "-c", f'{limit}; exec "$@"', "sh", OPTIONS.unshard, *map(str, arguments)])
        return subprocess.run(["sh", "-c", command], env=environment(), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120, check=False)

    def test_1024_shards_with_256_descriptors(self):
        self.input = self.folder / "input"
        names = write_many_shards(self.input, 1024)
        for ranks in (0, 1, 2, 4):
            with self.subTest(ranks=ranks):
                result = self.run_limited("ulimit -n 256", ["merge", "--local-dir", self.input, "--target-dir", self.target], ranks)
                self.assertEqual(result.returncode, 0, result.stderr)
                self.assertEqual(read_safetensors(self.target / "model.safetensors"), names)
                shutil.rmtree(self.target)

    def put_large_model(self, size):
        """On a disk, of whose pages a job can be rid. Returns the size of the model's file."""
        if not OPTIONS.faults:
            self.skipTest("a sanitizer's own memory, which comes with no library of faults, would be counted too")
        self.folder = Path(tempfile.mkdtemp(prefix="unshard_cli_", dir=Path.cwd()))  # /tmp may be in memory itself
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        if subprocess.run(["stat", "--file-system", "--format=%T", self.folder], check=True, text=True, stdout=subprocess.PIPE).stdout.strip() == "tmpfs":
            self.skipTest("the pages of files in a tmpfs are memory that the job uses")
        self.input, self.target = self.folder / "input", self.folder / "model"
        return write_sparse_model(self.input, size)

    def run_in_cgroup(self, launcher, limit, *more):
        """`launcher` may end in a shell's script that puts only some ranks into the cgroup."""
        in_cgroup = [Path(__file__).resolve().parents[2] / "bench" / "in_cgroup.sh", str(limit)]
        command = launcher + in_cgroup + [OPTIONS.unshard, "merge", "--local-dir", self.input, "--target-dir", self.target, *more]
        result = subprocess.run(list(map(str, command)), env=environment(), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120, check=False)
        if "no cgroup may be made" in result.stderr:
            self.skipTest("no cgroup may be made")
        return result

    def test_a_model_that_is_larger_than_the_memory_that_the_job_may_use(self):
        size = self.put_large_model(400 << 20)
        result = self.run_in_cgroup([], 80 << 20, "--buffer-size", "16MiB")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual((self.target / "model.safetensors").stat().st_size, size)

    def test_a_rank_that_is_killed_for_its_memory_ends_the_others(self):
        size = self.put_large_model(100 << 20)
        if "PMIX_RANK" not in subprocess.run(shlex.split(OPTIONS.mpirun) + ["-np", "1", "env"], env=environment(), text=True, stdout=subprocess.PIPE, check=True).stdout:
            self.skipTest("this launcher does not tell its ranks who they are")
        last_rank_only = 'if [ "$PMIX_RANK" = 1 ]; then exec "$@"; else shift 2; exec "$@"; fi'
        started = time.monotonic()
        result = self.run_in_cgroup(shlex.split(OPTIONS.mpirun) + ["-np", "2", "sh", "-c", last_rank_only, "sh"], 16 << 20, "--num-threads", "64")  # of 0.75 MiB each
        self.assertNotEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stderr, r"oom_kill 1\b")
        self.assertLess(time.monotonic() - started, 10)
        self.assertFalse(self.target.exists())
        self.assertTrue(list(self.folder.glob("model.unshard-partial/*.part")), "it was killed before it wrote")
        self.assertEqual(self.merge(2).code, 0)
        self.assertEqual((self.target / "model.safetensors").stat().st_size, size)

    def test_more_ranks_than_tensors(self):
        self.input = self.folder / "input"
        names = write_many_shards(self.input, 3)
        result = self.merge(16, timeout=120)
        self.assertEqual(result.code, 0, result.err)
        self.assertEqual(read_safetensors(self.target / "model.safetensors"), names)


class Resume(FaultyTest):
    """After `kill -9` the same command goes on; bench/kill.py does it at 50 random moments of a large merge."""

    def setUp(self):
        super().setUp()
        self.expect_that_it_works_now()
        self.expected = (self.target / "model.safetensors").read_bytes()
        shutil.rmtree(self.target)

    def expect_the_model(self, result):
        self.assertEqual(result.code, 0, result.err)
        self.assertEqual((self.target / "model.safetensors").read_bytes(), self.expected)
        self.assertEqual([path.name for path in self.target.iterdir() if path.name.startswith(".")], [])
        self.assertFalse((self.folder / "model.unshard-partial").exists())

    def test_a_killed_merge_goes_on_and_gives_the_same_bytes(self):
        chance = random.Random(20)
        went_on = 0
        for ranks, io in ((0, "posix"), (2, "posix"), (2, "collective"), (3, "posix")):
            fault = "collective-kill" if io == "collective" else "write-kill"
            for path in (".safetensors", "model.unshard-partial"):
                with self.subTest(ranks=ranks, io=io, path=path):
                    killed = self.merge(ranks, "--io", io, FAULT=fault, FAULT_PATH=path if io == "posix" else "", FAULT_AFTER=str(chance.randrange(1, 12) if io == "posix" else 1),
                                        FAULT_RANK=str(chance.randrange(max(ranks, 1))))
                    if killed.code != 0:
                        self.assertFalse(self.target.exists())
                        again = self.merge(2 if ranks != 2 else 1)
                        went_on += "Going on from an earlier run" in again.err
                        self.expect_the_model(again)
                    shutil.rmtree(self.target)
        self.assertGreater(went_on, 1)

    def test_a_second_run_names_the_first_one(self):
        for ranks in (0, 2):
            job = {} if ranks else {"SLURM_JOB_ID": "77"}
            first = Run(["merge", "--local-dir", self.input, "--target-dir", self.target, "--io", "posix"], ranks, FAULT="write-slow", FAULT_PATH=".safetensors", **job)
            deadline = time.monotonic() + 20
            while not list(self.folder.glob("model.unshard-partial/*safetensors*")) and time.monotonic() < deadline:
                time.sleep(0.02)
            for more in ([], ["--restart"]):
                named = ["process "] if ranks else [f"process {first.process.pid}, Slurm job 77"]
                self.expect_error(self.merge(0, *more), 2, "another run works on this target: host ", *named)
            self.expect_the_model(first.wait())
            shutil.rmtree(self.target)

    def test_restart_starts_anew(self):
        self.merge(0, FAULT="write-kill", FAULT_PATH=".safetensors", FAULT_AFTER="8")
        anew = self.merge(0, "--restart")
        self.assertNotIn("Going on", anew.err)
        self.expect_the_model(anew)


class FullDisk(ProgramTest):
    def test_a_small_file_system(self):
        for ranks in (0, 2):
            for io in ("posix", "collective"):
                with self.subTest(ranks=ranks, io=io):
                    launcher = shlex.split(OPTIONS.mpirun) + ["-np", str(ranks)] if ranks else []
                    command = shlex.join(launcher + [OPTIONS.unshard, "merge", "--local-dir", str(self.input), "--target-dir", "full/model", "--io", io])
                    script = f"mkdir -p full && mount -t tmpfs -o size=16k tmpfs full || exit 77; {command}"
                    isolate = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-rm"]
                    result = subprocess.run([*isolate, "sh", "-c", script], cwd=self.folder, env=environment(), text=True, stdout=subprocess.PIPE,
                                            stderr=subprocess.PIPE, timeout=60, check=False)
                    if result.returncode in (1, 77) and "unshard: error" not in result.stderr:
                        self.skipTest("no mount namespace: " + result.stderr.strip())
                    self.assertEqual(result.returncode, 6, result.stderr)
                    lines = [line for line in result.stderr.splitlines() if line.startswith("unshard: error:")]
                    self.assertEqual(len(lines), 1, result.stderr)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--unshard", required=True)
    parser.add_argument("--mpirun", required=True)
    parser.add_argument("--cases", required=True)
    parser.add_argument("--faults", default="")
    _, rest = parser.parse_known_args(namespace=OPTIONS)
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""The program on a real Slurm cluster of four hosts, each with a disk of its own (slurm_cluster.sh): shards on private disks, what nodes do not see,
signals, killed ranks, and the scripts in slurm/.

    cluster_test.py --unshard PROGRAM --mpirun mpirun --cases DIR --scripts DIR [--faults LIBRARY] [unittest's arguments]

Starts the cluster around itself. Exit code 77, with the reason on stderr: there can be none here.
"""
import argparse
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "cli"))
from large_checkpoint import shapes, tensor_bytes, write_split_model

OPTIONS = argparse.Namespace()
HOSTS = 4
SRUN = ["srun", "--mpi=pmix", "--immediate=20"]


def cluster(*parts):
    return Path(os.environ["CLUSTER"], *parts)


def processes():
    """Number and command line of all that run."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            yield int(folder.name), (folder / "cmdline").read_text().split("\0")
        except OSError:
            continue


def bytes_on_the_network():
    """That the hosts have sent to one another so far."""
    lines = [line.split(":") for line in Path("/proc/net/dev").read_text().splitlines() if "to-node" in line]
    return sum(int(columns.split()[0]) for _, columns in lines)


class NotStarted(Exception):
    """MPI did not start: on a busy machine one in twenty starts of any program with Open MPI 4.1 and Slurm 22.05 crashes or stands still."""


def spoke(text):
    """Whether the program has said anything, so that MPI had started."""
    return any(line in text for line in ("Found ", "unshard: error:", " is complete"))


class Run:
    """A command under way; `lines` are its error lines once it has ended."""

    def __init__(self, command, timeout=40, **extra):
        self.timeout = timeout
        self.process = subprocess.Popen([str(part) for part in command], env={**os.environ, **extra}, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        start_new_session=True)

    def wait(self):
        began = time.monotonic()
        try:
            self.out, self.err = self.process.communicate(timeout=self.timeout)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            _, self.err = self.process.communicate()
            raise AssertionError(f"hangs: {self.process.args}\n{self.err}") from None
        self.seconds = time.monotonic() - began
        self.code = self.process.returncode
        self.lines = [line for line in self.err.splitlines() if "unshard: error:" in line]
        return self

    def has_begun(self):
        return spoke(self.err)

    def give_up(self):
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()
        raise NotStarted(self.process.args)

    def ranks(self):
        """Process by rank, of those that are there."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if (folder / "comm").read_text().strip() != Path(OPTIONS.unshard).name:
                    continue
                variables = dict(pair.split("=", 1) for pair in (folder / "environ").read_text().split("\0") if "=" in pair)
            except OSError:
                continue
            found[int(variables.get("SLURM_PROCID", variables.get("OMPI_COMM_WORLD_RANK", -1)))] = int(folder.name)
        return found


class ClusterTest(unittest.TestCase):
    def setUp(self):
        self.shared = Path(tempfile.mkdtemp(prefix="shared_", dir=cluster()))
        self.addCleanup(shutil.rmtree, self.shared, ignore_errors=True)
        for left in cluster("disks").glob("node*/*"):
            shutil.rmtree(left)
        self.target = self.shared / "model"
        self.local = cluster("disk", "run")  # as each host sees its own

    def _callTestMethod(self, method):
        """Once more, from the beginning, where MPI has not started."""
        for tries in (2, 1, 0):
            try:
                return super()._callTestMethod(method)
            except NotStarted:
                if tries == 0:
                    raise
                self.doCleanups()
                self.setUp()

    def on_disk(self, number):
        """The folder `run` of the disk of host `number`."""
        folder = cluster("disks", f"node{number}", "run")
        folder.mkdir(exist_ok=True)
        return folder

    def put_rank_files(self, missing=()):
        """A checkpoint of four ranks, each on the disk of its host; only the second has the configuration."""
        case = Path(OPTIONS.cases) / "fsdp" / "fsdp1_four_ranks_uneven" / "input"
        for rank in range(HOSTS):
            folder = self.on_disk(rank + 1)
            if rank not in missing:
                shutil.copy(case / f"model_world_size_4_rank_{rank}.pt", folder)
        shutil.copytree(case / "huggingface", self.on_disk(2) / "huggingface")
        return case

    def put_large_model(self):
        """A folder of four files of 2 MB each, on the disk of its host; the same in one folder that all share."""
        whole = self.shared / "whole"
        write_split_model(whole, HOSTS)
        for number in range(1, HOSTS + 1):
            shutil.copy(whole / f"model-{number:05}-of-{HOSTS:05}.safetensors", self.on_disk(number))
        for name in ("config.json", "model.safetensors.index.json"):
            shutil.copy(whole / name, self.on_disk(1))
        return whole

    def start_merge(self, *options, ranks=HOSTS, launcher=(*SRUN, f"-N{HOSTS}"), **extra):
        preload = ["env", "LD_PRELOAD=" + OPTIONS.faults] if "FAULT" in extra else []
        return Run([*launcher, f"-n{ranks}", *preload, OPTIONS.unshard, "merge", "--local-dir", self.local, "--target-dir", self.target, *options], **extra)

    def merge(self, *options, **extra):
        """Once more where MPI has not started."""
        for tries in (2, 1, 0):
            run = self.start_merge(*options, **extra)
            try:
                run.wait()
            except AssertionError:
                if run.has_begun() or tries == 0:
                    raise
                continue
            if run.code == 0 or run.has_begun() or "Segmentation fault" not in run.err or tries == 0:
                return run

    def expect_same_as_one_rank(self, source):
        alone = Run([OPTIONS.unshard, "merge", "--local-dir", source, "--target-dir", self.shared / "alone"]).wait()
        self.assertEqual(alone.code, 0, alone.err)
        names = sorted(path.name for path in (self.shared / "alone").iterdir())
        self.assertEqual(names, sorted(path.name for path in self.target.iterdir()))
        for name in names:
            self.assertEqual((self.target / name).read_bytes(), (self.shared / "alone" / name).read_bytes(), name)

    def expect_error(self, result, code, *parts):
        self.assertEqual(result.code, code, result.err)
        self.assertEqual(len(result.lines), 1, result.err)
        for part in parts:
            self.assertIn(part, result.lines[0])
        self.assertFalse(self.target.exists(), "a target appeared although the merge has failed")


class PrivateDisks(ClusterTest):
    def test_shards_on_four_disks_give_the_bytes_of_one_rank(self):
        whole = self.put_large_model()
        before = bytes_on_the_network()
        result = self.merge("--json", "--verbose")
        crossed = bytes_on_the_network() - before
        self.assertEqual(result.code, 0, result.err)
        self.expect_same_as_one_rank(whole)
        facts = json.loads(result.out)
        ranks = facts["ranks"]
        payload = facts["bytes"]
        self.assertEqual(payload, sum(tensor_bytes(shape) for _, shape in shapes()))
        self.assertEqual([rank["host"] for rank in ranks], ["node1", "node2", "node3", "node4"])
        self.assertEqual(sum(rank["read_bytes"] for rank in ranks), payload)
        self.assertEqual(sum(rank["written_bytes"] for rank in ranks), payload)
        self.assertTrue(all(rank["written_bytes"] > 0 for rank in ranks), ranks)
        self.assertGreater(sum(rank["exchanged_bytes"] for rank in ranks), 0)
        self.assertLessEqual(sum(rank["exchanged_bytes"] for rank in ranks), payload)
        self.assertGreater(crossed, sum(rank["exchanged_bytes"] for rank in ranks))
        self.assertLess(crossed, payload + 2_000_000)  # with what MPI and Slurm say to one another
        for rank in ranks:
            self.assertEqual(set(rank["seconds"]), {"discover", "target", "catalog", "map", "plan", "move", "verify", "publish"})
            self.assertGreater(rank["peak_rss_bytes"], 1 << 20)
            self.assertRegex(result.err, rf"(?m)^rank {rank['rank']} on {rank['host']}: read {rank['read_bytes']}, exchanged {rank['exchanged_bytes']}, wrote .*"
                                         rf"peak memory {rank['peak_rss_bytes']} bytes; .* move \d+\.\d+ ")
        self.assertRegex(result.err, rf"(?m)^Merged {payload} bytes in \d+\.\d+ s, .*/s; slowest rank {facts['slowest_rank']} on node\d ")

    def test_different_files_of_one_name_are_named_with_both_hosts(self):
        case = self.put_rank_files()
        shutil.copy(case / "model_world_size_4_rank_1.pt", self.on_disk(3) / "model_world_size_4_rank_0.pt")  # of the same size
        self.expect_error(self.merge(), 3, "model_world_size_4_rank_0.pt", "node1", "node3")
        with open(self.on_disk(3) / "model_world_size_4_rank_0.pt", "ab") as longer:
            longer.write(b"x")
        self.expect_error(self.merge(), 3, "model_world_size_4_rank_0.pt", "node1", "node3")

    def test_equal_files_of_one_name_are_read_once(self):
        case = self.put_rank_files()
        for number in (2, 4):
            shutil.copy(case / "model_world_size_4_rank_0.pt", self.on_disk(number))
        result = self.merge("--json")
        self.assertEqual(result.code, 0, result.err)
        facts = json.loads(result.out)
        self.assertEqual(sum(rank["read_bytes"] for rank in facts["ranks"]), facts["bytes"])
        self.expect_same_as_one_rank(case)

    def test_a_node_that_is_left_out_means_missing_ranks(self):
        self.put_rank_files()
        result = self.merge(launcher=(*SRUN, "-w", "node1,node2"), ranks=2)
        self.expect_error(result, 3, "2-3")


class TargetFolder(ClusterTest):
    def test_a_target_that_is_another_folder_on_each_host_is_refused_before_work(self):
        self.put_rank_files()
        self.target = cluster("disk", "model")
        self.expect_error(self.merge(), 5, "on node1", "node2, node3, node4")
        for number in range(1, HOSTS + 1):
            self.assertEqual([path.name for path in cluster("disks", f"node{number}").iterdir()], ["run"])


    def test_ranks_that_do_not_see_the_target_read_and_send(self):
        """Also rank 0, and also the one whose disk has the configuration."""
        whole = self.put_large_model()
        (self.on_disk(1) / "vocab.json").write_text("{}" * 1_000_000)  # more than goes in one piece
        shutil.copy(self.on_disk(1) / "vocab.json", whole)
        only = cluster("disks", "node3", "only_here")
        only.mkdir()
        self.target = cluster("disk", "only_here", "model")
        result = self.merge("--json", "--report", self.target / "report.json")
        self.assertEqual(result.code, 0, result.err)
        self.assertIn("is not seen on node1, node2, node4: ranks there only read and send", result.err)
        facts = json.loads(result.out)
        self.assertEqual([rank["written_bytes"] for rank in facts["ranks"]], [0, 0, facts["bytes"], 0])
        self.assertTrue(all(rank["read_bytes"] > 0 for rank in facts["ranks"]), facts["ranks"])
        self.assertLess(facts["ranks"][2]["exchanged_bytes"], facts["bytes"])  # its own shard stays where it is
        self.assertEqual([path.name for path in only.iterdir()], ["model"])
        report = json.loads((only / "model" / "report.json").read_text())
        (only / "model" / "report.json").unlink()
        self.assertEqual(report["output_files"][0]["sha256"], hashlib.sha256((only / "model" / "model.safetensors").read_bytes()).hexdigest())
        self.target = only / "model"
        self.expect_same_as_one_rank(whole)
        for number in (1, 2, 4):
            self.assertEqual([path.name for path in cluster("disks", f"node{number}").iterdir()], ["run"])

    def test_a_target_that_one_host_has_read_only_is_found_out_before_work(self):
        self.put_rank_files()
        shared = self.shared / "place"
        shared.mkdir()
        self.target = shared / "model"
        slurmd = next(pid for pid, line in processes() if line[:3] == ["slurmd", "-N", "node3"])
        on_node3 = ["nsenter", f"--target={slurmd}", "--mount", "--root"]  # the host may be in a chroot
        subprocess.run([*on_node3, "sh", "-c", f"mount --bind {shared} {shared} && mount -o remount,bind,ro {shared}"], check=True)
        self.addCleanup(subprocess.run, [*on_node3, "umount", str(shared)], check=True)
        result = self.merge()
        self.expect_error(result, 5, str(shared), "node3")
        self.assertEqual(list(shared.iterdir()), [])


class Ends(ClusterTest):
    def ranks_in_their_work(self, run):
        """Process by rank, once files grow in the partial folder."""
        deadline = time.monotonic() + 20
        partial = self.target.with_name(self.target.name + ".unshard-partial")
        while time.monotonic() < deadline and not (list(partial.glob("*.part")) and len(run.ranks()) == HOSTS):
            time.sleep(0.05)
        if not list(partial.glob("*.part")):
            run.give_up()
        time.sleep(0.5)
        return run.ranks()

    def start_slow_merge(self, *options, **extra):
        if not OPTIONS.faults:
            self.skipTest("needs the library of faults")
        self.put_large_model()
        return self.start_merge("--io", "posix", *options, FAULT="write-slow", FAULT_PATH=".safetensors", **extra)

    def test_a_signal_of_slurm_stops_all_ranks(self):
        run = self.start_slow_merge()
        self.ranks_in_their_work(run)
        subprocess.run(["scancel", "--signal=USR1", "--user=root"], check=True)
        self.expect_error(run.wait(), 128 + signal.SIGUSR1, "stopped by SIGUSR1")
        again = self.merge()
        self.assertEqual(again.code, 0, again.err)

    def test_a_killed_rank_ends_the_others_in_every_step(self):
        if not OPTIONS.faults:
            self.skipTest("needs the library of faults")
        self.put_large_model()
        for step, rank, fault, path, io in (("catalog", 2, "open-kill", "model-0000", "auto"), ("target", 0, "open-kill", ".unshard-probe", "auto"),
                                            ("move", 3, "collective-kill", "", "collective"), ("move", 1, "write-kill", ".safetensors.part", "posix"),
                                            ("verify", 2, "read-kill", ".safetensors.part", "auto"), ("publish", 0, "rename-kill", "config.json", "auto")):
            with self.subTest(step=step, rank=rank, fault=fault):
                result = self.merge("--io", io, "--restart", FAULT=fault, FAULT_RANK=str(rank), **({"FAULT_PATH": path} if path else {}))
                self.assertNotEqual(result.code, 0, result.err)
                self.assertLess(result.seconds, 12, result.err)  # 10, and the start of srun
                self.assertEqual(len(result.lines), 1, result.err)
                self.assertIn(f"rank {rank} on node{rank + 1}: has died", result.lines[0])
                self.assertFalse(self.target.exists())
        again = self.merge()
        self.assertEqual(again.code, 0, again.err)
        self.expect_same_as_one_rank(self.shared / "whole")

    def test_a_rank_that_stands_still_for_a_while_is_no_failure(self):
        run = self.start_slow_merge()
        ranks = self.ranks_in_their_work(run)
        os.kill(ranks[2], signal.SIGSTOP)
        time.sleep(4)
        os.kill(ranks[2], signal.SIGCONT)
        run.wait()
        self.assertEqual(run.code, 0, run.err)
        self.expect_same_as_one_rank(self.shared / "whole")


class Scripts(ClusterTest):
    def submit(self, script, *options, code=0, **variables):
        log = self.shared / "log"
        run = Run(["sbatch", "--parsable", f"--output={log}", "--nodes=4", "--ntasks-per-node=1", "--cpus-per-task=1", Path(OPTIONS.scripts) / script, *options],
                  CHECKPOINT=str(self.local), TARGET=str(self.target), UNSHARD=OPTIONS.unshard, **variables).wait()
        self.assertEqual(run.code, 0, run.err)
        job, state, deadline = run.out.strip(), "", time.monotonic() + 40
        while not state or " JobState=RUNNING" in state or " JobState=PENDING" in state or " JobState=COMPLETING" in state:
            if time.monotonic() > deadline:
                subprocess.run(["scancel", job], check=True)
                raise NotStarted(script)
            time.sleep(0.1)
            state = subprocess.run(["scontrol", "--oneliner", "show", "job", job], check=True, text=True, stdout=subprocess.PIPE).stdout
        text = log.read_text()
        if not spoke(text) or (f" ExitCode={code}:0 " not in state and "Segmentation fault" in text):
            raise NotStarted(text)
        self.assertIn(f" ExitCode={code}:0 ", state, text)
        return text

    def test_merge_prints_its_command_and_ends_with_its_code(self):
        case = self.put_rank_files()
        text = self.submit("merge.sbatch", "--max-shard-size", "1GB")
        command = ["srun", "--mpi=pmix", "--kill-on-bad-exit=1", OPTIONS.unshard, "merge", "--local-dir", self.local, "--target-dir", self.target, "--max-shard-size", "1GB"]
        self.assertIn("+ " + " ".join(f"'{part}'" for part in command) + "\n", text)
        self.assertIn("on 4 ranks", text)
        self.expect_same_as_one_rank(case)
        self.assertIn("not empty", self.submit("merge.sbatch", code=2))

    def test_check_ends_with_3_when_something_is_missing(self):
        self.put_rank_files()
        self.assertRegex(self.submit("check.sbatch"), r"(?m)^\+ 'srun' .* 'check' '--local-dir' ")
        (self.on_disk(4) / "model_world_size_4_rank_3.pt").unlink()
        self.assertIn("missing", self.submit("check.sbatch", code=3))

    def test_export_checks_before_it_merges(self):
        case = self.put_rank_files()
        text = self.submit("export-multinode.sbatch")
        self.assertLess(text.index("'check'"), text.index("'merge'"))
        self.expect_same_as_one_rank(case)
        shutil.rmtree(self.target)
        (self.on_disk(4) / "model_world_size_4_rank_3.pt").unlink()
        self.assertNotIn("'merge'", self.submit("export-multinode.sbatch", code=3))

    def test_the_launcher_is_a_variable(self):
        case = self.put_rank_files()
        self.local = case
        text = self.submit("merge.sbatch", LAUNCHER=f"{OPTIONS.mpirun} --allow-run-as-root --oversubscribe -np 2")
        self.assertIn("on 2 ranks", text)
        self.expect_same_as_one_rank(case)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--unshard", required=True)
    parser.add_argument("--mpirun", default="mpirun")
    parser.add_argument("--cases", required=True)
    parser.add_argument("--scripts", required=True)
    parser.add_argument("--faults")
    _, rest = parser.parse_known_args(namespace=OPTIONS)
    if "CLUSTER" not in os.environ:
        script = Path(__file__).resolve().with_name("slurm_cluster.sh")
        os.execv(script, [str(script), str(HOSTS), sys.executable, str(Path(__file__).resolve()), *sys.argv[1:]])
    unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()

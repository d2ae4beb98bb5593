#!/usr/bin/env python3
"""Kills a random rank of a merge at random moments of it, runs the same command again, and compares.

    bench/kill.py --unshard build/unshard --input DIR --out DIR [--times 50] [--ranks 2] [--mpirun "mpirun --oversubscribe"] [-- options of merge]

Rules, each an exit code 1 when broken: a killed run leaves no target or a complete one; the second run ends well; its bytes are those of a
run that nobody disturbed; what it reads of the input is at most 1.2 x what was left, and 16 MiB. What was left: the blocks of 256 KiB of the
partial folder's weights that differ from the finished model's.
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
import time
from pathlib import Path

BLOCK = 256 << 10
SLACK = 16 << 20


def environment():
    return {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


class Merge:
    def __init__(self, options, target):
        self.command = shlex.split(options.mpirun) + ["-np", str(options.ranks), options.unshard, "merge", "--local-dir", str(options.input),
                                                      "--target-dir", str(target), "--json", *options.more]
        self.process = subprocess.Popen(self.command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def ranks(self):
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
                if parent == self.process.pid and os.readlink(entry / "exe").endswith("unshard"):
                    found.append(int(entry.name))
            except (OSError, ValueError):
                continue
        return found

    def wait(self):
        self.out, self.err = self.process.communicate(timeout=600)
        return self.process.returncode


def weights(folder, suffix=""):
    return {path.name.removesuffix(suffix): path for path in folder.glob("*" + suffix) if path.name.removesuffix(suffix).endswith((".safetensors", ".h5"))}


def same_bytes(a, b):
    with open(a, "rb") as left, open(b, "rb") as right:
        while True:
            x, y = left.read(1 << 20), right.read(1 << 20)
            if x != y:
                return False
            if not x:
                return True


def written_bytes(partial, reference):
    """Of the partial folder, by comparing blocks."""
    total = 0
    growing = {**weights(partial, ".part"), **weights(partial)}
    for name, path in weights(reference).items():
        if name not in growing:
            continue
        with open(path, "rb") as whole, open(growing[name], "rb") as part:
            while block := whole.read(BLOCK):
                total += len(block) if part.read(BLOCK) == block else 0
    return total


def read_bytes(out):
    report = json.loads(out)
    return sum(rank["read_bytes"] for rank in report["ranks"])


def one_kill(options, reference, seconds, whole, chance):
    target = options.out / "killed"
    shutil.rmtree(target, ignore_errors=True)
    shutil.rmtree(Path(str(target) + ".unshard-partial"), ignore_errors=True)
    moment = chance.uniform(0, seconds)
    first = Merge(options, target)
    time.sleep(moment)
    ranks = first.ranks()
    if ranks:
        try:
            os.kill(chance.choice(ranks), signal.SIGKILL)
        except ProcessLookupError:
            pass
    code = first.wait()
    if target.exists():
        complete = all(same_bytes(path, target / name) for name, path in weights(reference).items() if (target / name).exists()) and (target / "config.json").exists()
        if not complete:
            return f"at {moment:.2f} s: a broken folder was published"
    if code == 0:
        return {"moment": moment, "state": "had ended"}
    partial = Path(str(target) + ".unshard-partial")
    written = written_bytes(partial, reference) if partial.exists() else 0
    if target.exists():
        written = whole["output"]
    second = Merge(options, target)
    if second.wait() != 0:
        return f"at {moment:.2f} s: the second run failed: {second.err}"
    for name, path in weights(reference).items():
        if not same_bytes(path, target / name):
            return f"at {moment:.2f} s: {name} has other bytes"
    left = (whole["output"] - written) * whole["read"] / whole["output"]
    again = read_bytes(second.out)
    if again > 1.2 * left + SLACK:
        return f"at {moment:.2f} s: {again} bytes were read again, {left:.0f} were left"
    return {"moment": moment, "state": "resumed" if written else "nothing written yet", "left": left, "read": again}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--unshard", required=True)
    parser.add_argument("--input", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--times", type=int, default=50)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--mpirun", default="mpirun --oversubscribe")
    parser.add_argument("more", nargs="*")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    reference = options.out / "undisturbed"
    seconds = float("inf")
    for _ in range(3):  # the first one may have to fetch the input from the device
        shutil.rmtree(reference, ignore_errors=True)
        started = time.monotonic()
        merge = Merge(options, reference)
        if merge.wait() != 0:
            sys.exit(merge.err)
        seconds = min(seconds, time.monotonic() - started)
    whole = {"read": read_bytes(merge.out), "output": sum(path.stat().st_size for path in weights(reference).values())}
    chance = random.Random(options.seed)
    results = []
    while len(results) < options.times:
        result = one_kill(options, reference, seconds, whole, chance)
        if isinstance(result, str):
            sys.exit(f"kill {len(results) + 1}: {result}")
        if result["state"] != "had ended":  # else nobody was killed
            results.append(result)
    resumed = [r for r in results if r["state"] == "resumed"]
    worst = max((r["read"] - r["left"] for r in resumed), default=0)
    ratio = max((r["read"] / r["left"] for r in resumed if r["left"] > whole["read"] / 10), default=0)
    for state in ("nothing written yet", "resumed"):
        print(f"{sum(r['state'] == state for r in results)} of {options.times}: {state}")
    print(f"read again beyond what was left: at most {worst / 2**20:.1f} MiB; read / left at most {ratio:.3f} where a tenth or more was left")


if __name__ == "__main__":
    main()

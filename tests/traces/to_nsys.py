#!/usr/bin/env python3
"""to_nsys.py EXTRACT.json.gz OUT.sqlite: an extract of a trace of PyTorch's profiler as `nsys export --type sqlite` would
have written the same step, run with torch.autograd.profiler.emit_nvtx(record_shapes=True). Tables, columns and event types
are those of the exporter's "SQLite Schema Reference"; texts of ranges those of getNvtxStr() in PyTorch's
torch/csrc/profiler/util.cpp."""
import gzip
import json
import pathlib
import sqlite3
import sys

PROCESS, PUSH_POP = 4242 << 24, 59
COPIES = {"HtoD": 1, "DtoH": 2, "DtoD": 8}

source, target = sys.argv[1:]
with gzip.open(source) as file:
    trace = json.load(file)
pathlib.Path(target).unlink(missing_ok=True)
database = sqlite3.connect(target)
database.executescript("""
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE TARGET_INFO_GPU (vmId INTEGER NOT NULL, id INTEGER NOT NULL, name TEXT, busLocation TEXT, isDiscrete INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
  contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER,
  demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
  contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, bytes INTEGER NOT NULL,
  copyKind INTEGER NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
  contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, value INTEGER NOT NULL,
  bytes INTEGER NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL,
  globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL);
CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER, category INTEGER,
  color INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER, domainId INTEGER);
""")
strings = {}


def string(text):
    return strings.setdefault(text, len(strings) + 1)


def nvtx(event):
    arguments, text = event.get("args", {}), event["name"]
    if arguments.get("Sequence number", -1) >= 0:
        text += f', seq = {arguments["Sequence number"]}'
    text += ", op_id = 1"
    return text + (f', sizes = {json.dumps(arguments["Input Dims"])}' if "Input Dims" in arguments else "")


for event in trace["traceEvents"]:
    if "dur" not in event:
        continue
    start, end = round(event["ts"] * 1e3), round((event["ts"] + event["dur"]) * 1e3)
    thread = PROCESS | event["tid"] & 0xFFFFFF if isinstance(event["tid"], int) else PROCESS
    correlation = event.get("args", {}).get("correlation")
    on_gpu = (start, end, 0, 1, event["tid"], correlation, PROCESS)
    if event["cat"] == "kernel":
        row, table = (*on_gpu, string(event["name"]), string(event["name"].split("<")[0])), "CUPTI_ACTIVITY_KIND_KERNEL"
    elif event["cat"] == "gpu_memcpy":
        row, table = (*on_gpu, 0, COPIES[event["name"].split()[1]]), "CUPTI_ACTIVITY_KIND_MEMCPY"
    elif event["cat"] == "gpu_memset":
        row, table = (*on_gpu, 0, 0), "CUPTI_ACTIVITY_KIND_MEMSET"
    elif event["cat"] in ("cuda_runtime", "cuda_driver"):
        row, table = (start, end, 0, thread, correlation, string(event["name"]), 0), "CUPTI_ACTIVITY_KIND_RUNTIME"
    else:  # Every second text is a registered string, as NVTX has both.
        text, registered = (None, string(nvtx(event))) if start % 2 else (nvtx(event), None)
        row, table = (start, end, PUSH_POP, None, None, None, text, thread, None, registered, 0), "NVTX_EVENTS"
    database.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)
database.executemany("INSERT INTO StringIds VALUES (?, ?)", [(number, text) for text, number in strings.items()])
database.execute("INSERT INTO TARGET_INFO_GPU VALUES (0, 0, ?, '0000:01:00.0', 1)", (trace["deviceProperties"][0]["name"],))
database.commit()

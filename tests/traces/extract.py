#!/usr/bin/env python3
"""extract.py TRACE.json.gz EXTRACT.json.gz: the first profiled step of a trace of PyTorch's profiler, with the keys that
`foldwise diagnose` reads; kernels' names cut to 120 characters. Events are as recorded, but for what is left out."""
import gzip
import json
import sys

GPU = {"kernel", "gpu_memcpy", "gpu_memset"}
HOST = {"cpu_op", "user_annotation"}
LAUNCHES = {"cuda_runtime", "cuda_driver"}
ARGUMENTS = ("correlation", "Sequence number", "Input Dims", "Collective name", "Process Group Description")
MESSAGE = ("In msg nelems", "Out msg nelems", "dtype", "Process Group Ranks", "Src Rank", "Dst Rank")
MEMORY = ("Total Allocated", "Total Reserved", "Bytes", "Addr", "Device Type")

source, target = sys.argv[1:]
with gzip.open(source) as file:
    trace = json.load(file)
events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
step = min((e for e in events if e["name"].startswith("ProfilerStep#") and e["cat"] == "user_annotation"), key=lambda e: e["ts"])
begin, end = step["ts"], step["ts"] + step["dur"]
launches = {e["args"]["correlation"]: e for e in events if e["cat"] in LAUNCHES and "correlation" in e.get("args", {})}
gpu = [e for e in events if e["cat"] in GPU and begin <= launches.get(e["args"].get("correlation"), e)["ts"] < end]
used = {e["args"].get("correlation") for e in gpu}
kept = gpu + [e for c, e in launches.items() if c in used]
kept += [e for e in events if e["cat"] in HOST and begin <= e["ts"] < end]
kept += [e for e in trace["traceEvents"] if e["name"] == "[memory]" and begin <= e["ts"] < end]


def short(event):
    arguments = event.get("args", {})
    names = MEMORY if event["name"] == "[memory]" else ARGUMENTS
    if event["cat"] == "kernel" or "Src Rank" in arguments or "Dst Rank" in arguments:
        names += MESSAGE
    arguments = {k: v for k, v in arguments.items() if k in names}
    if "Input Dims" in arguments and not any(arguments["Input Dims"]):
        del arguments["Input Dims"]
    result = {k: event[k] for k in ("ph", "cat", "tid")}
    result |= {"name": event["name"][:120], "ts": round(event["ts"] - begin, 3)}
    if "dur" in event:
        result["dur"] = event["dur"]
    return result | ({"args": arguments} if arguments else {})


group = trace.get("distributedInfo", {})
groups = [{k: g[k] for k in ("pg_desc", "ranks")} for g in group.get("pg_config", []) if g.get("pg_size", 0) > 1]
result = {"schemaVersion": trace["schemaVersion"], "deviceProperties": [{"name": trace["deviceProperties"][0]["name"]}],
          "traceEvents": [short(e) for e in sorted(kept, key=lambda e: e["ts"])]}
if group:
    result["distributedInfo"] = {"rank": group["rank"], "world_size": group["world_size"], "pg_config": groups}
with open(target, "wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=9, mtime=0, filename="") as file:
    file.write(json.dumps(result, separators=(",", ":")).encode())

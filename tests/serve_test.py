#!/usr/bin/env python3
"""Does the API of `foldwise serve` answer as the commands do, does it refuse whoever has no token, and does it touch no file?

    serve_test.py FOLDWISE SCHEMA RUN [plan]

Needs Python's standard library only; answers are held against SCHEMA (docs/schema.json) where jsonschema is installed.
Each test answers the question above it."""
import http.client
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time

import serving

try:
    import jsonschema
except ImportError:
    jsonschema = None

FOLDWISE, SCHEMA, RUN_FILE = sys.argv[1:4]
FOLDWISE = str(pathlib.Path(FOLDWISE).resolve())
RUN = serving.RUN | {"model": "mini-qwen3-moe-12l"}  # Small: the sanitizers take their time.


def printed(folder: pathlib.Path, *arguments: str):
    done = subprocess.run([FOLDWISE, *arguments, "--format", "json"], capture_output=True, text=True, cwd=folder, check=False)
    assert done.returncode == 0, done
    return json.loads(done.stdout)


def mistakes(answer: serving.Answer, status: int) -> list[dict]:
    assert answer.status == status, (answer.status, answer.text)
    errors = answer.json["errors"]
    assert errors and all(set(error) == {"file", "line", "field", "message"} for error in errors), errors
    return errors


# Are the answers those that the commands print with --format json?
def answers_are_the_commands(server, folder):
    (folder / "a.json").write_text(json.dumps(RUN))
    (folder / "b.json").write_text(json.dumps(RUN | {"dispatcher": "deepep"}))
    large = pathlib.Path(RUN_FILE).read_text()
    assert server.post("/api/predict", RUN).json == printed(folder, "predict", "a.json")
    assert server.post("/api/predict", large).json == printed(folder, "predict", str(pathlib.Path(RUN_FILE).resolve()))
    compared, wanted = server.post("/api/compare", {"runs": [RUN, RUN | {"dispatcher": "deepep"}]}).json, printed(folder, "compare", "a.json", "b.json")
    for run in (*compared["runs"], *wanted["runs"]):
        run.pop("file")
    assert compared == wanted
    for name in ("fields", "models", "systems", "rules"):
        assert server.ask("GET", f"/api/{name}").json == printed(folder, name), name
    for kind, name in (("models", "mixtral-8x7b"), ("systems", "h200"), ("rules", "pp.even")):
        assert server.ask("GET", f"/api/{kind}/{name}").json == printed(folder, kind, name), name


# Are short answers parts of the long one?
def short_answers_are_parts(server, _):
    short, some, long, whole = [server.post(f"/api/predict{query}", RUN).json for query in ("?detail=0", "?detail=1", "?detail=2", "")]
    assert long == whole
    for key, value in some.items():
        if key != "memory":  # Without what torch reserves.
            assert long[key] == value, key
    assert set(short) == set(some)
    for key in set(short) - {"interval", "breakdown_detail", "stages", "step_end", "memory"}:
        assert short[key] == some[key], key
    for stage, other in zip(short["memory"], some["memory"]):
        assert stage["total"] == other["total"]
    mistakes(server.post("/api/predict?detail=3", RUN), 422)


# Do answers keep to the schemas?
def answers_keep_to_schemas(server, _):
    if jsonschema is None:
        print("  no Python package jsonschema: left out")
        return
    openapi = server.ask("GET", "/api/openapi.json").json
    def check(name, value):
        found = jsonschema.Draft202012Validator({"$ref": f"#/components/schemas/{name}", "components": openapi["components"]})
        for error in found.iter_errors(value):
            raise AssertionError(f"{name}: {error.json_path}: {error.message[:200]}")
    for schema in openapi["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
    check("run_file", RUN)
    check("run_file", json.loads(pathlib.Path(RUN_FILE).read_text()))
    check("predict", server.post("/api/predict", RUN).json)
    check("prediction", server.post("/api/predict?detail=0", RUN).json)
    check("compare", server.post("/api/compare", {"runs": [RUN, RUN | {"pp": 1}]}).json)
    check("check", server.post("/api/check", RUN).json)
    check("schedule", server.post("/api/schedule", RUN).json)
    check("errors", server.post("/api/predict", {}).json)
    for name in ("fields", "models", "systems", "rules"):
        check(name, server.ask("GET", f"/api/{name}").json)
    check("rule", server.ask("GET", "/api/rules/pp.even").json)


# Do `compare` and `predict` agree on whether a run fits, also where only torch's allocator runs out of memory?
def compare_fits_as_predict_does(server, _):
    full = RUN | {"system": "gb200-nvl72", "model": "qwen3-30b-a3b", "num_gpus": 8, "pp": 1, "micro_batch": 16, "global_batch": 512,
                  "sharding": "fsdp", "dispatcher": "hybridep", "defaults": "nemo-automodel",
                  "recompute": {"granularity": "full", "method": "uniform", "num_layers": 1},
                  "optimizer": {"precision_aware": True, "exp_avg_dtype": "bf16", "exp_avg_sq_dtype": "bf16", "main_params_dtype": "bf16",
                                "main_grads_dtype": "bf16", "grad_reduce_in_fp32": False}}
    fits = [server.post("/api/predict", run).json["fits"] for run in (RUN, full)]
    assert fits == [True, False] and server.post("/api/predict?detail=0", full).json["fits"]
    assert [one["prediction"]["fits"] for one in server.post("/api/compare", {"runs": [RUN, full]}).json["runs"]] == fits


# Do bodies and addresses take the names that a command line takes? Does a name that can mean several say which?
def names_are_those_of_a_command_line(server, _):
    assert server.post("/api/predict", RUN | {"system": "h100"}).json == server.post("/api/predict", RUN).json
    assert server.ask("GET", "/api/systems/h100").json == server.ask("GET", "/api/systems/h100-sxm-80gb").json
    model = server.ask("GET", "/api/models/deepseek-v3")
    assert model.status == 200
    for name in ("deepseek-ai%2FDeepSeek-V3", "DeepSeek-V3"):
        assert server.ask("GET", f"/api/models/{name}").json == model.json, name
    error = mistakes(server.post("/api/predict", RUN | {"model": "qwen3"}), 422)[0]
    assert error["field"] == "/model" and "can mean several" in error["message"], error
    mistakes(server.ask("GET", "/api/models/nothing"), 404)


# Which values does a rule refuse, and in which words?
def refused_values_say_the_rule(server, folder):
    answer = server.post("/api/check", RUN).json
    assert answer["refused"] == []
    tp = {value["value"]: value["refused"] for value in answer["fields"]["tp"]["values"]}
    assert tp[1] == [] and tp[16], tp
    (folder / "run.json").write_text(json.dumps(RUN | {"tp": 16}))
    said = subprocess.run([FOLDWISE, "predict", "run.json"], capture_output=True, text=True, cwd=folder, check=False).stderr
    refusal = tp[16][0]
    assert f"{refusal['rule']}: {refusal['reason']}" in said if refusal["rule"] else refusal["reason"] in said, (refusal, said)
    dispatcher = {value["value"]: value["refused"] for value in answer["fields"]["dispatcher"]["values"]}
    assert dispatcher["alltoall"] == []
    assert answer["fields"]["recompute.modules"]["applies"] is False
    assert all(answer["fields"][key]["value"] == RUN[key] for key in ("tp", "pp", "ep", "dispatcher"))


# Is a mistake a 4xx that says where it is?
def mistakes_are_located(server, _):
    text = json.dumps(RUN, indent=1)
    errors = mistakes(server.post("/api/predict", text.replace('"pp": 2', '"pp": -2')), 422)
    line = text[:text.index('"pp"')].count("\n") + 1
    assert errors == [{"file": "request", "line": line, "field": "/pp", "message": "expected a whole number of at least 1, found -2"}], errors
    assert mistakes(server.post("/api/predict", '{"model": '), 400)[0]["line"] == 1
    assert "duplicate key" in mistakes(server.post("/api/predict", '{"pp": 1, "pp": 2}'), 400)[0]["message"]
    assert mistakes(server.post("/api/predict", "[" * 10000), 400)
    assert mistakes(server.post("/api/predict", "[]"), 422)
    assert mistakes(server.post("/api/predict", b"\xff\xfe"), 400)
    assert "pp.even" in mistakes(server.post("/api/predict", RUN | {"pp": 5, "num_gpus": 40}), 422)[0]["message"]
    assert [error["field"] for error in mistakes(server.post("/api/compare", {"runs": [RUN, RUN | {"tp": 0}]}), 422)] == ["/runs/1/tp"]
    mistakes(server.post("/api/compare", {"runs": [RUN]}), 422)
    mistakes(server.post("/api/compare", {"runs": 7, "more": 1}), 422)
    assert mistakes(server.post("/api/plan", {"gpu": 8}), 422)[0]["field"] == "/gpu"
    mistakes(server.post("/api/plan", {"set": {"tp": ["x"]}}), 422)
    mistakes(server.post("/api/plan", {"model": "deepseek-v3", "system": "h100-sxm-80gb", "precision": "mxfp8"}), 422)


# Are bodies, heads, paths, methods and types that it does not take refused?
def requests_are_bounded(server, _):
    mistakes(server.post("/api/predict", '"' + "x" * (1 << 20) + '"'), 413)
    mistakes(server.ask("GET", "/api/models", headers={"X-Long": "x" * (1 << 15)}), 431)
    mistakes(server.post("/api/predict", RUN, headers={"Content-Type": "text/plain"}), 415)
    mistakes(server.ask("GET", "/api/nothing"), 404)
    mistakes(server.ask("GET", "/../../etc/passwd"), 404)
    for method, path, allowed in (("GET", "/api/predict", "POST"), ("POST", "/api/models", "GET"), ("DELETE", "/", "GET"), ("GET", "/api/plan", "POST"),
                                  ("OPTIONS", "/api/predict", "POST"), ("PUT", "/api/rules/pp.even", "GET")):
        answer = server.ask(method, path)
        mistakes(answer, 405)
        assert answer.headers["Allow"] == allowed
    with socket.create_connection(("127.0.0.1", server.port)) as raw:
        raw.sendall(b"nonsense\r\n\r\n")
        assert raw.recv(12) == b"HTTP/1.1 400"
    with socket.create_connection(("127.0.0.1", server.port)) as raw:  # Chunks add up too.
        raw.sendall(f"POST /api/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {server.token}\r\nContent-Type: application/json\r\n"
                    "Transfer-Encoding: chunked\r\n\r\n".encode())
        chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
        try:
            for _ in range(20):
                raw.sendall(chunk)
        except OSError:  # It may stop reading before the last.
            pass
        assert b"413" in raw.recv(64)


# Who has no token, another host's name or another page's origin gets nothing?
def strangers_are_refused(server, _):
    own = f"http://127.0.0.1:{server.port}"
    for path in ("/", "/serve.js", "/api/models", "/api/openapi.json", "/api/nothing"):
        assert server.ask("GET", path, token=False).status == 401, path
        assert server.ask("GET", path, token=False, headers={"Authorization": "Bearer " + server.token[:-1] + "x"}).status == 401
        assert server.ask("GET", f"{path}?token={server.token[:-1]}", token=False).status == 401
    assert server.post("/api/predict", RUN, token=False).status == 401
    assert server.ask("GET", f"/api/models?token={server.token}", token=False).status == 401  # The page alone takes it from its address.
    for host in ("evil.example", f"evil.example:{server.port}", "127.0.0.1.evil.example", "", "127.0.0.1:x", "[::1]"):
        assert server.ask("GET", "/api/models", headers={"Host": host}).status == 403, host
    for host in ("localhost", f"localhost:{server.port}", "127.0.0.1:9"):  # The last one is forwarded by ssh.
        assert server.ask("GET", "/api/models", headers={"Host": host}).status == 200, host
    for origin in ("http://evil.example", "null", "http://127.0.0.1:1", own.replace("http", "https")):
        assert server.post("/api/predict", RUN, headers={"Origin": origin}).status == 403, origin
    assert server.post("/api/predict", RUN, headers={"Origin": own}).status == 200
    for site in ("cross-site", "same-site"):
        assert server.post("/api/predict", RUN, headers={"Sec-Fetch-Site": site}).status == 403
    page = server.ask("GET", f"/?token={server.token}", token=False)
    cookie = page.headers["Set-Cookie"]
    assert page.status == 200 and "HttpOnly" in cookie and "SameSite=Strict" in cookie, cookie
    assert server.ask("GET", "/api/models", token=False, headers={"Cookie": "a=b; " + cookie.split(";")[0]}).status == 200
    assert server.ask("GET", "/api/models", token=False, headers={"Cookie": cookie.split(";")[0] + "0"}).status == 401
    for answer in (page, server.ask("GET", "/api/models"), server.ask("GET", "/api/models", token=False), server.post("/api/predict", RUN)):
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
        assert answer.headers["X-Content-Type-Options"] == "nosniff" and answer.headers["Cache-Control"] == "no-store"
        assert not [name for name in answer.headers if name.lower().startswith("access-control")]
    assert server.token not in page.text


# Is no file of the host read, whatever a body names? A FIFO would hold whoever opens it; a profile that is read would be found.
def bodies_name_no_files(server, folder):
    profile = folder / "mine.json"
    profile.write_text(json.dumps({"base": "h200"}))
    config = json.loads(subprocess.run([FOLDWISE, "models", "mixtral-8x7b", "--format", "json"], capture_output=True, text=True, check=True).stdout)["config"]
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "Mixtral-8x7B").write_text(json.dumps(config))  # Names that differ from a built-in one in case are files first.
    os.mkfifo(folder / "fifo.json")
    for key, names in (("model", ["config.json", str(folder / "config.json"), "Mixtral-8x7B", "../" + folder.name + "/config.json", "fifo.json", "-", "/etc/passwd", "nowhere.json"]),
                       ("system", ["mine.json", str(profile), "fifo.json", "-", "/dev/zero"]),
                       ("defaults", ["mine.json", str(profile), "fifo.json", "/dev/stdin"])):
        for name in names:
            for path, body in (("/api/predict", RUN | {key: name}), ("/api/check", RUN | {key: name}), ("/api/schedule", RUN | {key: name}),
                               ("/api/compare", {"runs": [RUN, RUN | {key: name}]}), ("/api/plan", {"from": RUN | {key: name}}),
                               ("/api/plan", {key: name})):
                errors = mistakes(server.post(path, body), 422)
                assert "built-in name" in errors[0]["message"] or errors[0]["field"] == "/defaults", (path, key, name, errors)
    inline = server.post("/api/predict", RUN | {"model": config, "num_gpus": 16})
    assert inline.status == 200, inline.text
    overridden = server.post("/api/predict", RUN | {"system_overrides": {"base": "mine.json"}})
    assert overridden.status == 422


# Does the stream of a search have progress, new plans and the answer of `plan`?
def searches_stream(server, folder):
    question = {"model": "mixtral-8x7b", "system": "h200", "gpus": 16, "global_batch": 64, "effort": 0.5}
    answer = server.post("/api/plan", question)
    assert answer.status == 200 and answer.headers["Content-Type"] == "application/x-ndjson"
    lines = [json.loads(line) for line in answer.text.splitlines()]
    progress = [line["progress"] for line in lines[:-1]]
    assert progress and all("progress" in line for line in lines[:-1]) and set(lines[-1]) == {"answer"}
    assert all(a["share"] <= b["share"] for a, b in zip(progress, progress[1:]))
    found = [plan for part in progress for plan in part["found"]]
    assert found and all(plan["step_time_s"] > 0 for plan in found)
    wanted = printed(folder, "plan", "--model", "mixtral-8x7b", "--system", "h200", "--gpus", "16", "--global-batch", "64", "--effort", "0.5")
    for said in (wanted, lines[-1]["answer"]):
        for clock in ("seconds", "explained_seconds"):
            said["search"].pop(clock)
    assert lines[-1]["answer"] == wanted
    again = server.post("/api/predict", found[0]["run"])
    assert abs(again.json["step_time_s"] / found[0]["step_time_s"] - 1) < 1e-6, again.text[:500]
    typed = server.post("/api/plan", {**question, "model": "mistralai/Mixtral-8x7B", "effort": 0.1, "top": 1, "set": {"tp": [1, 2], "dispatcher": "alltoall"}, "why_not": [{"tp": 8}]})
    last = json.loads(typed.text.splitlines()[-1])["answer"]
    assert all(plan["run"]["tp"] in (1, 2) and plan["run"]["dispatcher"] == "alltoall" for plan in last["plans"]) and len(last["why_not"]) == 1


# Does a search end when its client is gone, and are more than a few refused? Does a prediction wait for them?
def searches_end_with_their_client(server, _):
    question = json.dumps({"model": "deepseek-v3", "system": "gb200-nvl72", "gpus": 2048, "global_batch": 8192, "effort": 600}).encode()
    open_ones = []
    for _ in range(4):
        raw = socket.create_connection(("127.0.0.1", server.port))
        raw.sendall(f"POST /api/plan HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {server.token}\r\nContent-Type: application/json\r\n"
                    f"Content-Length: {len(question)}\r\n\r\n".encode() + question)
        open_ones.append(raw)
    for raw in open_ones:
        raw.settimeout(100)
        assert raw.recv(15) == b"HTTP/1.1 200 OK"
    busy = server.post("/api/plan", {"gpus": 8})
    mistakes(busy, 429)
    assert busy.headers["Retry-After"]
    assert server.post("/api/predict?detail=0", RUN).status == 200
    for raw in open_ones:
        raw.close()
    until = time.monotonic() + 60
    while (answer := server.post("/api/plan", {"gpus": 8, "top": 1001})).status == 429 and time.monotonic() < until:
        time.sleep(0.2)
    mistakes(answer, 422)


# Does nothing that it is asked change a file, and does it end cleanly while a search runs?
def it_writes_nothing_and_ends(foldwise):
    for how in (signal.SIGINT, signal.SIGTERM):
        with tempfile.TemporaryDirectory() as name, serving.Server(foldwise, cwd=name) as server:
            os.chmod(name, 0o500)
            assert server.post("/api/predict", RUN).status == 200
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=100)
            connection.request("POST", "/api/plan", json.dumps({"effort": 600, "model": "olmoe-1b-7b", "gpus": 64}),
                               {"Authorization": f"Bearer {server.token}", "Content-Type": "application/json"})
            assert connection.getresponse().status == 200
            if os.path.isdir(f"/proc/{server.pid}/fd"):
                opened = [os.readlink(f"/proc/{server.pid}/fd/{number}") for number in os.listdir(f"/proc/{server.pid}/fd")]
                assert not [path for path in opened if path.startswith(name)], opened
            assert server.end(how) == 0
            assert os.listdir(name) == []
            os.chmod(name, 0o700)


# Is a port that is taken, or a token that is none, one clear message?
def mistakes_of_the_command_line(server, foldwise):
    def said(*arguments):
        done = subprocess.run([foldwise, "serve", *arguments], capture_output=True, text=True, check=False, timeout=100)
        assert done.returncode == 2 and done.stdout == "", done
        return done.stderr
    assert f"--port: {server.port} cannot be listened on: Address already in use" in said("--port", str(server.port))
    assert "16 to 256 letters" in said("--token", "short")
    said("--port", "65536")


def main() -> int:
    with tempfile.TemporaryDirectory() as name, serving.Server(FOLDWISE, cwd=name) as server:
        folder = pathlib.Path(name)
        tests = [answers_are_the_commands, short_answers_are_parts, answers_keep_to_schemas, refused_values_say_the_rule,
                 compare_fits_as_predict_does, names_are_those_of_a_command_line, mistakes_are_located,
                 requests_are_bounded, strangers_are_refused, bodies_name_no_files]
        if "plan" in sys.argv[4:]:  # The sanitizers' slow program does not.
            tests += [searches_stream, searches_end_with_their_client]
        for test in tests:
            start = time.monotonic()
            test(server, folder)
            print(f"{test.__name__}: {time.monotonic() - start:.1f} s", flush=True)
        mistakes_of_the_command_line(server, FOLDWISE)
        assert server.end() == 0
    it_writes_nothing_and_ends(FOLDWISE)
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Does `foldwise serve` answer random requests without a fault of its own, and as its description (OpenAPI) says?

    random_requests.py FOLDWISE ENVIRONMENT [RUNS [EXAMPLES [SEED]]]

First RUNS run files with random values of random fields, of the types and ranges that the table of fields gives: an answer is a 200 or a 422,
and /api/check agrees with /api/predict. Then Schemathesis, of the Python environment ENVIRONMENT (requirements/requests.txt), makes EXAMPLES
requests, valid and not, of each operation but `plan`, a valid one of which takes seconds. Exit: 0 right, 1 not, 77 no schemathesis there."""
import collections
import json
import pathlib
import random
import subprocess
import sys
import time

import serving

SKIPPED = 77
# That whatever the schema allows is a 2xx is not among them: rules refuse runs that it allows.
CHECKS = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance", "response_headers_conformance",
          "negative_data_rejection", "unsupported_method", "ignored_auth")


def value_of(dice: random.Random, field: dict):
    """Most are small or plausible; some are as large as the field may be, or of another type."""
    kind, low, high = field["type"], field["low"], field["high"]
    if dice.random() < 0.03:
        return dice.choice([None, -1, 0, 1.5, True, "x", "../x.json", [], {}, 1e300, 2**63, [1, "a"]])
    if kind == "integer":
        size = dice.choice([dice.randint(int(low), int(min(high, low + 8))), 2 ** dice.randint(0, 12), int(high) if dice.random() < 0.2 else 2])
        return max(int(low), min(int(high), size))
    if kind == "number":
        return dice.uniform(low, min(high, low + 4))
    if kind == "boolean":
        return dice.random() < 0.5
    if kind == "name":
        return dice.choice(field["names"])
    if kind == "list of names":
        return dice.sample(field["names"], dice.randint(0, min(3, len(field["names"]))))
    if kind == "list of integers":
        return [2 ** dice.randint(0, 3) for _ in range(dice.randint(0, 3))]
    return dice.choice(["", "x", "Et*4|(t*4|)*14tmL"])


def random_run(dice: random.Random, fields: list[dict], models: list[str], systems: list[str]) -> dict:
    run = dict(serving.RUN)
    if dice.random() < 0.5:
        run["model"] = dice.choice(models)
    if dice.random() < 0.5:
        run["system"] = dice.choice(systems)
    for field in dice.sample(fields, dice.choice([0, 1, 1, 2, 3, 6])):
        if field["key"] in ("model", "system", "defaults"):
            continue
        group, _, last = field["key"].rpartition(".")
        place = run.setdefault(group, {}) if group else run
        if isinstance(place, dict):
            place[last] = value_of(dice, field)
    return run


def ask_for_runs(server: serving.Server, count: int, seed: int) -> bool:
    dice = random.Random(seed)
    fields, models, systems = (server.ask("GET", f"/api/{what}").json[what] for what in ("fields", "models", "systems"))
    statuses, slowest = collections.Counter(), 0.0
    for number in range(count):
        run = random_run(dice, fields, models, systems)
        path = "/api/predict?detail=0" if dice.random() < 0.9 else dice.choice(["/api/predict?detail=1", "/api/schedule", "/api/predict"])
        start = time.monotonic()
        try:
            answer = server.post(path, run)
        except OSError as error:
            print(f"run {number}: {path}: {error!r}\n{json.dumps(run)}")
            return False
        slowest = max(slowest, time.monotonic() - start)
        statuses[answer.status] += 1
        if answer.status not in (200, 422):
            print(f"run {number}: {path}: {answer.status} {answer.text[:500]}\n{json.dumps(run)}")
            return False
        if number % 50 == 0 and path.endswith("detail=0") and (checked := server.post("/api/check", run)).status == 200:
            if (checked.json["refused"] == []) != (answer.status == 200):
                print(f"run {number}: check and predict disagree\n{json.dumps(run)}\n{answer.text[:500]}")
                return False
    print(f"{count} random runs from seed {seed}: {dict(statuses)}; the slowest took {slowest:.2f} s", flush=True)
    return True


def main() -> int:
    foldwise, environment, *besides = sys.argv[1:]
    runs, examples, seed = [*besides, *("300", "5", "1")[len(besides):]]
    program = pathlib.Path(environment) / "bin/schemathesis"
    with serving.Server(foldwise) as server:
        if not ask_for_runs(server, int(runs), int(seed)):
            return 1
        if not program.exists():
            print(f"skipped: no schemathesis in {environment}")
            return SKIPPED
        done = subprocess.run([program, "run", f"http://127.0.0.1:{server.port}/api/openapi.json", "--header", f"Authorization: Bearer {server.token}",
                               "--exclude-operation-id", "plan", "--checks", ",".join(CHECKS), "--max-examples", examples, "--seed", seed,
                               "--phases", "examples,coverage,fuzzing", "--generation-database", "none", "--no-color", "--suppress-health-check", "all"],
                              check=False)
        alive = server.ask("GET", "/api/models").status == 200
        return 0 if done.returncode == 0 and alive and server.end() == 0 else 1


if __name__ == "__main__":
    sys.exit(main())

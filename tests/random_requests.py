#!/usr/bin/env python3
"""Does `foldwise serve` answer random requests without a fault of its own, and as its description (OpenAPI) says?

    random_requests.py FOLDWISE ENVIRONMENT [EXAMPLES [SEED]]

Schemathesis, of the Python environment ENVIRONMENT (requirements/requests.txt), makes EXAMPLES requests, valid and not, of each
operation but `plan`, of which it makes none: a valid one takes seconds. Exit: 0 right, 1 not, 77 no schemathesis there."""
import pathlib
import subprocess
import sys

import serving

SKIPPED = 77
# 2xx for whatever the schema allows is not among them: rules refuse runs that it allows.
CHECKS = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance", "response_headers_conformance",
          "negative_data_rejection", "unsupported_method", "ignored_auth")


def main() -> int:
    foldwise, environment, *besides = sys.argv[1:]
    examples, seed = [*besides, *("20", "1")[len(besides):]]
    program = pathlib.Path(environment) / "bin/schemathesis"
    if not program.exists():
        print(f"skipped: no schemathesis in {environment}")
        return SKIPPED
    with serving.Server(foldwise) as server:
        done = subprocess.run([program, "run", f"http://127.0.0.1:{server.port}/api/openapi.json", "--header", f"Authorization: Bearer {server.token}",
                               "--exclude-operation-id", "plan", "--checks", ",".join(CHECKS), "--max-examples", examples, "--seed", seed,
                               "--phases", "examples,coverage,fuzzing", "--generation-database", "none", "--no-color", "--suppress-health-check", "all"],
                              check=False)
        alive = server.ask("GET", "/api/models").status == 200
        return 0 if done.returncode == 0 and alive and server.end() == 0 else 1


if __name__ == "__main__":
    sys.exit(main())

"""Does ./foldwise, on a terminal, show how far its build is, keep every line in the log, and end without a fault, also
where ninja has nothing to do and prints its step 0 alone?"""
import os
import pathlib
import pty
import subprocess
import sys
import tempfile

SKIPPED = 77
SCRIPT = pathlib.Path(sys.argv[1])
try:
    for end in pty.openpty():
        os.close(end)
except OSError as error:
    print(f"skipped: no pseudo-terminals here ({error})")
    sys.exit(SKIPPED)


def shown(lines: list[str]) -> str:
    """What a terminal gets while ninja prints these lines."""
    with tempfile.TemporaryDirectory() as folder:
        log = pathlib.Path(folder) / "log"
        ours, theirs = pty.openpty()
        command = f"""set -euo pipefail; eval "$(sed -n '/^progress() {{/,/^}}/p' "$0")"; progress "$1" """
        done = subprocess.run(["bash", "-c", command, SCRIPT, log], input="".join(line + "\n" for line in lines), text=True, stderr=theirs, check=False)
        os.write(theirs, b"\nend")
        text = ""
        while not text.endswith("end"):  # A terminal gives what it has, which may be less than all that was written.
            text += os.read(ours, 65536).decode()
        os.close(ours)
        os.close(theirs)
        assert done.returncode == 0, (lines, text)
        assert log.read_text().splitlines() == lines, log.read_text()
        return text


nothing = shown(["-- Configuring done", "[0/2] Re-checking globbed directories...", "ninja: no work to do."])
assert "building" not in nothing and "error" not in nothing, nothing
some = shown(["[0/2] Re-checking globbed directories...", "[1/8] Building a", "[6/8] Building b"])
assert "building, 1 of 8" in some and "building, 6 of 8" in some, some

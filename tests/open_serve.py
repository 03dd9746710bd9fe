#!/usr/bin/env python3
"""Does the page of `foldwise serve`, in a headless Chromium, do what its users do?

    open_serve.py FOLDWISE

A change predicts; a value that a rule refuses is grey, with the rule's words; a search fills its front; two users work at once; the pinned run
stands beside the other; a state is an address, a command and a run file. Exit: 0 right, 1 not, 77 no browser here. Needs Python's standard
library only."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import browser as chromium
import serving

SKIPPED = 77
RUN = serving.RUN
PATIENCE_S = float(os.environ.get("FOLDWISE_PATIENCE_S", chromium.TIMEOUT_S))  # Of one step, on a machine that is busy.
failures = []


def expect(what: str, found, wanted=True) -> None:
    if found != wanted:
        failures.append(f"{what}: expected {wanted}, found {found}")
        print(failures[-1], flush=True)


class User:
    """A browser of its own, with a page of the server."""

    def __init__(self, program: str, server: serving.Server, folder: pathlib.Path, name: str):
        self.browser, self.server, self.name = chromium.Browser(program, str(folder / name)), server, name
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.browser.call(f"{domain}.enable")

    def open(self, state: dict, width: int = 1280, scheme: str = "light", url: str | None = None) -> None:
        self.browser.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600)
        self.browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.browser.call("Page.navigate", url="about:blank")
        self.browser.events.clear()
        self.browser.call("Page.navigate", url=url or self.server.page(state))
        self.wait("the page is drawn", "document.querySelector('#answer .figures, #answer .mistakes') && lastCheck && document.querySelector('#state textarea') !== null")

    def ask(self, expression: str):
        return self.browser.evaluate(expression)

    def wait(self, what: str, expression: str, seconds: float = PATIENCE_S) -> bool:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            try:
                if self.ask(f"!!({expression})"):
                    return True
            except RuntimeError:  # The page is not there yet.
                pass
            time.sleep(0.05)
        expect(f"{self.name}: {what}", False)
        return False

    def expect(self, what: str, expression: str, wanted=True) -> None:
        expect(f"{self.name}: {what}", self.ask(expression), wanted)

    def choose(self, key: str, value) -> None:
        """As a user does it: the control changes and says so."""
        self.ask(f"""(() => {{ const input = document.getElementById('field-{key.replace(".", "-")}');
            input.value = input.localName === 'select' ? {json.dumps(json.dumps(value))} : {json.dumps(str(value))};
            input.dispatchEvent(new Event('change')); }})()""")

    def step(self) -> str:
        return self.ask("document.querySelector('#answer .figures dd')?.firstChild.textContent ?? ''")

    def faults(self) -> list[str]:
        found = []
        for method, about in self.browser.events:
            if method in ("Runtime.exceptionThrown", "Page.javascriptDialogOpening"):
                found.append(f"{method}: {json.dumps(about)[:400]}")
            elif method == "Log.entryAdded" and about["entry"].get("source") != "network":  # A 422 is one of those.
                found.append(f"{method}: {json.dumps(about)[:400]}")
            elif method == "Runtime.consoleAPICalled" and about["type"] in ("error", "warning", "assert"):
                found.append(f"console: {json.dumps(about['args'])[:400]}")
            elif method == "Network.requestWillBeSent":
                url = about["request"]["url"]
                if not url.startswith(f"http://127.0.0.1:{self.server.port}/"):
                    found.append(f"asks for {url}")
        return found


def seconds_text(answer: dict) -> str:
    return f"{answer['step_time_s']:.4g}"


def check_change(user: User) -> None:
    """A change predicts at once, and what is shown is what the API says."""
    user.open({"run": RUN})
    user.expect("the token is not in the address", "location.href.includes('token')", False)
    for change in ({"pp": 1}, {"micro_batch": 2}, {"dispatcher": "deepep"}):
        before = user.step()
        for key, value in change.items():
            user.choose(key, value)
        wanted = json.loads(user.ask("fetch('/api/predict?detail=0', {method: 'POST', headers: {'Content-Type': 'application/json'}, body: JSON.stringify(state.run)}).then((r) => r.text())"))
        user.wait(f"{change} is predicted", f"document.querySelector('#answer .figures dd').firstChild.textContent !== {json.dumps(before)}")
        expect(f"{change}: seconds", float(user.step().split()[0]) - float(seconds_text(wanted)) < 1e-3 * wanted["step_time_s"])
        user.expect("the run file says it", f"JSON.parse(document.getElementById('run-file').value).{next(iter(change))}", next(iter(change.values())))
    user.expect("bars of memory", "[...document.querySelectorAll('#answer figure')][0].querySelectorAll('.chart .mark').length > 0")
    user.wait("the schedule is drawn", "document.querySelectorAll('#schedule svg rect').length > 8")
    # How long does a change take, from the control to the charts?
    took = user.ask("""(async () => { const took = [];
        for (const size of [1, 2, 4, 1, 2, 4]) { const start = performance.now(), old = document.querySelector('#answer .figures');
            changeRun({...state.run, micro_batch: size});
            while (document.querySelector('#answer .figures') === old) await new Promise((next) => setTimeout(next, 1));
            took.push(performance.now() - start); }
        return took.sort((a, b) => a - b)[3]; })()""")
    print(f"a change is drawn after {took:.0f} ms", flush=True)
    user.ask("history.back()")
    user.wait("back is the state before", "state.run.micro_batch === 2")
    expect("faults", user.faults(), [])


def check_refused(user: User) -> None:
    """Values that a rule refuses are grey, with the rule's words; a state that is refused says why."""
    user.open({"run": RUN})
    refused = json.loads(user.ask("JSON.stringify(lastCheck.fields.tp.values.filter(({refused}) => refused.length))"))
    expect("some TP is refused", bool(refused))
    for value in refused:
        option = f"[...document.querySelectorAll('#field-tp option')].find((one) => one.value === '{value['value']}')"
        user.expect(f"TP {value['value']} cannot be chosen", f"{option}.disabled")
        user.expect("its title has the rule's words", f"{option}.title.includes({json.dumps(value['refused'][0]['reason'])})")
        user.expect("so does the text below", f"document.querySelector('[data-key=tp] details').textContent.includes({json.dumps(value['refused'][0]['reason'])})")
    user.expect("TP 1 can", "[...document.querySelectorAll('#field-tp option')].find((one) => one.value === '1').disabled", False)
    user.expect("what does not apply is quiet", "document.querySelector('[data-key=\"recompute.modules\"]').classList.contains('idle')")
    user.choose("num_gpus", 15)
    user.wait("a refused run says why", "document.querySelector('#answer .mistakes')")
    said = json.loads(user.ask("ask('/api/predict', state.run).catch((error) => JSON.stringify(error.errors))"))
    expect("in the rule's words", user.ask("document.querySelector('#answer .mistakes').textContent").count(said[0]["message"]), 1)
    user.ask("history.back()")
    user.wait("and the way back is there", "document.querySelector('#answer .figures')")
    expect("faults", user.faults(), [])


def check_pinned(user: User) -> None:
    user.open({"run": RUN})
    user.ask("[...document.querySelectorAll('#answer button')].find((one) => one.textContent === 'Pin as A').click()")
    user.choose("dispatcher", "deepep")
    user.wait("the waterfall", "document.querySelectorAll('#pinned figure .chart .mark').length > 3 && document.querySelector('#pinned').textContent.includes('deepep')")
    answer = json.loads(user.ask("ask('/api/compare', {runs: [state.pinned, state.run]}).then(JSON.stringify)"))
    differing = sum(line["seconds"][0] != line["seconds"][1] for line in answer["explanation"])
    user.expect("its bars", "document.querySelectorAll('#pinned figure .chart .mark').length", 2 + min(differing, 12) + (differing > 12))
    expect("faults", user.faults(), [])


def start_search(user: User, effort: float) -> None:
    user.ask(f"state.effort = {effort}; showSearch(null); document.getElementById('start').click()")


def check_search(user: User) -> None:
    """The front fills while the search runs, and a plan can be chosen."""
    user.open({"run": RUN | {"num_gpus": 64, "global_batch": 512}})
    start_search(user, 2)
    user.wait("points before the end", "document.querySelectorAll('#plan figure .chart .mark').length > 1 && search.controller !== null")
    early = user.ask("search.found.length")
    user.wait("the search ends", "search.controller === null && search.answer !== null")
    expect("the front grew or was whole", user.ask("search.found.length") >= early)
    user.expect("marks for every plan", "document.querySelectorAll('#plan figure .chart .mark').length === search.found.length")
    user.expect("as many rows as plans", "document.querySelectorAll('#plan tbody tr').length >= search.answer.plans.length")
    best = json.loads(user.ask("JSON.stringify(search.answer.plans[0])"))
    user.ask("[...document.querySelectorAll('#plan button.choose')].find((one) => one.textContent === '1').click()")
    user.wait("plan 1 is shown", f"state.run.tp === {best['run']['tp']} && document.querySelector('#answer .figures dd').firstChild.textContent === number({best['prediction']['step_time_s']}) + ' s'")
    start_search(user, 300)
    user.wait("a long search runs", "search.found.length > 0 && search.controller !== null")
    user.ask("document.getElementById('stop').click()")
    user.wait("it can be stopped", "search.controller === null", 10)
    expect("faults", user.faults(), [])


def check_two(one: User, other: User) -> None:
    """Two users at once: each sees their own state, and both searches run."""
    one.open({"run": RUN})
    other.open({"run": RUN | {"model": "mixtral-8x7b", "system": "h200", "ep": 4, "global_batch": 128}})
    start_search(one, 1)
    start_search(other, 1)
    other.choose("micro_batch", 2)
    one.choose("micro_batch", 4)
    for user in (one, other):
        user.wait("the search ends", "search.controller === null && search.answer !== null")
    expect("models", [user.ask("search.answer.problem.model") for user in (one, other)], ["qwen3-30b-a3b", "mixtral-8x7b"])
    expect("micro-batches", [user.ask("state.run.micro_batch") for user in (one, other)], [4, 2])
    for user in (one, other):
        user.expect("the shown step is of its own run", "ask('/api/predict?detail=0', state.run).then(({step_time_s: s}) => document.querySelector('#answer .figures dd').firstChild.textContent === number(s) + ' s')")
        expect(f"{user.name}: faults", user.faults(), [])


def check_state(user: User, foldwise: str, folder: pathlib.Path) -> None:
    """A state is an address, a command and a run file that say the same."""
    user.open({"run": RUN | {"recompute": {"granularity": "selective", "modules": ["moe_act"]}}})
    shown = user.step()
    command = user.ask("document.getElementById('command').textContent")
    (folder / "foldwise").unlink(missing_ok=True)
    (folder / "foldwise").symlink_to(pathlib.Path(foldwise).resolve())
    done = subprocess.run(["bash", "-ec", f'PATH="{folder}:$PATH"\n' + command.replace("predict -", "predict - --format json")], capture_output=True, text=True, check=False)
    expect("the command's step", user.ask(f"number({json.loads(done.stdout)['step_time_s']}) + ' s'") if done.returncode == 0 else done.stderr, shown)
    plan = user.ask("document.getElementById('plan-command').textContent")
    done = subprocess.run(["bash", "-ec", f'PATH="{folder}:$PATH"\n{plan} --effort 0.1 --top 1'], capture_output=True, text=True, check=False)
    expect("the command of a plan", done.returncode, 0)
    address = user.ask("document.querySelector('#state a').href")
    user.open({}, url=address)  # The cookie is there; the address has no token.
    expect("the address shows the state", user.step(), shown)
    user.ask("(() => { document.getElementById('run-file').value = JSON.stringify({...state.run, micro_batch: 2}); [...document.querySelectorAll('#state button')].find((one) => one.textContent === 'Use').click(); })()")
    user.wait("a pasted run file is shown", "state.run.micro_batch === 2")
    expect("faults", user.faults(), [])


def check_looks(user: User, pictures: pathlib.Path | None) -> None:
    for width, scheme in ((1280, "light"), (390, "dark")):  # Each of both once: contrast is of a scheme, room of a width.
        user.open({"run": RUN, "pinned": RUN | {"pp": 1}}, width, scheme)
        user.wait("all is drawn", "document.querySelectorAll('#pinned .mark').length > 0 && document.querySelectorAll('#schedule rect').length > 0")
        user.expect(f"as wide as the window of {width}", "document.documentElement.scrollWidth <= innerWidth")
        user.expect(f"texts of too little contrast, {width} {scheme}", """(() => {
            const light = (colour) => colour.match(/[\\d.]+/g).slice(0, 3)
                .map((c) => (c /= 255) <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4).reduce((sum, c, i) => sum + c * [.2126, .7152, .0722][i], 0);
            const below = (at) => { const {backgroundColor} = getComputedStyle(at); return /, 0\\)$/.test(backgroundColor) ? below(at.parentElement) : backgroundColor; };
            return [...document.querySelectorAll('h1, h2, h3, p, a, li, dt, dd, small, label, td, button, figcaption, summary, pre, select, input')]
                .filter((at) => at.textContent && !at.matches('.skip, :disabled')).filter((at) => {
                    const [a, b] = [light(getComputedStyle(at).color), light(below(at))];
                    return (Math.max(a, b) + .05) / (Math.min(a, b) + .05) < 4.5;
                }).map((at) => `${at.tagName} ${at.className} ${at.textContent.slice(0, 20)}`);
        })()""", [])
        user.expect("every control has a name", "[...document.querySelectorAll('main input, main select, main textarea')].filter((at) => !at.labels?.length && !at.ariaLabel && at.type !== 'search').length", 0)
        if pictures:
            data = user.browser.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)["data"]
            import base64
            (pictures / f"serve-{width}-{scheme}.png").write_bytes(base64.b64decode(data))
        expect(f"{width} {scheme}: faults", user.faults(), [])


def main() -> int:
    foldwise = sys.argv[1]
    pictures = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else None
    program = chromium.program()
    if program is None:
        print("skipped: no chromium-headless-shell on this machine")
        return SKIPPED
    with tempfile.TemporaryDirectory() as name, serving.Server(foldwise) as server:
        folder = pathlib.Path(name)
        users = [User(program, server, folder, who) for who in ("one", "other")]
        try:
            check_change(users[0])
            check_refused(users[0])
            check_pinned(users[0])
            check_search(users[0])
            check_two(*users)
            check_state(users[0], foldwise, folder)
            check_looks(users[0], pictures)
        finally:
            for user in users:
                user.browser.close()
        expect("the server ends", server.end(), 0)
    if not failures:
        print("the page does what its users do")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

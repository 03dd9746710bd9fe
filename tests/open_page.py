#!/usr/bin/env python3
"""Do the pages of --html show their answers, and nothing but them?

    open_page.py FOLDWISE RUN [plan]

Writes the pages of `predict`, `compare`, `diagnose`, `sweep` and, with "plan", `plan`, opens them in a headless Chromium and asks the document: rows sort
and filter, by mouse and by keyboard; every chart has its marks; what the model's name looks like stays text; nothing is asked of the network
and nothing goes wrong; it fits a phone, and reads in the light and in the dark. Then the same pages without plotly.js. Last, pages with a
fault put in, which must be noticed.
Exit: 0 right, 1 not, 77 no browser here. Needs Python's standard library only."""
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time

import browser as chromium

SKIPPED = 77
NAME = "<script>alert(1)</script>"  # Of a model: a folder "<script>alert(1)<" and a file "script>".
LIBRARY = re.compile(r"<script>/\*\*\n\* plotly\.js.*?</script>", re.DOTALL)

failures = []


def expect(what: str, found, wanted=True) -> None:
    if found != wanted:
        failures.append(f"{what}: expected {wanted}, found {found}")


class Shown:
    """A page that a browser has opened."""

    def __init__(self, browser: chromium.Browser, path: pathlib.Path, width: int = 1280, scheme: str = "light"):
        self.browser, self.path, self._of = browser, path, f"{path.name}, {width} pixels, {scheme}"
        browser.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600)
        browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        browser.call("Page.navigate", url="about:blank")
        browser.events.clear()
        browser.call("Page.navigate", url=path.as_uri())
        until = time.monotonic() + chromium.TIMEOUT_S
        while not self.ask("location.href !== 'about:blank' && document.readyState === 'complete'") and time.monotonic() < until:
            time.sleep(0.05)
        # Plotly draws a frame later.
        self.ask("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 200))))")

    def ask(self, expression: str):
        return self.browser.evaluate(expression)

    def expect(self, what: str, expression: str, wanted=True) -> None:
        expect(f"{self._of}: {what}", self.ask(expression), wanted)

    def faults(self) -> list[str]:
        """What went wrong, and what was asked of anyone."""
        found = []
        for method, about in self.browser.events:
            if method in ("Runtime.exceptionThrown", "Page.javascriptDialogOpening", "Log.entryAdded"):
                found.append(f"{method}: {json.dumps(about)[:300]}")
            elif method == "Runtime.consoleAPICalled" and about["type"] in ("error", "warning", "assert"):
                found.append(f"console: {json.dumps(about['args'])[:300]}")
            elif method == "Network.requestWillBeSent":
                url = about["request"]["url"]
                if url != self.path.as_uri() and not url.startswith("data:"):
                    found.append(f"asks for {url}")
        return found

    def answer(self) -> dict:
        return json.loads(self.ask("JSON.stringify(data.answer)"))


def check_every(page: Shown) -> None:
    """What holds for the page of every answer."""
    expect(f"{page._of}: faults", page.faults(), [])
    page.expect("charts", "document.querySelectorAll('.chart').length > 0", page.path.stem.split("-")[0] not in WITHOUT_CHARTS)
    page.expect("charts without a mark",
                "[...document.querySelectorAll('figure')].filter((f) => !f.querySelector('.chart .point, .chart .mark'))"
                ".map((f) => f.querySelector('h3').textContent)", [])
    page.expect("sections without a link", "[...document.querySelectorAll('section')].filter(({id}) => !document.querySelector(`nav a[href='#${id}']`)).length", 0)
    page.expect("as wide as the window", "document.documentElement.scrollWidth <= innerWidth")
    page.expect("scripts that the answer made", "document.querySelectorAll('main script, header script').length", 0)
    # WCAG 2.1, 1.4.3: contrast of text and background is at least 4.5.
    page.expect("texts of too little contrast", """(() => {
        const light = (colour) => colour.match(/[\\d.]+/g).slice(0, 3)
            .map((c) => (c /= 255) <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4).reduce((sum, c, i) => sum + c * [.2126, .7152, .0722][i], 0);
        const below = (at) => {
            const {backgroundColor} = getComputedStyle(at);
            return /, 0\\)$/.test(backgroundColor) ? below(at.parentElement) : backgroundColor;
        };
        return [...document.querySelectorAll('h1, h2, h3, p, a, li, dt, dd, small, th button, td, td button, figcaption, summary, pre, select, footer')]
            .filter((at) => at.textContent && !at.matches('.skip')).filter((at) => {
                const [a, b] = [light(getComputedStyle(at).color), light(below(at))];
                return (Math.max(a, b) + .05) / (Math.min(a, b) + .05) < 4.5;
            }).map((at) => `${at.tagName} ${at.className}`);
    })()""", [])


# The n-th cell of each row of a table, as its text says.
CELLS = "(id, n) => [...document.querySelectorAll(`#${id} table`)][0].querySelectorAll(`tbody tr td:nth-child(${n})`)"


def check_table(page: Shown, section: str, title: str, values: list[float], filters: dict[str, int]) -> None:
    """`values`: of the column `title`, row by row; `filters`: how many rows each leaves."""
    column = page.ask(f"[...document.querySelectorAll('#{section} table')[0].querySelectorAll('thead button')].findIndex((b) => b.textContent === {json.dumps(title)})")
    expect(f"{page._of}: a column {title}", column >= 0)
    button = f"document.querySelectorAll('#{section} table')[0].querySelectorAll('thead button')[{column}]"
    shown = f"[...({CELLS})('{section}', {column + 1})].map((cell) => Number(cell.textContent))"

    def close(found, wanted):
        return len(found) == len(wanted) and all(abs(f - w) <= 0.006 * max(1.0, abs(w)) for f, w in zip(found, wanted))

    page.ask(f"{button}.click()")
    expect(f"{page._of}: {title} upwards", close(page.ask(shown), sorted(values)))
    page.expect("aria-sort", f"{button}.closest('th').ariaSort", "ascending")
    page.ask(f"{button}.focus()")
    for kind in ("keyDown", "keyUp"):  # The second time from the keyboard.
        page.browser.call("Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", text="\r", windowsVirtualKeyCode=13)
    expect(f"{page._of}: {title} downwards", close(page.ask(shown), sorted(values, reverse=True)))
    page.expect("aria-sort", f"{button}.closest('th').ariaSort", "descending")
    page.expect("the focus is seen", f"{button}.matches(':focus-visible') && getComputedStyle({button}).outlineStyle !== 'none'")
    for text, rows in filters.items():
        page.ask(f"""(() => {{ const input = document.querySelector('#{section} input[type=search]');
            input.value = {json.dumps(text)}; input.dispatchEvent(new Event('input')); }})()""")
        page.expect(f"rows that {text!r} leaves", f"[...({CELLS})('{section}', 1)].length", rows)
    page.expect("an unknown column is said", f"document.querySelector('#{section} input').ariaInvalid + document.querySelector('#{section} [role=status]').textContent.includes('nonsense')", "truetrue")


def check_plan(page: Shown) -> None:
    plans = page.answer()["plans"]
    expect("plans enough to sort", len(plans) > 2)
    page.expect("the model's name as a text", f"document.querySelector('h1').textContent.includes({json.dumps(NAME)})")
    deepest = max(plan["run"]["pp"] for plan in plans)
    check_table(page, "ranking", "GiB", [plan["prediction"]["peak_device_memory_gib"] for plan in plans], {
        "": len(plans), f"pp={deepest}": sum(plan["run"]["pp"] == deepest for plan in plans), "bf16": len(plans), "nowhere": 0,
        f"steps<={plans[1]['prediction']['step_time_s'] + 1e-9}": sum(plan["prediction"]["step_time_s"] <= plans[1]["prediction"]["step_time_s"] + 1e-9 for plan in plans),
        "nonsense=1": len(plans)})
    page.ask("""(() => { const input = document.querySelector('#ranking input'); input.value = ''; input.dispatchEvent(new Event('input'));
        [...document.querySelectorAll('#ranking button.choose')].find((b) => b.textContent === '2').click(); })()""")
    page.expect("the second plan is shown", "document.querySelector('#plan h2').textContent", "Plan 2")
    check_memory(page, "plan", plans[1]["prediction"])
    release, decision = page.answer()["problem"]["release"], page.answer()["decision"]
    page.expect("the release", f"document.querySelector('.about').textContent.includes('Megatron-Core {release}.')")
    page.expect("a probability for each choice", "[...document.querySelectorAll('#certainty table')].at(-1).querySelectorAll('tbody tr').length",
                len(decision["choices"]))
    page.expect("what was measured together", f"document.querySelector('#certainty').textContent.includes({json.dumps(plans[0]['evidence']['nearest'])})")
    page.expect("words for what is not there", "/null|undefined|NaN/.test(document.querySelector('#certainty').textContent)", False)
    last = max(page.answer()["pareto"], key=lambda plan: plan["prediction"]["peak_device_memory_gib"])["number"]
    count = len(page.answer()["pareto"])
    page.ask(f"""hasPlotly ? document.querySelector('#fronts .chart').emit('plotly_click', {{points: [{{curveNumber: 1, pointNumber: {count - 1}}}]}})
        : [...document.querySelectorAll('#fronts .choose')].at(-1).dispatchEvent(new Event('click'))""")
    page.expect("a point of the front shows its plan", "document.querySelector('#plan h2').textContent", f"Plan {last}")


def check_memory(page: Shown, section: str, prediction: dict) -> None:
    """A bar for each cause of each stage, as long as its GiB."""
    bars = f"[...document.querySelectorAll('#{section} figure')].find((f) => f.textContent.startsWith('Memory'))"
    page.expect("bars of memory", f"{bars}.querySelectorAll('.chart .point, .chart .mark').length", 6 * len(prediction["memory"]))
    causes = ("parameters", "gradients", "optimizer", "activations", "buffers", "overhead")
    wanted = [stage[cause] for cause in causes for stage in prediction["memory"]]
    page.expect("GiB in its table", f"[...{bars}.querySelectorAll('tbody tr')].length", len(prediction["memory"]))
    widths = page.ask(f"[...{bars}.querySelectorAll('.chart .point path, .chart .mark')].map((bar) => bar.getBBox().width)")
    if page.ask("hasPlotly"):  # Cause by cause; ours are stage by stage.
        scale = sum(widths) / sum(wanted)
        expect(f"{page._of}: bars are to scale", all(abs(width - scale * gib) < 1.5 for width, gib in zip(widths, wanted)))


def check_predict(page: Shown) -> None:
    answer = page.answer()
    page.expect("the model's name as a text", f"document.querySelector('h1').textContent.includes({json.dumps(NAME)})")
    check_memory(page, "run", answer)
    page.expect("a box for each task and more", f"document.querySelectorAll('#schedule svg rect').length > {2 * answer['run']['pp'] * 4}")
    kinds = [fact["kind"] for fact in json.loads(page.ask("JSON.stringify(data.systems[0].facts)"))]
    page.ask("(() => { const input = document.querySelector('#assumptions input'); input.value = 'kind=assumed'; input.dispatchEvent(new Event('input')); })()")
    page.expect("numbers that are assumed", "document.querySelectorAll('#assumptions tbody tr').length", kinds.count("assumed"))


def check_compare(page: Shown) -> None:
    answer = page.answer()
    bars = "[...document.querySelectorAll('#waterfall figure')][0]"
    differing = sum(line["seconds"][0] != line["seconds"][1] for line in answer["explanation"])
    page.expect("bars of the waterfall", f"{bars}.querySelectorAll('.chart .point, .chart .mark').length", 2 + min(differing, 12) + (differing > 12))


def check_diagnose(page: Shown) -> None:
    answer = page.answer()
    page.expect("findings", "document.querySelectorAll('#findings tbody tr').length", len(answer["findings"]))
    flags = [flag["flag"] for finding in answer["findings"] for flag in finding["flags"] or []]
    changed = [flag for change in answer["changes"] for flag in change["flags"] or []]
    for part, names in (("findings", flags), ("changes", changed)):
        page.expect(f"flags of {part}", f"{json.dumps(names)}.every((name) => document.querySelector('#{part}').textContent.includes(name))", True)
    lines = answer["waterfall"]["lines"]
    differing = sum(line["seconds"][0] != line["seconds"][1] for line in lines)
    page.expect("bars of the waterfall", "[...document.querySelectorAll('#waterfall figure')][0].querySelectorAll('.chart .point, .chart .mark').length",
                2 + min(differing, 12) + (differing > 12))


def check_ranks(page: Shown) -> None:
    check_diagnose(page)
    for part in ("reasons", "ranks", "links"):
        page.expect(part, f"document.querySelectorAll('#{part} tbody tr').length", len(page.answer()[part]))


def check_sweep(page: Shown) -> None:
    rows = page.answer()["rows"]
    page.expect("numbers of the system", "document.querySelectorAll('#assumptions tbody tr').length > 50")
    page.expect("a mark for each point",
                "document.querySelectorAll('#chart .chart .point, #chart .chart .mark').length",
                sum(row["step_time_s"] is not None or row["status"] == "refused" for row in rows))
    page.expect("the model and the system in the title", f"document.title.startsWith({json.dumps(NAME)} + ' on h200: ')")
    check_table(page, "rows", "step_time_s", [row["step_time_s"] for row in rows], {
        "": len(rows), "status=fits": sum(row["status"] == "fits" for row in rows), "ep=4": sum(row["ep"] == 4 for row in rows), "nonsense>2": len(rows)})


def check_gpus(page: Shown) -> None:
    answer = page.answer()
    page.expect("searches", "document.querySelectorAll('#tried tbody tr').length", len(answer["tried"]))
    page.expect("a mark for each", "[...document.querySelectorAll('#fronts figure')][1].querySelectorAll('.chart .point, .chart .mark').length",
                sum(tried["step_time_s"] is not None for tried in answer["tried"]))
    expect("a question has its answer", len(answer["why_not"]), 1)
    page.expect("the question's section", "document.querySelector('#why-not-1 h2').textContent", "Why not tp 8")
    days = f"{answer['plans'][0]['training']['days']:#.4g}".rstrip(".")
    page.expect("days of the training", f"document.querySelector('.figures').textContent.includes('{days} days')")


def check_short(page: Shown) -> None:
    shortage = page.answer()["shortage"]
    page.expect("the nearest", "document.querySelectorAll('#shortage table')[0].querySelectorAll('tbody tr').length", len(shortage["nearest"]))


def check_refused(page: Shown) -> None:
    page.expect("reasons", "[...document.querySelectorAll('#rows tbody tr')].every((row) => row.textContent.includes('refused'))")
    page.expect("a reason for each", "document.querySelectorAll('#refused tbody tr').length", len(page.answer()["rows"]))


WITHOUT_CHARTS = {"short", "refused"}  # Nothing fits, nothing may run.
CHECKS = {"gpus": check_gpus, "short": check_short, "refused": check_refused, "plan": check_plan, "predict": check_predict, "compare": check_compare, "diagnose": check_diagnose, "ranks": check_ranks, "sweep": check_sweep}


def write_pages(foldwise: str, folder: pathlib.Path, run_file: str, kinds: list[str]) -> None:
    def call(*arguments: str, code: int = 0) -> str:
        done = subprocess.run([foldwise, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder, check=False)
        assert done.returncode == code, (arguments, done)
        return done.stdout

    config = json.loads(call("models", "mixtral-8x7b", "--format", "json"))["config"]
    (folder / NAME).parent.mkdir()
    (folder / NAME).write_text(json.dumps(config))
    run = {"id": NAME, "model": NAME, "system": "h200", "num_gpus": 16, "seq_len": 4096, "global_batch": 64, "micro_batch": 1, "tp": 1, "cp": 1,
           "pp": 4, "dp": 4, "ep": 4, "etp": 1, "precision": "bf16", "dispatcher": "alltoall"}
    (folder / "a.json").write_text(json.dumps(run))
    (folder / "b.json").write_text(json.dumps(run | {"pp": 2, "dp": 8, "ep": 8}))
    call("predict", "a.json", "--html", "predict.html")
    call("compare", "a.json", "b.json", "--html", "compare.html")
    sweep = ("sweep", "a.json", "--set", "ep=2,4", "--set", "micro_batch=1,2", "--out", "rows.csv", "--html", "sweep.html")
    call(*sweep)
    page = (folder / "sweep.html").read_text()
    rows = (folder / "rows.csv").read_text()
    (folder / "rows.csv").write_text(rows[:len(rows) * 2 // 3])
    call(*sweep)
    expect("a sweep that goes on has the page of one that was left alone", (folder / "sweep.html").read_text() == page)
    traced = str(pathlib.Path(__file__).resolve().parent / "traces/h100-mixtral-unfused-permute")
    call("diagnose", f"{traced}.json", "--trace", f"{traced}.rank0.json.gz", "--html", "diagnose.html")
    traced = str(pathlib.Path(__file__).resolve().parent / "traces/ep2-skew")
    call("diagnose", f"{traced}.json", "--trace", f"{traced}.rank0.json.gz", f"{traced}.rank1.json.gz", "--html", "ranks.html")
    call("sweep", "a.json", "--set", "ep=3,5", "--html", "refused.html", code=3)
    if "plan" in kinds:
        little = ("--global-batch", "64", "--effort", "0.3")
        call("plan", "--model", "mixtral-8x7b", "--system", "h200", "--gpus", "16", *little, "--objective", "gpus", "--max-step-time", "3",
             "--why-not", "tp=8", "--tokens", "1T", "--html", "gpus.html")
        call("plan", "--model", "mixtral-8x22b", "--system", "h100", "--gpus", "2", *little, "--html", "short.html", code=3)
        call("plan", "--model", NAME, "--system", "h200", "--gpus", "16", *little, "--html", "plan.html")
    call("predict", run_file, "--html", "large.html")
    answer = re.search(r'id="data">(.*?)</script>', (folder / "predict.html").read_text(), re.DOTALL).group(1)
    expect("the page's answer is that of --format json", json.loads(answer)["answer"], json.loads(call("predict", "a.json", "--format", "json")))


def check_faults(browser: chromium.Browser, page: pathlib.Path) -> None:
    """Would a fault be noticed?"""
    faults = {"an error": "<script>nowhere();</script>", "a message": "<script>console.error('x')</script>",
              "a picture from elsewhere": "<img src='http://127.0.0.1:9/x.png'>", "a request": "<script>fetch('http://127.0.0.1:9/').catch(() => 0)</script>"}
    broken = page.with_name("broken.html")
    anything = re.sub("script-src [^;]*", "script-src 'unsafe-inline'", page.read_text())
    for what, text in faults.items():
        broken.write_text(anything.replace("</body>", text + "</body>"))
        expect(f"{what} is noticed", bool(Shown(browser, broken).faults()))
    broken.write_text(page.read_text().replace("</body>", "<script>window.ran = 1</script></body>"))
    expect("a script that is not the page's own is not run", Shown(browser, broken).ask("window.ran === undefined"))


def main() -> int:
    foldwise, run_file, *besides = sys.argv[1:]
    program = chromium.program()
    if program is None:
        print("skipped: no chromium-headless-shell on this machine")
        return SKIPPED
    kinds = [kind for kind in CHECKS if kind not in ("plan", "gpus", "short") or "plan" in besides]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_pages(foldwise, folder, run_file, kinds)
        browser = chromium.Browser(program, str(folder / "profile"))
        try:
            for domain in ("Page", "Runtime", "Log", "Network"):
                browser.call(f"{domain}.enable")
            text = (folder / "predict.html").read_text()
            print("plotly.js is " + ("in the pages" if LIBRARY.search(text) else "not there: the plain charts alone are looked at"))
            for kind in [*kinds, "large"]:
                path = folder / f"{kind}.html"
                plain = folder / f"{kind}-plain.html"
                plain.write_text(LIBRARY.sub("", path.read_text()))
                # Each of both once: contrast is of a scheme, room of a width.
                for one, width, scheme in ((path, 390, "dark"), (path, 1280, "light"), (plain, 1280, "light")):
                    page = Shown(browser, one, width, scheme)
                    check_every(page)
                    if width > 390 and kind in CHECKS:
                        CHECKS[kind](page)
                        expect(f"{one.name}: faults", page.faults(), [])
                page.expect("says that plotly.js is missing", "document.querySelector('header .warn').textContent.includes('without plotly.js')")
            check_faults(browser, folder / "predict.html")
        finally:
            browser.close()
    print("\n".join(failures) or "the pages show what the answers have")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

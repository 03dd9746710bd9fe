#!/usr/bin/env python3
"""Does the site find what one searches for, opened as a file and without a network? Run by `./foldwise docs`.

    open_site.py FOLDER

Exit: 0 right, 1 not, 77 no browser here. Needs Python's standard library only."""
import pathlib
import sys
import tempfile
import time

import browser as chromium

ASKED = {'headroom': 'choose.html', 'pp.even': 'rules.html', 'bubble': 'glossary.html'}
RESULTS = """[...document.querySelectorAll('.md-search-result__link')].map((link) => link.href.split('?')[0])"""


def results(browser, page, words):
    browser.open(f'{page.as_uri()}?q={words}')
    until = time.monotonic() + chromium.TIMEOUT_S
    while time.monotonic() < until:
        if found := browser.evaluate(RESULTS):
            return found
        time.sleep(0.1)
    return []


def main():
    page = pathlib.Path(sys.argv[1]).resolve() / 'index.html'
    if not (program := chromium.program()):
        print('no browser here: search is not tried')
        return 77
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        browser = chromium.Browser(program, folder)
        for domain in ('Page', 'Network'):
            browser.call(f'{domain}.enable')
        for words, name in ASKED.items():
            if not any(link.split('#')[0].endswith(name) for link in results(browser, page, words)):
                wrong.append(f'{words}: {name} is not found')
        wrong += sorted({f'asks for {url}' for method, about in browser.events if method == 'Network.requestWillBeSent'
                         for url in [about['request']['url']] if not url.startswith(('file:', 'data:', 'about:', 'blob:'))})
        browser.close()
    print('\n'.join(wrong) or f'{page}: finds {len(ASKED)} words of {len(ASKED)}, and asks for nothing from elsewhere')
    return 1 if wrong else 0


if __name__ == '__main__':
    sys.exit(main())

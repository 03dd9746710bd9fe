"""What a command prints in a terminal, with its colours, as an SVG picture that loads nothing."""
import fcntl
import html
import os
import pty
import re
import struct
import subprocess
import termios

COLUMNS = 100
COLOURS = ['#45475a', '#d9534f', '#3fa34d', '#c58b16', '#3b7dd8', '#a356c9', '#1f9aa8', '#c8c8c8']  # 30 to 37.
SGR = re.compile(r'\x1b\[([0-9;]*)m')
OTHER = re.compile(r'\x1b\[[0-9;?]*[A-Za-ln-z]|\r')  # Of a cursor: what is erased is not shown.


def in_terminal(command, folder, environment):
    """Standard output of a command that sees a terminal of COLUMNS; its errors and progress go nowhere."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack('HHHH', 50, COLUMNS, 0, 0))
    environment = {**environment, 'TERM': 'xterm-256color', 'COLUMNS': str(COLUMNS)}
    environment.pop('NO_COLOR', None)
    with subprocess.Popen(['bash', '-ec', command], cwd=folder, stdin=subprocess.DEVNULL, stdout=theirs,
                          stderr=subprocess.DEVNULL, env=environment) as process:
        os.close(theirs)
        text = b''
        try:
            while part := os.read(ours, 65536):
                text += part
        except OSError:  # EIO: the other side is closed.
            pass
        os.close(ours)
    return process.returncode, text.decode()


def style(now, codes):
    """Attributes of a text after an SGR sequence."""
    numbers = iter([int(code or 0) for code in codes.split(';')])
    for code in numbers:
        if code in (38, 48):  # Of 256 colours, or any: not drawn.
            for _ in range(1 if next(numbers, 0) == 5 else 3):
                next(numbers, 0)
        elif code == 0:
            now = {}
        elif code == 1:
            now = {**now, 'font-weight': 'bold'}
        elif code == 2:
            now = {**now, 'opacity': '0.6'}
        elif 30 <= code <= 37 or 90 <= code <= 97:
            now = {**now, 'fill': COLOURS[code % 10]}
        elif 40 <= code <= 47 or 100 <= code <= 107:
            now = {**now, 'behind': COLOURS[code % 10]}
        elif code == 49:
            now = {key: value for key, value in now.items() if key != 'behind'}
        elif code == 39:
            now = {key: value for key, value in now.items() if key != 'fill'}
        elif code == 22:
            now = {key: value for key, value in now.items() if key not in ('font-weight', 'opacity')}
    return now


def svg(command, text):
    rows = [('', f'<tspan x="16" opacity="0.6">$ {html.escape(command)}</tspan>')]  # (bars, texts)
    now, columns = {}, 80
    for number, line in enumerate(OTHER.sub('', text).rstrip().split('\n'), 1):
        bars, spans, column = [], [], 0
        for at, part in enumerate(SGR.split(line)):
            if at % 2:
                now = style(now, part)
            elif part:
                if 'behind' in now:
                    bars.append(f'<rect x="{16 + column * 7.8:.1f}" y="{22 + number * 18}" width="{len(part) * 7.8:.1f}" height="15" '
                                f'fill="{now["behind"]}"/>\n')
                # Each word group stands at its own column, so that a font of another width keeps the table.
                for piece in re.finditer(r'\S+(?: \S+)*', part):
                    attributes = ''.join(f' {key}="{value}"' for key, value in now.items() if key != 'behind')
                    x = 16 + (column + piece.start()) * 7.8
                    spans.append(f'<tspan x="{x:.1f}"{attributes}>{html.escape(piece.group())}</tspan>')
                column += len(part)
        columns = max(columns, column)
        rows.append((''.join(bars), ''.join(spans)))
    width, height = 32 + columns * 7.8, 40 + len(rows) * 18
    body = '\n'.join(f'{bars}<text y="{34 + at * 18}">{spans}</text>' for at, (bars, spans) in enumerate(rows))
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}" viewBox="0 0 {width:.0f} {height}">\n'
            f'<title>{html.escape(command)}</title>\n'
            f'<rect width="100%" height="100%" rx="8" fill="#1e1e2e"/>\n'
            f'<g font-family="ui-monospace, Menlo, Consolas, monospace" font-size="13" fill="#e6e6ef" xml:space="preserve">\n'
            f'{body}\n</g>\n</svg>\n')

"""What the site has that the pages' sources do not say: links for the names of pages and files, and CONTRIBUTING.md. A page
that would load something from elsewhere is an error."""
import pathlib
import re

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
CODE = re.compile(r'(^```.*?^```$|^    .*?$|`[^`\n]+`)', re.DOTALL | re.MULTILINE)
PAGE = re.compile(r'(?<![\w/\[])(?<!\]\()docs/([a-z-]+(?:/[a-z-]+)?)\.md(#[a-z0-9-]+)?')
OUTSIDE = re.compile(r'\[([^\]]*)\]\(((?:\.\./)+[^)#\s]*)(#[^)\s]*)?\)')
LOADED = re.compile(r'<(?:script|link|img|iframe)\b[^>]*(?:src|href)="(?:https?:)?//[^"]*')
ASIDE = {'contributing.md': 'CONTRIBUTING.md'}


def on_files(files, config):
    for name, source in ASIDE.items():
        files.append(File.generated(config, name, content=(ROOT / source).read_text()))
    return files


def linked(text, page, config):
    """Names of pages become links to them; links to files beside docs/ become their names."""
    up = '../' * page.file.src_uri.count('/')
    text = PAGE.sub(lambda match: f'[{match[1]}]({up}{match[1]}.md{match[2] or ""})', text)
    here = ROOT if page.file.src_uri in ASIDE else (ROOT / 'docs' / page.file.src_uri).parent

    def named(match):
        target = (here / match[2]).resolve()
        inside = target.is_relative_to(config.docs_dir)
        return match[0] if inside else f'{match[1]} (`{target.relative_to(ROOT)}`)'
    return OUTSIDE.sub(named, text)


def on_page_markdown(markdown, page, config, files):
    parts = CODE.split(markdown)  # Code stands at odd places.
    return ''.join(part if at % 2 else linked(part, page, config) for at, part in enumerate(parts))


def on_post_page(output, page, config):
    if match := LOADED.search(output):
        raise PluginError(f'{page.file.src_uri}: loads from elsewhere: {match[0]}')

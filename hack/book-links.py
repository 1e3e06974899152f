#!/usr/bin/env python3
"""Looks at every page of the built book: its links lead to a file of the book and a heading of that, and no page makes a request to another host.

Usage: hack/book-links.py DIRECTORY
"""
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# What a browser loads by itself, and not when somebody clicks.
LOADED = {("link", "href"), ("script", "src"), ("img", "src"), ("source", "src"), ("iframe", "src")}


class Page(HTMLParser):
    def __init__(self, path):
        super().__init__()
        self.links, self.anchors = [], set()
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name == "id" or (tag == "a" and name == "name"):
                self.anchors.add(value)
            elif name in ("href", "src") and value:
                self.links.append((value, (tag, name) in LOADED))


root = Path(sys.argv[1]).resolve()
pages = {path: Page(path) for path in root.rglob("*.html")}
faults, count = [], 0
for path, page in sorted(pages.items()):
    for link, is_loaded in page.links:
        parts = urlsplit(link)
        if parts.scheme in ("http", "https") or parts.netloc:
            if is_loaded:
                faults.append(f"{path.relative_to(root)} loads {link}")
            continue
        if parts.scheme:
            continue
        count += 1
        target = path
        if parts.path:
            begins = root if parts.path.startswith("/") else path.parent
            target = (begins / unquote(parts.path).lstrip("/")).resolve()
        is_there = target.is_file() and target.is_relative_to(root)
        # The page of a missing address has no place of its own.
        if path.name == "404.html":
            continue
        if not is_there or (parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors):
            faults.append(f"{path.relative_to(root)}: {link}")
for path in root.rglob("*.css"):
    for address in re.findall(r"""(?:url\(|@import)\s*["']?((?:https?:)?//[^"')]+)""", path.read_text()):
        faults.append(f"{path.relative_to(root)} loads {address}")
if count < 100:
    faults.append(f"only {count} links: is this the book?")
if faults:
    sys.exit("docs: dead links, or requests to other hosts:\n  " + "\n  ".join(sorted(set(faults))))

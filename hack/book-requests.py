#!/usr/bin/env python3
"""Looks at every page and style of the built book: none makes a request to another host.

Usage: hack/book-requests.py DIRECTORY
"""
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlsplit

# What a browser loads by itself, and not when somebody clicks.
LOADED = {("link", "href"), ("script", "src"), ("img", "src"), ("source", "src"), ("iframe", "src")}


class Page(HTMLParser):
    def __init__(self, path):
        super().__init__()
        self.loaded = []
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        self.loaded += [value for name, value in attributes if value and (tag, name) in LOADED]


root = Path(sys.argv[1])
loaded = [(path, address) for path in root.rglob("*.html") for address in Page(path).loaded]
for path in root.rglob("*.css"):
    loaded += [(path, address) for address in re.findall(r"""(?:url\(|@import)\s*["']?([^"')]+)""", path.read_text())]
faults = [f"{path.relative_to(root)} loads {address}" for path, address in loaded if urlsplit(address).netloc]
if len(loaded) < 100:
    faults.append(f"only {len(loaded)} addresses: is this the book?")
if faults:
    sys.exit("docs: requests to other hosts:\n  " + "\n  ".join(sorted(set(faults))))

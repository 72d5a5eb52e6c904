# SPDX-License-Identifier: Apache-2.0
"""Lets mkdocs read pages that are written for GitHub."""
import posixpath
import re
from mkdocs.structure.files import Files

def on_files(files, config):  # the order of the navigation
    with open(files.get_file_from_path("README.md").abs_src_path) as readme:
        text = readme.read()
    pages = [f for f in files if not f.src_uri.endswith((".go", ".gotmpl"))]
    return Files(sorted(pages, key=lambda f: text.find(f"({f.src_uri})") % len(text)))

def on_page_markdown(markdown, page, config, files):
    page.title = page.title.replace("`", "")
    def outside(link):  # of docs
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page.file.src_uri), link[1]))
        return link[0] if path.startswith("docs/") else f"]({config.repo_url}/blob/main/{path}{link[2]})"
    lines, marker, fenced = [], "", False
    for line in re.sub(r"(?m)^( *```\w+) .*", r"\1", markdown).split("\n"):  # mkdocs reads only the language
        fenced ^= line.startswith("```")
        if line[:1].strip():
            marker = "" if fenced else " " * len(re.match(r"(?:[-*] |\d+\. )?", line)[0])
        lines.append(re.sub("^" + marker, "    ", line) if marker else line)  # in lists, it wants four spaces
    return re.sub(r"\]\((\.\.[^)#]*)(#[^)]*|)\)", outside, "\n".join(lines))

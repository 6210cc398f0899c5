"""The pages as they are served: what they may do, what they weigh, what they ask for."""

import hashlib
import re
from importlib.resources import files

import pytest

from carpool.gateway.pages import Pages

MAX_BYTES = 300 * 1024
FOLDER = files("carpool.watch") / "pages"
DOCUMENTS = {"/": "dashboard.html", "/chat": "chat.html", "/me": "me.html"}


@pytest.fixture(scope="module")
def pages():
    return Pages(DOCUMENTS)


def loaded_by(pages, path, seen):
    """Paths of all that a document or script asks for, itself among them."""
    if path in seen:
        return seen
    seen.add(path)
    text = pages.answer(path).body.decode()
    for found in re.findall(r'(?:src|href|from|import)\s*=?\s*"([^"#]+)"', text):
        if found.startswith("./"):
            found = f"/pages/{found[2:]}"
        if found.startswith("/pages/"):
            loaded_by(pages, found, seen)
    return seen


@pytest.mark.parametrize("document", DOCUMENTS)
def test_a_page_is_small_with_all_that_it_loads_and_all_of_that_is_there(pages, document):
    loaded = loaded_by(pages, document, set())
    assert sum(len(pages.answer(path).body) for path in loaded) < MAX_BYTES


@pytest.mark.parametrize("document", DOCUMENTS)
def test_scripts_that_scripts_ask_for_are_on_their_way_before(pages, document):
    text = pages.answer(document).body.decode()
    named = set(re.findall(r'(?:src|href)="(/pages/[^"]+\.js)"', text))
    assert named == {path for path in loaded_by(pages, document, set()) if path.endswith(".js")}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_a_document_has_no_script_or_style_of_its_own_and_names_nobody_elses(pages, document):
    text = pages.answer(document).body.decode()
    assert not re.search(r"<script(?![^>]*\bsrc=)", text)
    assert not re.search(r"<style|\sstyle=|\son[a-z]+=|javascript:", text)
    assert not re.findall(r'(?:src|href)="(?:https?:)?//', text)


def test_no_script_makes_html_of_text(pages):
    own = [path for path in pages.paths if path.endswith(".js") and "/uplot/" not in path]
    for path in own:
        text = pages.answer(path).body.decode()
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text)


def test_every_answer_says_what_the_page_may_do(pages):
    for path in pages.paths:
        headers = pages.answer(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"


def test_what_the_browser_has_is_not_sent_again(pages):
    whole = pages.answer("/chat")
    again = pages.answer("/chat", whole.headers["etag"])
    assert (whole.status_code, again.status_code, again.body) == (200, 304, b"")


@pytest.mark.parametrize(
    "path", ["/pages/", "/pages/../../pages.py", "/pages/chat.html", "/pages/uplot/LICENSE", "/x"]
)
def test_there_is_nothing_else(pages, path):
    assert pages.answer(path) is None


def test_uplot_is_as_it_was_published():
    told = dict(
        reversed(line.split()[1:])
        for line in (FOLDER / "uplot" / "README.md").read_text().splitlines()
        if line.startswith("    sha256")
    )
    for name in ("uPlot.iife.min.js", "uPlot.min.css"):
        content = (FOLDER / "uplot" / name).read_bytes()
        assert hashlib.sha256(content).hexdigest() == told[name]

"""A server and a page. Without a Chromium the tests are skipped, or fail if it is required."""

import os
import platform

import pytest
import stacks

playwright = pytest.importorskip("playwright.sync_api")


# One for a file, not for all tests: as long as it stands, its event loop runs in this thread, and
# explorers that find a running loop draw later.
@pytest.fixture(scope="module")
def browser():
    if stacks.CHROMIUM is None:
        reason = "no Chromium found, so nothing was tried in a browser (package chromium)"
        if os.environ.get("REQUIRE_BROWSER") == "1":
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    with playwright.sync_playwright() as started:
        launched = started.chromium.launch(
            executable_path=stacks.CHROMIUM, args=stacks.CHROMIUM_ARGUMENTS
        )
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def server(browser, tmp_path_factory):
    started = stacks.Server(tmp_path_factory.mktemp("course"))
    yield started
    started.close()


@pytest.fixture
def page(browser):
    """A page that fails its test if the browser's console reported an error."""
    opened = browser.new_page(viewport={"width": 1100, "height": 1100})
    opened.set_default_timeout(stacks.SECONDS * 1000)
    errors = []
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
    yield opened
    opened.close()
    assert errors == [], f"console, on {platform.system()}: {errors}"

#!/usr/bin/env python3
"""The page of a report in a real browser:  python3 scripts/check_report.py FEDANCHOR

Makes a run with FEDANCHOR (the program), writes a report over it and over the committed quick table, and
opens both from the file system in headless Chromium: no error on the console, every figure drawn, values on
hover, lines that can be switched off, frames, figures that can be saved, dark colours, names that stay text. Then
a copy of the run is watched with `fedanchor watch --web` while rounds are appended to it.

Needs Chromium and its driver. Where they are missing, they are installed as root on Debian; otherwise the
checks are skipped, or fail if the variable CI is set. With --screenshots FOLDER it writes the pictures of the
README and the documentation instead.
"""
import argparse
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
EVIL = "</script><img src=x onerror=document.title='broken'>"


def ensure_browser():
    """Whether there is a browser; installs one where that is possible."""
    found = lambda: shutil.which("chromium") and shutil.which("chromedriver")
    if not found() and os.geteuid() == 0 and shutil.which("apt-get"):
        subprocess.run(["apt-get", "update", "-qq"], stdout=subprocess.DEVNULL)
        subprocess.run(["apt-get", "install", "-y", "-qq", "chromium", "chromium-driver"], stdout=subprocess.DEVNULL)
    return bool(found())


def browser(width=1300, height=1000, dark=False):
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--window-size={width},{height}"):
        options.add_argument(argument)
    if dark:
        options.add_argument("--blink-settings=preferredColorScheme=0")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    driver.set_script_timeout(30)
    return driver


class Checks:
    """Counts what held and what did not."""

    def __init__(self):
        self.passed = self.failed = 0

    def that(self, held, what):
        if held:
            self.passed += 1
        else:
            self.failed += 1
            print(f"FAILED: {what}", flush=True)


def open_page(driver, address):
    from selenium.webdriver.support.ui import WebDriverWait

    driver.get(address)
    # On a busy machine the driver may return before the page's script has run.
    WebDriverWait(driver, 30).until(lambda one: one.execute_script("return Boolean(document.querySelector('figure .files button'))"))


def eventually(condition):
    """Whether it holds within 15 seconds: on a busy machine a page takes its time."""
    end = time.time() + 15
    while not (held := condition()) and time.time() < end:
        time.sleep(0.05)
    return held


def errors(driver):
    return [entry["message"] for entry in driver.get_log("browser") if entry["level"] in ("SEVERE", "ERROR")]


# Id, size and number of marks of every figure, in the frame that it shows.
DRAWN = """return [...document.querySelectorAll('figure')].map(figure => {
    const svg = figure.querySelector('.frame:not([hidden]) svg.chart'), { width, height } = svg.getBoundingClientRect();
    return [figure.id, width, height, svg.querySelectorAll('polyline, circle, image, [data-line] rect, .cells path, .star').length];
});"""
# Name and content of what a click on a button saves.
SAVED = """const [button, done] = arguments, blobs = new Map(), create = URL.createObjectURL;
URL.createObjectURL = blob => { const url = create.call(URL, blob); blobs.set(url, blob); return url; };
HTMLAnchorElement.prototype.click = function () {
    delete HTMLAnchorElement.prototype.click;
    URL.createObjectURL = create;
    const reader = new FileReader();
    reader.onload = () => done([this.download, reader.result]);
    reader.readAsText(blobs.get(this.href), 'latin1');
};
button.click();"""


def check_page(driver, checks, index, least):
    """A page from the file system."""
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    open_page(driver, index.as_uri())
    checks.that(not errors(driver), f"{index}: errors on the console: {errors(driver)}")
    figures = driver.execute_script(DRAWN)
    checks.that(len(figures) >= least, f"{index}: {len(figures)} figures, expected at least {least}")
    for name, width, height, marks in figures:
        checks.that(marks > 0 and width > 200 and height > 50, f"{index}: {name} is not drawn: {width} x {height}, {marks} marks")
    for link in driver.find_elements(By.CSS_SELECTOR, ".files a"):
        target = index.parent / link.get_dom_attribute("href")
        checks.that(target.exists(), f"{index}: {target} does not exist")
    accuracy = driver.find_element(By.CSS_SELECTOR, "figure[id$=-accuracy]")
    chart = accuracy.find_element(By.CSS_SELECTOR, "svg.chart")
    tip = accuracy.find_element(By.CSS_SELECTOR, ".tip")
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", chart)
    ActionChains(driver).move_to_element(chart).perform()
    checks.that(eventually(lambda: "round" in tip.text and ": " in tip.text), f"{index}: no values on hover: {tip.text!r}")
    ActionChains(driver).move_to_element(accuracy.find_element(By.TAG_NAME, "h3")).perform()
    checks.that(eventually(lambda: not tip.is_displayed()), f"{index}: values stay when the pointer has left")
    driver.execute_script("arguments[0].focus()", chart)
    driver.switch_to.active_element.send_keys(Keys.ARROW_LEFT * 40)
    checks.that(eventually(lambda: tip.text.startswith("round 0")), f"{index}: the arrow keys show no values: {tip.text!r}")
    lines = "return [...arguments[0].querySelectorAll('polyline')].filter(line => line.getClientRects().length).length"
    before = driver.execute_script(lines, chart)
    box = accuracy.find_element(By.CSS_SELECTOR, ".legend input")
    box.send_keys(Keys.SPACE)
    checks.that(eventually(lambda: driver.execute_script(lines, chart) < before), f"{index}: a line cannot be switched off")
    svg, png = accuracy.find_elements(By.CSS_SELECTOR, ".files button")
    name, saved = driver.execute_async_script(SAVED, svg)
    checks.that(name.endswith("-accuracy.svg") and saved.count("<polyline") == before - 1, f"{index}: {name} does not have the lines that are shown")
    checks.that("Test accuracy</text>" in saved and "display=" not in saved, f"{index}: {name} has no title, or more than is shown")
    name, saved = driver.execute_async_script(SAVED, png)
    checks.that(name.endswith("-accuracy.png") and saved[1:4] == "PNG", f"{index}: {name} is not a PNG file: {saved[:20]!r}")
    box.send_keys(Keys.SPACE)
    checks.that(eventually(lambda: driver.execute_script(lines, chart) == before), f"{index}: a line cannot be switched on again")
    cells = driver.find_element(By.CSS_SELECTOR, "figure[id$=-confusion] .frame:not([hidden])")
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", cells)
    ActionChains(driver).move_to_element(cells.find_element(By.CSS_SELECTOR, ".cells")).perform()
    text = lambda: cells.find_element(By.CSS_SELECTOR, ".tip").text
    checks.that(eventually(lambda: "predicted class: " in text()), f"{index}: no values of cells on hover: {text()!r}")
    for select in driver.find_elements(By.CSS_SELECTOR, "figure select"):
        frames = "return [...arguments[0].closest('figure').querySelectorAll('.frame')].map(frame => !frame.hidden)"
        before = driver.execute_script(frames, select)
        other = before.index(False)
        select.find_elements(By.TAG_NAME, "option")[other].click()
        wanted = [place == other for place in range(len(before))]
        checks.that(sum(before) == 1 and driver.execute_script(frames, select) == wanted, f"{index}: a frame cannot be chosen")
    paper = "return getComputedStyle(document.body).backgroundColor"
    light = driver.execute_script(paper)
    driver.find_element(By.CSS_SELECTOR, "#theme option[value=dark]").click()
    checks.that(driver.execute_script(paper) != light, f"{index}: dark colours change nothing")
    wide = driver.execute_script("return document.documentElement.scrollWidth")
    checks.that(wide <= driver.execute_script("return innerWidth"), f"{index}: the page is wider than the window")
    checks.that(not errors(driver), f"{index}: errors on the console after use: {errors(driver)}")


def check_markup(driver, checks, program, run, folder):
    """Class names with markup in them stay text."""
    copy = folder / "evil"
    shutil.copytree(run, copy)
    (copy / "checksums.txt").unlink()  # as in a run of an earlier version: its files are changed here
    confusion = (copy / "confusion.csv").read_text()
    name = json.loads((copy / "summary.json").read_text())["classes"][0]
    (copy / "confusion.csv").write_text(confusion.replace(f"\n{name},", f'\n"{EVIL}",'))
    text = (copy / "config.toml").read_text()
    (copy / "config.toml").write_text(text.replace('name = "sample"', f"name = '''{EVIL}'''"))
    subprocess.run([program, "-q", "report", copy, "--out", folder / "evil-report"], check=True, stdout=subprocess.DEVNULL)
    index = folder / "evil-report/index.html"
    open_page(driver, index.as_uri())
    checks.that("broken" not in driver.title.split("·")[0].replace(EVIL, ""), "markup in a name was executed")
    checks.that(driver.execute_script("return document.querySelectorAll('img[src=x]').length") == 0, "markup in a name became an element")
    checks.that(EVIL in driver.execute_script("return document.querySelector('h1').textContent"), "a name with markup is not shown as text")
    rows = driver.execute_script("return document.querySelector('figure[id$=-confusion] .cells').dataset.rows")
    checks.that(rows.startswith(EVIL), f"a class name with markup is not text of its figure: {rows!r}")
    # Even markup that came through could not execute anything.
    markup = "<img src=x onerror=document.title='broken'><script>document.title='broken'</script>"
    index.write_text(index.read_text().replace("<main", markup + "<main"))
    open_page(driver, index.as_uri())
    time.sleep(0.5)
    checks.that(driver.title != "broken", "the policy of the page lets foreign scripts execute")
    errors(driver)  # the console names what was blocked


def check_live(driver, checks, program, run, folder):
    """A page that is served while rounds are appended."""
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    copy = folder / "live"
    shutil.copytree(run, copy)
    lines = (copy / "rounds.jsonl").read_text().splitlines(keepends=True)
    (copy / "rounds.jsonl").write_text("".join(lines[:2]))
    (copy / "summary.json").unlink()
    (copy / "secret.txt").write_text("not for the page")
    server = subprocess.Popen([program, "watch", copy, "--web", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True)
    try:
        address = next(word for word in server.stdout.readline().split() if word.startswith("http://")).rstrip("/.")
        host, port = address.removeprefix("http://").split(":")
        open_page(driver, address)
        switch = driver.find_element(By.CSS_SELECTOR, "figure[id$=-accuracy] .legend input")
        switch.send_keys(Keys.SPACE)
        rounds = "return document.querySelector('.table tbody').textContent"
        before = driver.execute_script(rounds)
        with open(copy / "rounds.jsonl", "a") as records:
            records.write(lines[2])
        checks.that(eventually(lambda: driver.execute_script(rounds) != before), "the live page does not update when a round is appended")
        checks.that(not errors(driver), f"the live page has errors on the console: {errors(driver)}")
        points = "return document.querySelector('figure[id$=-accuracy] polyline').points.length"
        checks.that(driver.execute_script(points) == 3, "the figures of the live page do not get the round that is appended")
        state = driver.find_element(By.ID, "live").text
        checks.that(state.endswith(", round 2 of 3"), f"the live page shows the state {state!r}")
        switch = driver.find_element(By.CSS_SELECTOR, "figure[id$=-accuracy] .legend input")
        kept = driver.switch_to.active_element == switch and not switch.is_selected()
        checks.that(kept, "a line that was switched off comes back, or loses the focus, when the live page updates")

        def status(path, name=f"{host}:{port}", method="GET"):
            connection = http.client.HTTPConnection(host, int(port), timeout=10)
            connection.putrequest(method, path, skip_host=True)
            connection.putheader("Host", name)
            connection.endheaders()
            answer = connection.getresponse().status
            connection.close()
            return answer

        checks.that(status("/") == 200, "the page is not served")
        for path in ("/secret.txt", "/config.toml", "/../live/secret.txt", "/%2e%2e/secret.txt", "/checkpoints/"):
            checks.that(status(path) == 404, f"{path} is served")
        checks.that(status("/", "attacker.example") in (403, 421), "a foreign Host header is accepted")
        checks.that(status("/", method="POST") == 405, "POST is accepted")
    finally:
        server.send_signal(signal.SIGINT)
        checks.that(server.wait(10) == 0, f"Ctrl-C ends the live page with status {server.returncode}")


def screenshots(reports, folder):
    folder.mkdir(parents=True, exist_ok=True)
    for name, width, height, dark in (("desktop", 1300, 1500, False), ("dark", 1300, 1500, True), ("phone", 420, 1100, False)):
        driver = browser(width, height, dark)
        try:
            open_page(driver, reports["quick"].as_uri())
            driver.save_screenshot(str(folder / f"report-{name}.png"))
        finally:
            driver.quit()


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("program", type=Path)
    arguments.add_argument("--screenshots", type=Path)
    arguments = arguments.parse_args()
    if not ensure_browser():
        if os.environ.get("CI"):
            sys.exit("error: Chromium or its driver is missing: install the packages chromium and chromium-driver")
        print("skipped: Chromium or its driver is missing: install the packages chromium and chromium-driver")
        return
    program = arguments.program.resolve()
    checks = Checks()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        quick = folder / "quick/index.html"
        # A relative path: the page shows it.
        command = [program, "-q", "report", "results/quick-table", "--out", quick.parent]
        subprocess.run(command, check=True, cwd=REPOSITORY, stdout=subprocess.DEVNULL)
        if arguments.screenshots:
            return screenshots({"quick": quick}, arguments.screenshots)
        run = folder / "run"
        settings = ["rounds=3", "compare=false", "pretrain.epochs=5", "pretrain.fitted=0", "data.clients=6", "client.per_round=3", "record.latents=[3]", "record.samples=8"]
        changed = [part for setting in settings for part in ("--set", setting)]
        subprocess.run([program, "-q", "run", *changed, "--out", run], check=True, stdout=subprocess.DEVNULL)
        subprocess.run([program, "-q", "report", run, "--out", folder / "one"], check=True, stdout=subprocess.DEVNULL)
        driver = browser()
        try:
            check_page(driver, checks, quick, 6)
            check_page(driver, checks, folder / "one/index.html", 11)
            check_markup(driver, checks, program, run, folder)
            driver.set_window_size(420, 900)
            open_page(driver, quick.as_uri())
            wide = driver.execute_script("return document.documentElement.scrollWidth <= innerWidth")
            checks.that(wide, "the page is wider than a phone")
            check_live(driver, checks, program, run, folder)
        finally:
            driver.quit()
    print(f"{checks.passed} passed, {checks.failed} failed")
    sys.exit(bool(checks.failed))


if __name__ == "__main__":
    main()

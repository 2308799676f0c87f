"""The page of a run: what it says, who may read it, and how a browser shows it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
import pytest
from rich.console import Console

import rstreams_fast.spark as rs
from rstreams_fast.spark import report
from rstreams_fast.spark.report.page import Page
from tests.helpers import run_python
from tests.spark.chromium import CHROMIUM, Chromium

SECRET: Final = "s3cr3t"
NAME: Final = "</script><b>look"
SECONDS: Final = 30.0

in_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="there is no chromium: apt-get install chromium"
)


def write(path: str | Path, stage: str, **counts: Any) -> None:
    metrics = rs.StageMetrics(stage=stage, key="k", partition=0, **counts)
    name = f"{abs(hash(stage))}.metrics.json"
    Path(path, name).write_text(json.dumps(asdict(metrics)), encoding="utf-8")


WAITING: Final[dict[str, Any]] = {"concurrency": 8, "waiting_function": 10.0}


@pytest.mark.parametrize(
    ("counts", "says"),
    [
        ({}, "No task has waited so far."),
        (
            WAITING | {"latencies": {0: 80}},
            "waited for the service for 100% .* All 8 calls .* conc",
        ),
        (WAITING | {"latencies": {0: 20}}, "service .* 2 of 8 calls are in flight: .* partitions"),
        (
            WAITING | {"latencies": {0: 5}, "waited_limit": 75.0},
            "its limit for 9.% .* larger Limit",
        ),
        (WAITING | {"waited_service": 75.0}, "Retry-After.* quota"),
        (WAITING | {"waited_retry": 75.0, "retries": 3}, "before retries .* 3 attempts"),
        (WAITING | {"blocked": 9.0, "blocked_at": {"a.py:7": 9.0}}, "90% .* await at a.py:7"),
        (WAITING | {"latencies": {0: 1}}, "was busy in Python for 90% .*cores"),
        (WAITING | {"waiting_upstream": 90.0}, "its input for 90%"),
        (WAITING | {"waiting_downstream": 90.0}, "takes its output for 90%"),
        (WAITING | {"circuit_open": 9.0, "refused": 1234}, "circuit of look was open, and 1,234 "),
    ],
)
def test_one_line_says_where_the_job_waits(counts: dict[str, Any], says: str) -> None:
    stage = rs.StageMetrics(stage="look", state="done", **counts)
    advice = report.advise({"look": stage})
    assert re.search(says, advice), advice
    assert "\n" not in advice


def test_the_slow_stage_is_named_and_not_those_that_wait_for_it(tmp_path: Path) -> None:
    slow = rs.StageMetrics(**WAITING, latencies={0: 80}, waiting_upstream=9.0)
    before = rs.StageMetrics(waiting_function=1.0, waiting_downstream=99.0)
    after = rs.StageMetrics(waiting_function=1.0, waiting_upstream=99.0)
    stages = {"before": before, "slow": slow, "after": after}
    assert report.advise(stages).startswith("slow waits for the service")
    stall = report.Stall("after", 5.0, 64)
    assert report.advise(stages, stalls=[stall]).startswith("after has had no answer for 5 s")


def test_no_share_of_the_time_is_negative() -> None:
    # A new attempt of a task, which blocks its loop, replaces an attempt that has waited for calls.
    before = report.TaskTime(upstream=1.0, calls=9.0, service=9.0)
    after = report.TaskTime(upstream=2.0, calls=3.0, loop=3.0, service=10.0)
    recent = after.since(before)
    assert min(recent.by_cause().values()) >= 0
    assert sum(recent.by_cause().values()) == recent.seconds == 1.0


@pytest.fixture
def metrics() -> Iterator[rs.Metrics]:
    with rs.Metrics() as made:
        yield made


def ran(metrics: rs.Metrics) -> report.Watch:
    """A run of ten seconds, without Spark."""
    now = 0.0
    watch = report.Watch(metrics, clock=lambda: now)
    for now in range(11):
        counts: dict[str, Any] = {"state": "running", "running": 50 + now} if now < 10 else {}
        if now == 10:
            counts["state"] = "done"
        write(
            metrics.path, NAME, **counts, rows_out=100 * now, calls=100 * now + 60, failures=now,
            concurrency=64, max_running=60, waiting_function=0.9 * now, waiting_upstream=0.1 * now,
            latencies={-8: 100 * now}, buffered_bytes=1000 * now,
        )  # fmt: skip
        watch.look()
    return watch


def test_a_page_is_one_file_that_loads_nothing(metrics: rs.Metrics, tmp_path: Path) -> None:
    page = report.write_page(tmp_path / "page.html", ran(metrics), title="A & B").read_text()
    assert len(page) < 150_000
    assert "<b>look" not in page
    assert "<title>A &amp; B</title>" in page
    assert not re.search('(src|href)=(?!"data:)', page)
    assert "default-src 'none'" in page
    body = page[page.index("<body>") :]
    assert (
        re.sub("<[^>]*>", "", body).split("\n")[2].startswith("&lt;/script&gt;&lt;b&gt;look wait")
    )
    assert body.count("<table>") == 3


def test_names_are_no_markup(metrics: rs.Metrics, capsys: pytest.CaptureFixture[str]) -> None:
    name = "look[red][/b]"
    with report.watch(metrics) as watch:
        write(
            metrics.path, name, failures=1, failure_types={"Error[404][/]": 1},
            spent={"tokens[in]": 3.0}, blocked_at={"[key].py:3": 1.0}, waiting_function=1.0,
        )  # fmt: skip
    said = capsys.readouterr().out
    for part in (name, "1 (Error[404][/] 1)", "3 tokens[in]", "([key].py:3)", f"{name}: calls in"):
        assert part in said
        assert part in Page(watch, "").document()
    stalled, now = report.Watch(metrics, clock=lambda: now), 0.0
    with report.Display(Console(width=200)) as display:
        for moment, calls in (0.0, 5), (1.0, 5), (9.0, 5), (10.0, 6):
            now = moment
            write(metrics.path, name, calls=calls, running=5)
            display.show_rows(stalled, None)
    said = capsys.readouterr().out
    assert f"stalled: {name} has had no answer for 9 s" in said
    assert f"resumed: {name} after" in said


def test_each_block_counts_its_own_rows(
    metrics: rs.Metrics, capsys: pytest.CaptureFixture[str]
) -> None:
    for total, of_block in (5, 5), (12, 7):
        with report.watch(metrics) as watch:
            write(metrics.path, "look", state="done", rows_out=total)
        assert watch.samples[-1].rows == of_block
    assert re.findall(r"\n(\d+) rows in ", capsys.readouterr().out) == ["5", "7"]


def test_the_tables_are_in_the_order_of_the_stages(
    metrics: rs.Metrics, capsys: pytest.CaptureFixture[str]
) -> None:
    with report.watch(metrics, stages=("before", "after")):
        write(metrics.path, "after", started=1.0, rows_out=5)
        write(metrics.path, "before", started=2.0, rows_out=8)
    said = capsys.readouterr().out
    assert re.search(r"\n5 rows in ", said)
    assert re.search(r"before *┃ *after", said)


SHOWN = """
import rstreams_fast.spark as rs
from rstreams_fast.spark import report
with rs.Metrics() as metrics:
    with report.watch(metrics):
        pass
    report.print_tables(report.make_console(), {"日本": rs.StageMetrics()}, 1.0)
"""


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_a_run_is_shown_in_each_encoding(encoding: str) -> None:
    done = run_python("-c", SHOWN, env={"PYTHONIOENCODING": f"{encoding}:strict"})
    assert done.stdout.startswith("✓ Running" if encoding == "utf-8" else "ok: Running")


@pytest.mark.filterwarnings("error::UserWarning", "ignore::DeprecationWarning")
def test_a_picture_shows_each_name_as_it_is(metrics: rs.Metrics, tmp_path: Path) -> None:
    watch = report.Watch(metrics)
    write(metrics.path, "_look", running=1)
    watch.look()
    title = r"from $\nothing to $9"
    backend = mpl.get_backend()
    mpl.use("pdf")
    drawn = report.draw(watch.samples, tmp_path / "run.svg", title=title).read_text()
    assert mpl.get_backend() == "pdf"
    mpl.use(backend)
    assert title in drawn
    assert len(re.findall("<!-- *_look -->", drawn)) == 2
    assert len(re.findall("<!-- *_look calls -->", drawn)) == 1


@pytest.fixture
def served(metrics: rs.Metrics) -> Iterator[report.Watch]:
    write(metrics.path, "look", rows_out=7, state="done")
    with report.watch(metrics, rows=9, page=True) as watch:
        yield watch


def get(url: str, **headers: str) -> tuple[int, str]:
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()


def test_only_this_machine_reads_the_live_page(served: report.Watch) -> None:
    assert served.url.startswith("http://127.0.0.1:")
    assert get(served.url)[0] == get(served.url, Host="localhost:8000")[0] == 200
    for host in "evil.example", "127.0.0.1.evil.example", "localhost@evil.example", "":
        status, said = get(served.url, Host=host)
        assert status == 403
        assert "look" not in said
    assert get(f"{served.url}nowhere")[0] == 404


def test_the_server_ends_with_the_block_and_sends_the_last_figures(metrics: rs.Metrics) -> None:
    with report.watch(metrics, page=True) as watch:
        events = urllib.request.urlopen(f"{watch.url}events", timeout=SECONDS)
        assert not json.loads(events.readline().removeprefix(b"data: "))["ended"]
        port = int(watch.url.split(":")[2].strip("/"))
        others = [socket.create_connection(("127.0.0.1", port)) for _ in range(40)]
        others[0].sendall(b"GET / HTTP/1.1\r\nHost: ")
        others[1].sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        write(metrics.path, "look", rows_out=7, state="done")
        begin = time.monotonic()
    assert time.monotonic() - begin < SECONDS
    assert "rstreams-page" not in {thread.name for thread in threading.enumerate()}
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port))
    for connection in others:
        connection.close()
    with events:
        last = json.loads(events.read().strip().split(b"\n")[-1].removeprefix(b"data: "))
    assert last["ended"]
    assert '<span id="rows">7<' in last["parts"]["figures"]
    assert last["parts"]["status"].startswith("Ended after")


def test_a_connection_that_gets_no_thread_does_not_hinder_the_end(metrics: rs.Metrics) -> None:
    with report.watch(metrics, page=True) as watch:
        port = int(watch.url.split(":")[2].strip("/"))
        before = threading.stack_size(1 << 60)  # no thread starts: no memory is so large
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as connection:
                assert connection.recv(1) == b""
        finally:
            threading.stack_size(before)
        assert get(watch.url)[0] == 200


def test_a_page_says_that_the_job_failed(metrics: rs.Metrics) -> None:
    with contextlib.suppress(LookupError), report.watch(metrics, page=True) as watch:
        events = urllib.request.urlopen(f"{watch.url}events", timeout=SECONDS)
        events.readline()
        raise LookupError(SECRET)
    with events:
        said = events.read().decode()
    assert "Failed after" in said
    assert SECRET not in said


# -- in a browser ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    with Chromium() as made:
        yield made


LUMINANCE = """(name) => {
  const probe = document.createElement('i');
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const parts = getComputedStyle(probe).color.match(/[\\d.]+/g).slice(0, 3).map((part) => {
    const value = part / 255;
    return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  });
  probe.remove();
  return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
}"""


def contrast(browser: Chromium, one: str, other: str) -> float:
    dark, light = sorted(browser.run(f"({LUMINANCE})('{name}')") for name in (one, other))
    return float((light + 0.05) / (dark + 0.05))


@in_chromium
def test_the_charts_are_read_and_zoomed_by_mouse_and_keys(
    browser: Chromium, metrics: rs.Metrics, tmp_path: Path
) -> None:
    page = report.write_page(tmp_path / "page.html", ran(metrics)).as_uri()
    browser.forget()
    browser.resize(1300)
    browser.open(page)
    assert browser.run("document.querySelectorAll('.uplot canvas').length") == 4
    legends = "[...document.querySelectorAll('.u-legend')].map((each) => each.innerText)"
    assert "59" not in browser.run(legends)[1]
    x, y = browser.run(
        "(() => { const over = document.querySelectorAll('.u-over')[1];"
        "over.scrollIntoView(); const box = over.getBoundingClientRect();"
        "return [box.left + 0.9 * box.width, box.top + 50]; })()"
    )
    browser.hover(x, y)
    browser.wait(f"{legends}[1].includes('59') && {legends}[0].includes('100')")

    browser.run("document.querySelector('.plot').focus()")
    for _ in range(2):
        browser.press("ArrowLeft")
    said = browser.wait("document.querySelector('.unseen').innerText")
    assert said.startswith("seconds 7, rows out 100, calls of </script><b>look 100, failures of")
    shown = "document.querySelector('#shown').innerText"
    press = "document.activeElement.dispatchEvent(new KeyboardEvent('keydown', {key: '+'}))"
    assert browser.run(f"{press}, {press}, {shown}") == "5.75 to 8.25 s", "two keys in one task"
    browser.press("-")
    browser.wait(f"{shown} === '4.5 to 9.5 s'")
    browser.press("Tab")
    assert browser.run("document.activeElement.innerText") == "rows out"
    browser.press("Enter")
    assert browser.run("document.activeElement.parentElement.className") == "u-series u-off"
    browser.run("document.querySelector('.plot').focus()")
    browser.press("0")
    browser.wait(f"{shown} === ''")
    browser.run("document.querySelector('#zoom button').focus()")
    browser.press("Enter")
    browser.wait(f"{shown} === '2.5 to 7.5 s'")
    assert browser.requests == [page]
    assert browser.complaints == []


@in_chromium
@pytest.mark.parametrize("dark", [False, True])
def test_the_page_is_read_on_a_phone_and_in_both_schemes(
    browser: Chromium, metrics: rs.Metrics, tmp_path: Path, dark: bool
) -> None:
    browser.resize(400, dark=dark)
    browser.open(report.write_page(tmp_path / f"{dark}.html", ran(metrics)).as_uri())
    browser.wait("document.querySelectorAll('.uplot canvas').length === 4")
    assert browser.run("document.documentElement.scrollWidth") == 400
    assert (
        browser.run(
            "Math.max(...[...document.querySelectorAll('canvas')].map((c) => c.clientWidth))"
        )
        < 400
    )
    for ground in "--ground", "--panel":
        for text in "--text", "--dim":
            assert contrast(browser, text, ground) >= 4.5
    for number in range(5):
        assert contrast(browser, f"--line-{number}", "--ground") >= 3


@in_chromium
@pytest.mark.spark
def test_the_live_page_shows_what_the_metrics_say(
    spark: Any, browser: Chromium, metrics: rs.Metrics, tmp_path: Path, name: str
) -> None:
    gate, rows = tmp_path / "gate", 600

    async def look(key: int) -> int:
        while key >= rows // 2 and not gate.exists():  # noqa: ASYNC110 (it is in another process)
            await asyncio.sleep(0.05)
        if key % 100 == 0:
            raise LookupError(SECRET)
        return key

    stage = rs.enrich(
        look, on="id", output="v long", metrics=metrics, on_failure="column", concurrency=16
    )
    frame = spark.range(0, rows, 1, 1).transform(stage)
    browser.forget()
    browser.resize(1300)
    with report.watch(metrics, rows=rows, page=True) as watch:
        job = threading.Thread(target=frame.collect)
        job.start()
        browser.open(watch.url)
        # The calls of the second half wait for the gate: nothing changes until it is there.
        browser.wait(f"{FIGURE % 'running'} === '16'", seconds=90)
        assert "look has had no answer for" in browser.wait(STALLED)
        total = metrics.totals()
        assert total.running == 16
        assert browser.run(FIGURE % "rows") == f"{total.rows_out:,}"
        assert browser.run(FIGURE % "failures") == f"{total.failures}"
        assert browser.text("#figures").count("of at most 16") == 1
        gate.touch()
        job.join(SECONDS)
        assert not job.is_alive()
    browser.wait("document.querySelector('#status').innerText.startsWith('Ended after')")
    total = metrics.totals()
    assert browser.run(FIGURE % "rows") == f"{total.rows_out:,}" == f"{rows:,}"
    assert browser.run(FIGURE % "failures") == f"{total.failures}" == "6"
    assert browser.text("#advice") == report.advise(metrics.by_stage())
    work = browser.run(TABLE)
    assert work["calls"] == f"{total.calls:,}"
    assert work["failed"] == "6 (LookupError 6)"
    assert work["attempts (the service saw them)"] == f"{total.attempts:,}"
    latencies = ", ".join(f"{total.latency(share):.3g}" for share in (0.5, 0.95, 0.99))
    assert work["seconds: p50, p95, p99"] == latencies
    assert SECRET not in browser.run("document.documentElement.outerHTML")
    assert browser.requests == [watch.url, f"{watch.url}events"]
    assert browser.complaints == []


FIGURE: Final = "document.querySelector('#%s').innerText"
STALLED: Final = (
    "(() => { const said = document.querySelector('#advice').innerText;"
    " return said.includes('no answer') && said; })()"
)
TABLE: Final = (
    "Object.fromEntries([...document.querySelectorAll('#table-0 tbody tr')]"
    ".map((row) => [...row.cells].map((cell) => cell.innerText.trim())))"
)

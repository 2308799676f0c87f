"""Shows a job to people: a bar while the job runs, then tables, a picture and a page.

The package needs ``rich`` and ``matplotlib``: ``pip install 'rstreams_fast[report]'``.
"""

from rstreams_fast._third_parties import importing

with importing("rich", __name__, "'rstreams_fast[report]'"):
    import rich as rich  # the modules below import rich

from rstreams_fast.spark.report.live import Display, make_console, watch
from rstreams_fast.spark.report.page import write_page
from rstreams_fast.spark.report.picture import draw
from rstreams_fast.spark.report.samples import Sample, Watch
from rstreams_fast.spark.report.tables import (
    bounds_table,
    human_bytes,
    print_table,
    print_tables,
    work_table,
)
from rstreams_fast.spark.report.waits import Stall, TaskTime, advise

__all__ = [
    "Display",
    "Sample",
    "Stall",
    "TaskTime",
    "Watch",
    "advise",
    "bounds_table",
    "draw",
    "human_bytes",
    "make_console",
    "print_table",
    "print_tables",
    "watch",
    "work_table",
    "write_page",
]

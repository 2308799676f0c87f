"""Shows the progress of a Spark job, and its metrics as tables, as a picture and as an HTML page.

The package needs ``rich`` and ``matplotlib``: ``pip install 'rstreams_fast[report]'``.
"""

from rstreams_fast._third_parties import importing

with importing("rich", __name__, "'rstreams_fast[report]'"):
    import rich as rich  # if rich is missing, the error says how to install it

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

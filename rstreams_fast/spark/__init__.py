"""What happens inside one Spark worker: overlapping calls, bounded buffers, clean ends.

::

    import rstreams_fast.spark as rs

    model = rs.lookup(fetch_model, "string", concurrency=64, timeout=2.0, retry=rs.Retry(3))
    flights.withColumn("model", model("tailnum"))
    flights.transform(rs.enrich(fetch, on=["origin", "time_hour"], output="temp double, wind double"))

Neither pyspark nor pyarrow is imported before a function needs it.
"""

from rstreams_fast.spark.figures import Figures, StageFigures
from rstreams_fast.spark.lookups import Enrich, Lookup, enrich, lookup
from rstreams_fast.spark.options import Retry

__all__ = [
    "Enrich",
    "Figures",
    "Lookup",
    "Retry",
    "StageFigures",
    "enrich",
    "lookup",
]

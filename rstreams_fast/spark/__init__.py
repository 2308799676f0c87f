"""What happens inside one Spark worker: overlapping calls, bounded buffers, clean ends.

::

    import rstreams_fast.spark as rs

    model = rs.lookup(fetch_model, "string", concurrency=64, timeout=2.0, retry=rs.Retry(3))
    flights.withColumn("model", model("tailnum"))
    flights.transform(rs.enrich(fetch, on=["origin", "time_hour"], output="temp double, wind
    double")) flights.transform(rs.map_batches(fn, schema, concurrency=4))
    flights.transform(rs.stage(lambda batches: batches.map(f).publish_on().map(g), schema))

Neither pyspark nor pyarrow is imported before a function needs it.
"""

from rstreams_fast.spark.batches import MapBatches, map_batches
from rstreams_fast.spark.figures import Figures, StageFigures
from rstreams_fast.spark.lookups import Enrich, Lookup, enrich, lookup
from rstreams_fast.spark.options import Retry
from rstreams_fast.spark.stages import Stage, stage

__all__ = [
    "Enrich",
    "Figures",
    "Lookup",
    "MapBatches",
    "Retry",
    "Stage",
    "StageFigures",
    "enrich",
    "lookup",
    "map_batches",
    "stage",
]

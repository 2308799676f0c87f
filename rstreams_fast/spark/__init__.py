"""Overlapping calls inside a Spark worker, with bounded buffers and clean ends.

```python
import rstreams_fast.spark as rs

async def model_of(tailnum):
    return await ask_the_registry(tailnum)

model = rs.lookup(model_of, "string", concurrency=64, timeout=2.0, retry=rs.Retry(3))
flights.withColumn("model", model("tailnum"))
flights.transform(rs.enrich(weather_of, on=["origin", "hour"], output="temp double"))
flights.transform(rs.map_batches(score, "id long, score double", concurrency=4))
flights.transform(rs.stage(lambda batches: batches.map(score).publish_on(), schema))
```

Neither pyspark nor pyarrow is imported before a function needs it.
"""

from rstreams_fast.spark.batches import MapBatches, map_batches
from rstreams_fast.spark.bounds import bounded
from rstreams_fast.spark.failures import split_failures
from rstreams_fast.spark.journals import Journal, call_id
from rstreams_fast.spark.limits import Limit, RetryAfter
from rstreams_fast.spark.lookups import Enrich, Lookup, enrich, lookup
from rstreams_fast.spark.metrics import Metrics, StageMetrics
from rstreams_fast.spark.options import Cache, Circuit, CircuitOpenError, Retry
from rstreams_fast.spark.per_worker import PerWorker
from rstreams_fast.spark.stream_stage import StreamStage, stage

__all__ = [
    "Cache",
    "Circuit",
    "CircuitOpenError",
    "Enrich",
    "Journal",
    "Limit",
    "Lookup",
    "MapBatches",
    "Metrics",
    "PerWorker",
    "Retry",
    "RetryAfter",
    "StageMetrics",
    "StreamStage",
    "bounded",
    "call_id",
    "enrich",
    "lookup",
    "map_batches",
    "split_failures",
    "stage",
]

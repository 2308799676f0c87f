"""PySpark stages that make overlapping calls in each Python worker, with bounded buffers.

```python
import rstreams_fast.spark as rs

@rs.Policy(timeout=2.0, retry=rs.Retry(3))
async def model_of(tailnum):
    return await ask_the_registry(tailnum)

model = rs.lookup(model_of, "string", concurrency=64)
flights.withColumn("model", model("tailnum"))
flights.transform(rs.enrich(weather_of, on=["origin", "hour"], output="temp double"))
flights.transform(rs.map_batches(score, "id long, score double", concurrency=4))
flights.transform(rs.stage(lambda batches: batches.map(score).publish_on(), schema))
```

Importing this package does not import pyspark or pyarrow: the functions import them when needed.
"""

from rstreams_fast.calls.budget import Budget
from rstreams_fast.calls.circuit import Circuit
from rstreams_fast.calls.errors import BudgetSpentError, CircuitOpenError
from rstreams_fast.calls.ids import call_id
from rstreams_fast.calls.journal.journal import Journal
from rstreams_fast.calls.limits.leases import serve_at
from rstreams_fast.calls.limits.limit import Limit
from rstreams_fast.calls.limits.pace import per_minute, per_second
from rstreams_fast.calls.lists.batching import Batching
from rstreams_fast.calls.memory.cache import Cache
from rstreams_fast.calls.policy import Policy
from rstreams_fast.calls.retry import Retry, RetryAfter
from rstreams_fast.calls.usage import observed, spent
from rstreams_fast.spark import sinks
from rstreams_fast.spark.addresses import own_addresses
from rstreams_fast.spark.batches import MapBatches, map_batches
from rstreams_fast.spark.failures import split_failures
from rstreams_fast.spark.lenient_types import lenient
from rstreams_fast.spark.lookups import Enrich, Lookup, enrich, lookup
from rstreams_fast.spark.metrics import Metrics, StageMetrics
from rstreams_fast.spark.options import Bounds, Failures
from rstreams_fast.spark.per_worker import PerWorker
from rstreams_fast.spark.sinks.dead_letters import DeadLetters, dead_letters
from rstreams_fast.spark.sinks.report import WriteReport
from rstreams_fast.spark.sinks.write import Writer, write, writer
from rstreams_fast.spark.stream_stage import StreamStage, stage
from rstreams_fast.spark.telemetry.options import OpenTelemetry

__all__ = [
    "Batching",
    "Bounds",
    "Budget",
    "BudgetSpentError",
    "Cache",
    "Circuit",
    "CircuitOpenError",
    "DeadLetters",
    "Enrich",
    "Failures",
    "Journal",
    "Limit",
    "Lookup",
    "MapBatches",
    "Metrics",
    "OpenTelemetry",
    "PerWorker",
    "Policy",
    "Retry",
    "RetryAfter",
    "StageMetrics",
    "StreamStage",
    "WriteReport",
    "Writer",
    "call_id",
    "dead_letters",
    "enrich",
    "lenient",
    "lookup",
    "map_batches",
    "observed",
    "per_minute",
    "per_second",
    "sinks",
    "spent",
    "split_failures",
    "stage",
    "write",
    "writer",
]

# ``Limit(scope="job")`` starts a server in the driver. ``own_addresses`` returns the addresses of
# this server; executors on other hosts must reach it.
serve_at(own_addresses)

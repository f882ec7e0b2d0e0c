"""A program that uses Flux with a session of Spark Connect, and prints what it gets; `test_connect` runs it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

import flux
import flux.spark


class Hours(StatefulProcessor):  # type: ignore[misc]  # pyspark is untyped here
    def init(self, handle: Any) -> None:
        pass

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        for row in rows:
            yield Row(id=key[0], hour=row.at.hour)


def refusal(use: Callable[[], Any]) -> str:
    try:
        use()
    except flux.PlanError as error:
        return str(error)
    return "nothing was refused"


def main() -> None:
    spark = SparkSession.builder.remote("local[1]").getOrCreate()
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    frame = spark.sql("SELECT 'a' AS id, timestamp '2024-01-01 05:00:00' AS at")
    flow = flux.Dataflow("connect")
    hours = flux.spark.stateful_processor(Hours, "id string, hour int")
    flow.source(flux.spark.Frame(frame)).exchange("id", partitions=2).apply(hours).sink(flux.sinks.Collect())
    back = flux.spark.to_dataframe(flow.run(sites=2), spark)
    found = {
        "rows": [list(row) for row in back.collect()],
        "Cluster": refusal(lambda: flux.spark.Cluster(spark)),
        "register": refusal(lambda: flux.spark.register(spark)),
        "Stream": refusal(lambda: flux.spark.Stream(spark.readStream.format("rate").load())),
    }
    print(json.dumps(found), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()

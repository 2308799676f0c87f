"""The main job: every flight that left New York in 2013 gets its weather and its plane, over HTTP.

``make demo`` runs it: Spark reads the flights, a look-up service on loopback knows the weather and
the planes, ``rstreams_fast.spark`` stands between them with hard bounds, and a plain SQL join
proves every row afterwards.
"""

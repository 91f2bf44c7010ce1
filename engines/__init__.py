"""One folder an engine: its API, its graph, its metrics. Imports contracts and httpx; services, testbed and workloads import it."""

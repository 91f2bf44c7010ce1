"""How large each image is: `make bench-images`; builds what is not built, and writes bench/results/images.json.

An image's own size is what it adds to its base, which a machine has once. Both are what the daemon says: unpacked, all layers.
"""

import contextlib
import sys
import time

import docker

from bench.results_file import write
from testbed.docker import ANSWER_SECONDS, unanswered
from testbed.images import BASE, SERVICES, Images, missing

BUDGET_MEGABYTES = 250
"""Over the base, of each service but the analyzer."""


def main() -> int:
    """1 and a line if it cannot be measured here."""
    if reason := unanswered() or missing():
        sys.stderr.write(f"images: {reason}\n")
        return 1
    with contextlib.closing(docker.from_env(timeout=ANSWER_SECONDS)) as client:
        images = Images(client, report=print)
        began = time.monotonic()
        settings = images.for_tests()
        seconds = time.monotonic() - began
        base = images.size(BASE)
        sizes = {}
        for name in (*SERVICES, "load", "sample-job"):
            whole = images.size(settings[f"WEIR_{name.upper().replace('-', '_')}_IMAGE"])
            sizes[name] = {"megabytes": round(whole / 1e6, 1), "over_base_megabytes": round((whole - base) / 1e6, 1)}
    small = [sizes[name]["over_base_megabytes"] for name in SERVICES if name != "analyzer"]
    path = write(
        "images",
        "make bench-images",
        {
            "base": {"image": BASE, "megabytes": round(base / 1e6, 1)},
            "images": sizes,
            "largest_without_spark_over_base_megabytes": max(small),
            "budget_megabytes": BUDGET_MEGABYTES,
            "build_seconds": round(seconds, 1),
        },
    )
    print(path.read_text())
    return 0


if __name__ == "__main__":
    sys.exit(main())

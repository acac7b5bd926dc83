"""``python -m simulator.roofline [FACTS.yaml ...]``: predictions beside published measurements."""

import sys

from simulator.hardware import load_catalog
from simulator.roofline.published import table

if __name__ == "__main__":
    print(table(load_catalog(sys.argv[1:])))

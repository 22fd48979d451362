"""A router that cannot serve."""

import sys

sys.exit("error: cannot serve")

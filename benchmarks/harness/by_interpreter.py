"""`by_interpreter PYTHON MODULE [ARGUMENTS]`: become `PYTHON -m MODULE`, of another environment."""

import os
import sys

if __name__ == "__main__":
    os.execv(sys.argv[1], [sys.argv[1], "-m", *sys.argv[2:]])

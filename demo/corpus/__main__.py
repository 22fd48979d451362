"""`python -m demo.corpus SPLIT COUNT`: print problems as prompts of `flyserve calibrate`."""

import json
import sys

from demo.corpus import Split
from demo.tasks import evaluation_tasks

if len(sys.argv) != 3 or sys.argv[1] not in [*Split] or not sys.argv[2].isdecimal():
    sys.exit(f"usage: python -m demo.corpus {'|'.join(Split)} COUNT")
for task in evaluation_tasks(Split(sys.argv[1]), int(sys.argv[2])):
    print(json.dumps({"prompt": task.prompt, "answer": task.answer, "family": task.family}))

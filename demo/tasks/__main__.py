"""Write the shipped tasks: `python -m demo.tasks`."""

from __future__ import annotations

from demo.tasks import write_tasks

write_tasks()

"""Write the shipped tasks: `python -m demo.tasks`."""

from demo.tasks import write_tasks

write_tasks()

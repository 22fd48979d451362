"""The scenarios: each has a class `Plan` and a function `run(plan, context)` that returns its report."""

"""Problems drawn from the corpus: never trained on, families in turn, the same for every run."""

from itertools import islice

from demo.corpus import Family, Split, problems
from demo.tasks import Task

_SEED = 4_2026


def draw_tasks(split: Split, count: int) -> list[Task]:
    """The first `count` problems of a split; a smaller count gives the first of a larger one's."""
    sources = [(family, problems(_SEED, split, family)) for family in Family]
    drawn = (
        Task(f"{split.value}-{family.value}-{number:05d}", family, problem.prompt, problem.answer)
        for number in range(count)
        for family, source in sources
        for problem in (next(source),)
    )
    return list(islice(drawn, count))

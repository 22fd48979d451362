"""Errors cross process borders: what they say survives pickling."""

import pickle

from flyserve.core.errors import FieldViolation, InvalidRequest, Overloaded


def test_errors_survive_pickling() -> None:
    invalid = InvalidRequest(FieldViolation("a.b", "is 1, must be 2"), FieldViolation("c", "is empty"))
    copy = pickle.loads(pickle.dumps(invalid))
    assert str(copy) == str(invalid) == "a.b is 1, must be 2; c is empty"
    assert copy.violations == invalid.violations
    overloaded = pickle.loads(pickle.dumps(Overloaded("full", 2.5)))
    assert (str(overloaded), overloaded.retry_after_s) == ("full", 2.5)

"""Half an hour of mixed load, with clients that leave, stall and err: does anything grow?"""

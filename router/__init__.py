"""The public service: runs the speculation protocol over drafters and targets, and balances the load."""

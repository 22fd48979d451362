"""Draft/target pairs with random weights whose agreement is set by one number; see README.md."""

"""What the benches of the engines share: one timer, one table."""

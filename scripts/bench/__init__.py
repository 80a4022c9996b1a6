"""What the benchmarks of the engines share."""

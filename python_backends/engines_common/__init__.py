"""What the engines of this repository share: weights, copies to and from the device, graphs, delivery."""

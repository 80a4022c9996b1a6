"""Audio, images and video of a request: fetched, checked against limits, decoded."""
